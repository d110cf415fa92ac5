"""When a push or a pull may say, by what is known here alone, that nothing is to be done; in doubt, something is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from workspace_kit import Lab, write

from metasync.local.state_keys import INVITED_KEY, KEY_COPIES_KEY, REPLACED, KeyCopies, ReplacedFile
from metasync.objects.model import ObjectKind
from metasync.session.folder import ERA_KEY
from metasync.session.session import Session
from metasync.sync import no_change


@pytest.fixture
def s(lab: Lab) -> Iterator[Session]:
    """A folder that is as agreed."""
    w = lab.init(lab.urls("a"))
    write(w.directory, {"f": b"1"})
    w.push()
    w.push()
    with w._session("test") as session:
        assert no_change.may_be(session)
        yield session


def test_what_an_operation_left_is_something_to_do(s: Session) -> None:
    for key in no_change._TO_GO_ON_WITH:
        s.db.set_value(key.name, b"left")
        assert not no_change.may_be(s), key.name
        s.db.set_value(key.name, None)
    s.db.put_records(REPLACED, [ReplacedFile(1, b"f", b"c" * 32)])
    assert not no_change.may_be(s)
    s.db.delete_records(REPLACED, [1])
    assert no_change.may_be(s)


@pytest.mark.parametrize("key", [ERA_KEY.name, INVITED_KEY.name])
def test_another_era_and_an_invitation_are_something_to_do(s: Session, key: str) -> None:
    s.db.set_value(key, b"there")
    assert not no_change.may_be(s)


def test_a_version_that_is_known_and_not_here_is_something_to_do(s: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    newer = replace(s.base_state(), v=99)
    monkeypatch.setattr(Session, "newest_state", lambda self: newer)
    assert not no_change.may_be(s)


def test_keys_that_may_be_missing_somewhere_are_something_to_do(s: Session) -> None:
    """A damaged note says nothing: not even in the first epoch."""
    s.db.set_value(KEY_COPIES_KEY.name, b"damaged")
    assert not no_change.keys_are_everywhere(s.db, 1)
    s.db.set(KEY_COPIES_KEY, None)
    assert no_change.keys_are_everywhere(s.db, 1)
    assert not no_change.keys_are_everywhere(s.db, 2)
    s.db.set(KEY_COPIES_KEY, KeyCopies(2, {}))
    assert no_change.keys_are_everywhere(s.db, 2)


def test_a_snapshot_is_the_one_that_the_state_names(s: Session) -> None:
    """A damaged copy in the local state vouches for no tree."""
    base = s.base()
    assert no_change._tree_root(s, base.state) == base.tree_root
    data = s.db.get_object(base.state.master)
    assert data is not None
    s.db._execute("DELETE FROM objects")  # type: ignore[attr-defined]
    assert no_change._tree_root(s, base.state) is None
    s.db.put_objects([(base.state.master, int(ObjectKind.SNAPSHOT), data[:-1] + bytes([data[-1] ^ 1]))])
    assert no_change._tree_root(s, base.state) is None


def test_only_a_device_of_the_state_pushes(lab: Lab) -> None:
    one = lab.init(lab.urls("a"))
    one.push()
    with one._session("test") as s:
        before = s.base_state()
        devices = s.db.get_object(before.devices)
    assert devices is not None
    two = lab.clone(lab.urls("a"))
    with two._session("test") as s:
        assert no_change._is_in(s, s.base_state())
        s.db.put_objects([(before.devices, 0, devices)])
        assert not no_change._is_in(s, before)
        s.db._execute("DELETE FROM objects")  # type: ignore[attr-defined]
        assert not no_change._is_in(s, s.base_state())
