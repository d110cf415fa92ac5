"""Whether there is anything to do at all: what most pushes and pulls find, at the cost of one look.

Asked for what is new, beside the walk through the folder, and with little more loaded than that takes. Whatever is out
of the ordinary is left to `push` and `pull`, which say more than "nothing".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from metasync.consensus import ZERO_HASH
from metasync.events import Phase
from metasync.keys.device_set import decode_device_set
from metasync.keys.keyring import FIRST_EPOCH
from metasync.local.state_keys import (
    ERA_KEY,
    GIVEN_UP_KEY,
    INODES_KEY,
    INVITED_KEY,
    JOURNAL_KEY,
    KEPT_KEY,
    KEY_COPIES_KEY,
    PLAN_KEY,
    REPLACED,
    TRAILING_KEY,
    UNFINISHED_KEY,
    KeyCopies,
)
from metasync.objects.model import Ids, ObjectKind, decode_snapshot
from metasync.reports.sync import Changes, PullReport, PushReport
from metasync.runtime.sizes import SMALL_BYTES_MAX
from metasync.session import agreement
from metasync.session.session import Session
from metasync.worktree.merge_walk import Walk, walk_index, walk_nothing, walk_rows

if TYPE_CHECKING:
    from metasync.consensus import State
    from metasync.local.state import LocalDb
    from metasync.worktree.tree import WorkTree


SMALL_FILES_MAX: Final = 64  # that are read for a push which begins with its proposal
_OF_A_PUSH: Final = (JOURNAL_KEY, UNFINISHED_KEY, KEPT_KEY, TRAILING_KEY, GIVEN_UP_KEY)
_TO_GO_ON_WITH: Final = (*_OF_A_PUSH, PLAN_KEY, INODES_KEY)


class Begun(NamedTuple):
    """A push that has something to do, or may have.

    `look`: its look for news, which is under way or has ended (`agreement.looking`); None: this process decided the
    newest version itself, and holds the next one's first round. `walk`: if it has been made.
    """

    look: Callable[[], State] | None
    walk: Walk | None


def may_be(s: Session) -> bool:
    """False when there is something to do whatever the others did: an earlier operation left it, say."""
    known = s.newest_state()
    quiet = known.hash == s.base_state().hash and not s.db.has(ERA_KEY) and not s.db.has(INVITED_KEY)
    return quiet and s.config.logs_suffice and nothing_left(s.db, s.tree, known.epoch)


def push(s: Session, looks: Sequence[Callable[[], State]]) -> PushReport | Begun:
    """What a push reports that finds nothing changed, here or elsewhere; else what it is to go on with.

    `looks`: the look that is under way, if one was begun before the walk or meanwhile. Where nothing has changed here
    it is waited for; if there is none, it is begun then. `NoQuorumError`. Where the program looks for news by itself
    (`Session.around`), nobody is asked.
    """
    base = s.base_state()
    root = _tree_root(s, base)
    if root is None or not _is_in(s, base):
        return Begun(next(iter(looks), None), None)
    s.listener(Phase("scan"))
    walk = walk_index(s.tree, s.db, root, s.around.hints())
    look = next(iter(looks), None)
    if walk is None or not walk.is_quiet:
        return Begun(look, walk)
    if s.around.looks:
        return PushReport(None, Changes())
    if (agreement.ask_newest(s) if look is None else agreement.told(s, look)).hash != base.hash:
        return Begun(look, walk)
    return PushReport(None, Changes(), down=dict(s.down))


def push_let_in(s: Session) -> PushReport | None:
    """What a push reports that a pull of this program let in, where nothing has changed here: it leaves the news to it.

    What the pull has staged stays as it is. None when in doubt: the news may be of another era, or a skip, after which
    what is here counts as new.
    """
    if not _is_left_to_pull(s):
        return None
    s.listener(Phase("scan"))
    return PushReport(None, Changes()) if is_as_agreed(s) else None


def push_beside_checkout(s: Session) -> PushReport | None:
    """The same while that pull changes the folder, which was as agreed before: it is as the rows say now."""
    if not _is_left_to_pull(s):
        return None
    s.listener(Phase("scan"))
    return PushReport(None, Changes()) if walk_rows(s.tree, s.db, s.around.hints()).is_quiet else None


def _is_left_to_pull(s: Session) -> bool:
    """Whether a push that a pull let in may leave the news to it, and nothing but changes here is to be pushed."""
    base, known = s.base_state(), s.newest_state()
    if (known.era, known.epoch, known.devices) != (base.era, base.epoch, base.devices) or not s.config.logs_suffice:
        return False
    if any(s.db.has(key) for key in (*_OF_A_PUSH, ERA_KEY, INVITED_KEY)) or s.db.count_records(REPLACED):
        return False
    return _is_in(s, base) and keys_are_everywhere(s.db, known.epoch)


def is_as_agreed(s: Session) -> bool:
    """Whether a walk finds the folder as its version has it. Where it was not so at the walk before, in doubt False."""
    base = s.base_state()
    if base.master == ZERO_HASH:
        walk = walk_nothing(s.tree, s.db, s.around.hints())
    else:
        root = _tree_root(s, base)
        walk = walk_index(s.tree, s.db, root, s.around.hints()) if root is not None else None
    return walk is not None and walk.is_quiet


def is_small(walk: Walk | None) -> bool:
    """Whether what a walk found is stored about as soon as others hear of it: nobody is held up by a proposal that
    begins before that."""
    return walk is not None and len(walk.unread) <= SMALL_FILES_MAX and walk.unread.size_bytes <= SMALL_BYTES_MAX


def pull(s: Session, look: Callable[[], State]) -> PullReport | None:
    """The same for a pull, for which it does not matter what has changed here."""
    base = s.base_state()
    if agreement.told(s, look).hash != base.hash or s.db.unplaced():
        return None
    return PullReport(base.v, base.v, down=dict(s.down))


def _tree_root(s: Session, state: State) -> bytes | None:
    """The root of a state's tree, where the local cache holds its snapshot."""
    data = s.db.get_object(state.master) if state.master != ZERO_HASH else None
    if data is None or Ids(s.keys.id_key).of(ObjectKind.SNAPSHOT, data) != state.master:
        return None
    return decode_snapshot(data).root


def _is_in(s: Session, state: State) -> bool:
    """Whether this device is one of a state's, as far as the local cache knows."""
    data = s.db.get_object(state.devices)
    return data is not None and decode_device_set(data, s.keys.ns_id, known=True).get(s.device.device_id) is not None


def nothing_left(db: LocalDb, tree: WorkTree, epoch: int) -> bool:
    """True when no earlier operation left anything that the next one begins with, or ends with.

    `epoch`: of the newest state that this device knows. When in doubt, there is something.
    """
    if any(db.has(key) for key in _TO_GO_ON_WITH) or db.count_records(REPLACED):
        return False
    return keys_are_everywhere(db, epoch) and not tree.disk.names(tree.state_dir(b"tmp"))


def keys_are_everywhere(db: LocalDb, epoch: int) -> bool:
    """True when all backends were seen to hold the keyring and slots of this key epoch."""
    known = db.get(KEY_COPIES_KEY) or KeyCopies(0 if db.has(KEY_COPIES_KEY) else FIRST_EPOCH, {})
    return known == (epoch, {})
