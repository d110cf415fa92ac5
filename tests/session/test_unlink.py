"""A device can forget its way to a backend; warnings of backends can be ended; removed ones are forgotten."""

from __future__ import annotations

import pytest
from workspace_kit import PASSPHRASE, Lab, write

from metasync.errors import UsageError
from metasync.local.state_keys import EVIDENCE_KEY
from metasync.session.folder import LINKS_KEY
from metasync.workspace import Workspace


def test_who_unlinked_a_backend_is_not_warned_of_it(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    assert not w.link("c", None).linked
    write(w.directory, {"x": b"1"})
    r = w.push()
    assert (r.version, r.under_replicated, r.down) == (1, 0, {})
    assert w.status().short == 0
    assert [b.condition for b in w.backends()] == ["ok", "ok", "not linked"]
    with pytest.raises(UsageError, match="no way to a backend called 'c'"):
        w.link("c", None)
    assert w.link("c", lab.url("c")).state == "ok"


def test_a_removed_backend_is_forgotten_once_nothing_is_read_there(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c", "d"))
    w.backend_remove("d", passphrase=PASSPHRASE)  # four allowed for a liar
    w = lab.reopen(w)
    w.status()
    w = lab.reopen(w)
    assert set(w._db.need(LINKS_KEY)) == {"a", "b", "c"}


def test_linking_anew_ends_what_was_noted_of_a_backend(lab: Lab) -> None:
    w = lab.init(lab.urls("a", "b", "c"))
    w._db.set(EVIDENCE_KEY, [("a", "forgot", 1), ("b", "forgot", 2)])
    assert "metasync backend link b URL" in lab.cli("status").out
    w.link("b", lab.url("b"))
    assert [e.backend for e in w.status().evidence] == ["a"]


def test_a_workspace_that_stays_open_follows_what_another_process_links_and_unlinks(lab: Lab) -> None:
    """A daemon did without a backend for ever that `backend link` had told this device the way to."""
    w = lab.init(lab.urls("a", "b", "c"))
    other = lab.keep(Workspace.open(w.directory))
    write(w.directory, {"f": b"1"})
    assert w.push().down == {}
    other.link("c", None)
    write(w.directory, {"f": b"2"})
    w.push()
    with w._session("test") as s:
        assert sorted(s.names.values()) == ["a", "b"]
    other.link("c", lab.url("c"))
    write(w.directory, {"f": b"3"})
    report = w.push()
    assert (report.version, report.down) == (3, {})
    with w._session("test") as s:
        assert sorted(s.names.values()) == ["a", "b", "c"]
    assert [b.condition for b in w.backends()] == ["ok"] * 3
