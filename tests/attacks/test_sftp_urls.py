"""SFTP URLs that somebody else wrote (an invitation, a mail), and the words that a ProxyCommand makes of them."""

from __future__ import annotations

import pytest

from metasync.backends.registry import parse_url
from metasync.errors import UsageError

WORDS = (
    "$(touch%20pwned)",
    "$(id)",
    "$HOME",
    "svc$",
    "`id`",
    "a;id",
    "a|id",
    "a&id",
    "a%0aid",
    "a%20-oProxyCommand=id",
    "-oProxyCommand=id",
    "a'b",
    'a"b',
    "a>b",
    "a<b",
    "a(b)",
    "a{b}",
    "a*",
    "a?",
    "~root",
    "a%5cb",
    "a#",
    "a!b",
    "a%ffb",
    "b%c3%b6b",
    "a" * 300,
)


@pytest.mark.parametrize("word", WORDS)
def test_a_user_of_shell_words_is_refused(word: str) -> None:
    """The URL's user is a word of the shell (`ProxyCommand ssh -l %r`): an allow-list keeps it from being a command."""
    with pytest.raises(UsageError):
        parse_url(f"sftp://{word}@nas.example/store")


@pytest.mark.parametrize("word", [*WORDS, "[fe80::1%25$(id)]", "[fe80::1%25b%c3%b6]", "[::1%25a;b]", ""])
def test_a_host_of_shell_words_is_refused(word: str) -> None:
    """The URL's host is a word of the shell too (`ProxyCommand nc %h %p`)."""
    with pytest.raises(UsageError):
        parse_url(f"sftp://bob@{word}/store")


@pytest.mark.parametrize(
    "where",
    ["bob@nas", "u12345-sub1@nas.example:23", "bob%40corp.example@nas", "acct.container.bob@nas", "b_o+b@nas",
     "bob@[fe80::1%25eth0]:22"],
)  # fmt: skip
def test_the_users_of_real_servers_pass(where: str) -> None:
    parse_url(f"sftp://{where}/store")
