"""`make bench-small`: what a request is about, and which bars are missed. The bench itself runs by hand."""

from __future__ import annotations

from collections import Counter

import pytest
import small
from http_requests import RequestStream

FOLDER = b"/metasync/a/" + b"5" * 32
OBJECT = b"%s/%s/" % (FOLDER, b"a" * 32)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"PUT " + OBJECT + b"packs/1/ab/" + b"c" * 64, "PUT pack"),
        (b"PUT " + OBJECT + b"px/0/" + b"c" * 64, "PUT entry of the log"),
        (b"GET " + OBJECT + b"birth", "GET birth"),
        (b"PUT " + OBJECT + b"meta/0/" + b"c" * 64, "PUT index"),
        (b"PUT " + OBJECT + b"hint", "PUT hint"),
        (b"PUT " + FOLDER + b"/devices/" + b"d" * 32, "PUT head"),
        (b"GET /metasync?list-type=2&prefix=x", "LIST /metasync"),
    ],
)
def test_a_request_is_told_by_its_path(line: bytes, kind: str) -> None:
    stream = RequestStream()
    stream.feed(line + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert [small.kind_of(target) for target in stream.targets] == [kind]


def test_a_bar_that_is_missed_is_told() -> None:
    rows = [small.Row(0.02, 21_000, Counter({"PUT pack": 8}))] * 3
    assert small.missed("warm", rows, is_far=False) == []
    slow = [small.Row(0.3, 23_000, Counter({"PUT pack": 9}))] * 3
    assert [text.split()[1] for text in small.missed("warm", slow, is_far=True)] == ["requests", "bytes", "seconds"]
