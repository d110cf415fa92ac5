"""Which new paths are parts of databases and repositories that other programs write to."""

from __future__ import annotations

import pytest

from metasync.worktree.live_data import Live, live_data, warning


@pytest.mark.parametrize(
    ("new", "found"),
    [
        ([b".git/HEAD", b".git/config", b"a.py"], [(b".git", "a git repository")]),
        ([b"code/.git/HEAD", b"code/.git/refs/HEAD"], [(b"code/.git", "a git repository")]),
        ([b"HEAD", b"docs/HEAD", b"x.git/HEAD"], []),
        ([b"n.db", b"n.db-wal", b"n.db-shm"], [(b"n.db", "an open SQLite database")]),
        ([b"d/n.db", b"d/n.db-journal"], [(b"d/n.db", "an open SQLite database")]),
        ([b"n.db"], []),
        ([b"my-journal", b"x-wal"], []),
        ([b"pg/PG_VERSION", b"pg/base/1/PG_VERSION"], [(b"pg", "a PostgreSQL database")]),
        ([b"my/ibdata1"], [(b"my", "a MySQL database")]),
        ([b"p/CURRENT", b"p/LOCK", b"p/MANIFEST-000001"], [(b"p", "a LevelDB database")]),
        ([b"p/CURRENT"], []),
    ],
)
def test_what_is_found(new: list[bytes], found: list[tuple[bytes, str]]) -> None:
    assert live_data(set(new)) == [Live(*one) for one in found]
    assert all("docs/howto/live-data.md" in warning(Live(*one)) for one in found)
