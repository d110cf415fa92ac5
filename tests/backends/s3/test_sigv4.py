"""Signatures of S3 requests, against the examples in Amazon's own reference of the API."""

from __future__ import annotations

import hashlib

import pytest

from metasync.backends._shared.sigv4 import NOTHING, authorization, encoded_path, encoded_query

HOST = {"host": "examplebucket.s3.amazonaws.com", "x-amz-date": "20130524T000000Z"}


@pytest.mark.parametrize(
    ("method", "path", "query", "headers", "body", "signature"),
    [
        (
            "GET", "/test.txt", [], {"range": "bytes=0-9"}, b"",
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT", "/test$file.text", [],
            {"date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
            b"Welcome to Amazon S3.", "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET", "/", [("lifecycle", "")], {}, b"",
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET", "/", [("prefix", "J"), ("max-keys", "2")], {}, b"",
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
)  # fmt: skip
def test_amazons_examples(
    method: str, path: str, query: list[tuple[str, str]], headers: dict[str, str], body: bytes, signature: str
) -> None:
    sent = {**HOST, **headers, "x-amz-content-sha256": hashlib.sha256(body).hexdigest() if body else NOTHING}
    key = {"key_id": "AKIAIOSFODNN7EXAMPLE", "secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
    made = authorization(method, encoded_path(path), encoded_query(query), sent, region="us-east-1", **key)
    assert made.rpartition("Signature=")[2] == signature
    assert made.startswith("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,")
    assert key["secret"] not in made


def test_what_stands_in_a_path_or_query() -> None:
    assert encoded_path("/b/a b!*'()+=@,:ü~_-.") == "/b/a%20b%21%2A%27%28%29%2B%3D%40%2C%3A%C3%BC~_-."
    assert encoded_query([("b", "a/b"), ("a", "1 2")]) == "a=1%202&b=a%2Fb"
