"""A push: scan, pack, store, agree; when another was faster, merge and go on (architecture.md, D4 and D5).

The order of things is what keeps data safe. Packs are stored on R backends, and the index segment that names them on
enough acceptors, side by side; only then the state that names the segment is proposed. A crash before that leaves packs
and segments that nothing names; a crash after it is a push that had taken place, and is found again by its operation
id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

from metasync.codec import amount, u64
from metasync.config import Replicate
from metasync.consensus import JOURNAL_KEY, Change, Journal, State
from metasync.errors import MetaSyncError, UsageError, WorkspaceError
from metasync.events import Notice, Phase
from metasync.local.lock import GiveWay, Turns
from metasync.local.spill import Large
from metasync.local.state_keys import CARRIED_KEY, KEPT_KEY
from metasync.members import admission
from metasync.merge import guard
from metasync.objects import walk
from metasync.objects.model import MESSAGE_BYTES_MAX, Entry, Kind, ObjectKind, Snapshot
from metasync.objects.paths import split
from metasync.objects.snapshot import encode_snapshot
from metasync.reports.sync import Changes, PullReport, PushReport, Skipped
from metasync.session import health, space
from metasync.session.agreement import BASE_KEY
from metasync.session.eras import rebased
from metasync.session.session import Agreed, Session
from metasync.session.write_index import storing_index
from metasync.sync.no_change import Begun
from metasync.sync.pull import integrate, noted, summary, summary_of_new
from metasync.transfer import late_copies
from metasync.transfer import resume as kept
from metasync.transfer.upload import Upload, known_in
from metasync.worktree.disk import READ_FLAGS
from metasync.worktree.index import Row, store_rows
from metasync.worktree.ingest import Ingest
from metasync.worktree.merge_walk import Walk, walk_folder, walk_index
from metasync.worktree.names import unportable
from metasync.worktree.overlay import Some, changed, note_index_of
from metasync.worktree.scan import Scan, scan, store_scan

ATTEMPTS_MAX = 200  # losing as often means that others never stop; each lost round another device's push went through
OP_ID_BYTES = 16
LAST_PACKS_S = 10.0  # for packs under way when a push fails: they are as good as stored, and 24 MiB at most
NODES_TOGETHER = 200  # of a tree that are stored here at a time: up to 25 MB, 64 KB each as a rule
VERSION_TAG = 1  # of a snapshot: the version it was agreed as


@dataclass
class _Attempts:
    """What a push carries from one attempt to the next."""

    op_id: bytes
    message: str
    force: bool
    pending: Journal | None = None
    found_again: int | None = None
    pulls: list[PullReport] = field(default_factory=list)
    upload: Upload | None = None
    notes: kept.Notes | None = None
    least: int | None = None  # copies of each pack that the commit waits for; None: all that are promised
    proposing: bool = False
    asked: bool = True  # whether the state it is pushed on was looked for, or is known by having decided it
    ahead: Callable[[], State] | None = None  # a look for it that is under way
    news: Agreed | None = None  # what it came to while packs were made, if that is another state
    walked: Walk | None = None  # the folder, by `quiet`
    chunks: dict[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    turns: Turns | None = None  # who lets others go first

    def look(self) -> None:
        """`GiveWay` where others of this folder are to go first: not any more once a proposal is on its way."""
        if self.turns is not None and not self.proposing:
            self.turns.look()

    def save(self, wait_s: float) -> None:
        """Notes what is stored, for the next push to go on with; waits so long for what is under way."""
        if self.upload is not None and self.notes is not None:
            self.upload.save(wait_s)
            self.notes.flush()

    def pulled(self) -> PullReport | None:
        """All merges of this push as one report."""
        if not self.pulls:
            return None
        first, last = self.pulls[0], self.pulls[-1]
        return PullReport(
            before=first.before,
            version=last.version,
            changes=Changes(
                *(tuple(sorted({p for r in self.pulls for p in getattr(r.changes, k)}))
                  for k in ("added", "modified", "deleted"))
            ),
            conflicts=tuple(c for r in self.pulls for c in r.conflicts),
            merged=tuple(sorted({p for r in self.pulls for p in r.merged})),
            warnings=last.warnings,
            unplaced=last.unplaced,
        )  # fmt: skip


@dataclass(frozen=True)
class _Read:
    """Tells the upload what the scan is going to read, and keeps what it has read if that is all it comes to."""

    s: Session
    upload: Upload
    ingest: Ingest

    def begins(self, size_bytes: int, files: int) -> None:
        self.upload.reserve(files)
        self.upload.expect(size_bytes, lambda: self.ingest.bytes_read)

    def broken_off(self, rows: Iterable[tuple[bytes, Row]]) -> None:
        with suppress(WorkspaceError):  # then it is read again
            store_rows(self.s.db, rows)


def push(
    s: Session,
    base: Agreed,
    message: str,
    *,
    force: bool = False,
    least: int | None = None,
    at_hand: dict[bytes, bytes] | None = None,
    turns: Turns | None = None,
    begun: Begun | None = None,
) -> PushReport:
    """Pushes what changed here on top of the newest state; merges whatever is agreed meanwhile.

    `GuardError`, unless `force`: most of the agreed files, or in a merge most of those here, would be deleted. Neither
    the folder nor what is agreed was changed then; packs that were stored meanwhile are named by nothing, as after a
    crash.

    `least`: copies of each pack that are stored before it is agreed, of those promised; None: all. What is missing is
    noted (`transfer.late_copies`), and as many of the packs as memory allows are put into `at_hand`, by name.

    `turns`: `GiveWay` where it is to let another operation go first; the next push goes on with what this one did.

    `begun`: what `quiet` has begun, and not found to be nothing. Its look for news goes on beside the scan.
    """
    pending = s.db.get(JOURNAL_KEY)
    text = message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # an argument may be any bytes
    if (length := len(text.encode())) > MESSAGE_BYTES_MAX:
        raise UsageError(
            f"the message has {length:,} bytes; at most {MESSAGE_BYTES_MAX:,} fit", next_step="Shorten it."
        )
    a = _Attempts(s.entropy(OP_ID_BYTES), text, force, pending, least=least, turns=turns)
    if begun is None:
        newest, a.asked = s.newest_or_own()
    elif (known := s.newest_state()).hash != base.state.hash:  # `quiet` has waited for it
        newest = s.load(known)
    else:
        newest, a.asked, a.ahead, a.walked = base, False, begun.look, begun.walk
    if turns is not None:
        a.chunks.update(turns.chunks)
    for _ in range(ATTEMPTS_MAX):
        base = rebased(s, base, newest)
        if newest.state.hash != base.state.hash:
            base = _found_again(s, base, newest, a)
            if newest.state.hash == base.state.hash:
                pass
            elif newest.state.master != base.state.master:
                a.pulls.append(integrate(s, base, newest, force=force, pushing=True))
            else:
                s.db.set(BASE_KEY, newest.state)
            base = newest
        try:
            outcome = _attempt(s, base, a)
        except BaseException as e:
            a.save(LAST_PACKS_S if isinstance(e, MetaSyncError) and not a.proposing else 0)
            if isinstance(e, GiveWay) and turns is not None:
                e.save = lambda: a.save(LAST_PACKS_S)
                turns.chunks.update(a.chunks)
            raise
        if isinstance(outcome, PushReport):
            if at_hand is not None and a.upload is not None:
                at_hand.update(a.upload.at_hand)
            return outcome
        newest = outcome
    raise WorkspaceError(
        f"others pushed {ATTEMPTS_MAX} times while this push was trying; nothing is lost, and nothing was pushed",
        next_step="Run again.",
    )


def _found_again(s: Session, base: Agreed, newest: Agreed, a: _Attempts) -> Agreed:
    """What the folder is at, once it is known what became of a push of this device that never learned its end."""
    journal = a.pending
    if journal is None or newest.state.v < journal.v:
        return base
    a.pending = None
    own = s.agreed_as(journal, newest.state) if journal.base.hash == base.state.hash else None
    if own is None:
        return base
    s.adopt(own)
    a.found_again = own.v
    return newest if own.hash == newest.state.hash else s.load(own)


def preview(s: Session, base: Agreed) -> PushReport:
    """What a push would take, without storing anything."""
    s.listener(Phase("scan"))
    seen = scan(_walk(s, base), s.ingest())
    before, differing = seen.base, changed(seen.tree)
    changes = summary((p, before.get(p), seen.tree.get(p)) for p in differing)
    stop = guard.stop("push", guard.loss(before, {p: seen.tree.get(p) for p in differing}))
    files = [seen.tree[p].size for p in (*changes.added, *changes.modified) if seen.tree[p].kind is Kind.FILE]
    size = sum(files)
    shares = space.shares_of(s, size)
    policy = base.config.policy(0)
    odd = _unportable((p for p in differing if p not in before), seen)
    report = _report(s, seen, None, changes)
    report = replace(
        report,
        files_to_read=len(files),
        size_to_read=size,
        to_send=shares,
        copies=policy.copies if isinstance(policy, Replicate) else policy.total,
        unportable=odd,
        tight=space.tight(s, base.index, shares),
    )
    return report if stop is None else replace(report, warnings=(*report.warnings, guard.warning(stop)))


def _unportable(new: Iterable[bytes], seen: Scan) -> tuple[Skipped, ...]:
    if isinstance(seen.tree.put, Large) and not seen.base:
        return noted(unportable(new, seen.tree.put, ascending=True))
    fresh = list(new)
    return noted(unportable(fresh, seen.tree.near(fresh)))


def _report(s: Session, seen: Scan, version: int | None, changes: Changes) -> PushReport:
    """A report with what the scan left out."""
    return PushReport(
        version,
        changes,
        busy=noted((p, "changed while it was read") for p in seen.busy),
        unreadable=noted(seen.unreadable),
        skipped=noted(seen.skipped),
        down=dict(s.down),
        warnings=tuple(seen.warnings),
    )


def _walk(s: Session, base: Agreed) -> Walk:
    """A walk of the folder, beside the index alone if that is the agreed tree."""
    return walk_index(s.tree, s.db, base.tree_root) or walk_folder(s.tree, s.db, s.flat(base))


def _news(s: Session, base: Agreed, a: _Attempts) -> Agreed | None:
    """A newer state than `base`, looked for where that was not done yet: here it matters what others did."""
    if not a.asked:
        ahead, a.asked, a.ahead = a.ahead, True, None
        newest = s.newest() if ahead is None else s.load(s.told(ahead))
        a.news = newest if newest.state.hash != base.state.hash else None
    news, a.news = a.news, None
    return news


def _upload_of(s: Session, base: Agreed, a: _Attempts) -> Upload:
    """What stores for this attempt: that of the one before, as far as what it stored may be named on top of `base`."""
    moved = a.upload is not None and not a.upload.transfer.is_alike(s.transfer)  # others changed the backends meanwhile
    if a.upload is None or moved or not a.upload.counting(base.state.min_gen, base.state.epoch):
        notes = a.notes = kept.Notes(s.db, base.state.config, base.state.gen, base.state.epoch, s.runtime.clock)
        a.upload = Upload(
            s.transfer,
            replace(s.form, epoch=base.state.epoch),
            base.state.gen,
            runner=s.runtime,
            listener=s.listener,
            entropy=s.entropy,
            begin=lambda: _begin_storing(s, base, a),
            carried=s.db.get(CARRIED_KEY) or b"",
            least=a.least,
            noted=notes.add,
            look=a.look,
        )
        packs, size = a.upload.resume(notes.load(base.index))
        if packs:
            s.listener(
                Notice(f"going on with {packs:,} {'pack' if packs == 1 else 'packs'} ({amount(size)}) stored before")
            )
    return a.upload


def _attempt(s: Session, base: Agreed, a: _Attempts) -> PushReport | Agreed:
    """One try on top of `base`: the report when it is agreed (or nothing is to be done), else the state that won."""
    walked, a.walked = a.walked, None
    if walked is None:
        s.listener(Phase("scan"))
        walked = _walk(s, base)
    joins = not admission.admitted(s, base.devices)
    if walked.is_quiet and a.upload is None and not s.db.has(KEPT_KEY) and not joins:
        return _news(s, base, a) or replace(
            _report(s, Scan(), None, Changes()), pulled=a.pulled(), found_again=a.found_again
        )
    upload = _upload_of(s, base, a)
    ingest = s.ingest(sink=upload.add, known=_looking(known_in(base.index, upload), a))
    ingest.chunks = a.chunks
    seen = scan(walked, ingest, _Read(s, upload, ingest))
    before, differing = seen.base, changed(seen.tree)
    staged = s.db.get(KEPT_KEY) or b""
    loss = guard.loss(before, Some(differing, seen.tree))
    nothing = not differing and not staged and not joins
    if (nothing or guard.stop("push", loss) is not None) and (news := _news(s, base, a)) is not None:
        return news  # a commit of ours would have told
    guard.guard("push", loss, force=a.force)
    if nothing:
        upload.finish()
        with s.db.transaction():
            store_scan(s.db, seen)
            if base.tree_root is not None:
                note_index_of(s.db, base.tree_root, seen.tree, _touched(walked, seen))
        return replace(_report(s, seen, None, Changes()), pulled=a.pulled(), found_again=a.found_again)
    if a.ahead is not None or a.news is not None:
        news = _news(s, base, a)
        if news is not None and not _is_the_same_but_for_devices(base.state, news.state):
            return news
        if news is not None:
            base = news
            s.db.set(BASE_KEY, base.state)
    changes = (
        summary((p, before.get(p), seen.tree.get(p)) for p in differing) if before else summary_of_new(seen.tree.put)
    )
    tree_root = master = None
    if differing or staged:
        _complete(s, base, a, seen, before, differing)
        tree_root, master = _add_trees(s, base, a, seen, differing, staged)
    s.listener(Phase("upload"))
    upload.seal()
    with storing_index(s, base, upload) as stored:
        fresh = seen.tree.put if not before else (p for p in differing if p in seen.tree and p not in before)
        odd = _unportable(fresh, seen)
        store_scan(s.db, seen)  # true of the disk whatever comes, and needed if we crash before the report
        upload.nearly_finish(s.runtime.clock)
        s.listener(Phase("agree"))
        with s.preparing(base.state):
            devices = admission.changed_devices(s, base.state, base.devices)
            upload.finish()
            stored_as = stored()
    late_copies.note(s.db, upload.trails())  # before others may name them: nothing that is promised is forgotten
    a.proposing = True  # from here on others may name the packs: the journal knows of them
    root = stored_as[-1] if stored_as else None
    change = Change(op_id=a.op_id, master=master, index=root, devices=devices, adding=tuple(stored_as[:-1]))
    decided = s.propose(base.state, change)
    if not decided.mine:
        a.asked, asked = True, a.asked
        return s.load(decided.state) if asked else s.newest()
    with s.telling(base.state, decided.state), s.db.transaction():
        s.db.delete_rows([p for p in seen.deleted if p not in seen.tree])
        s.db.set(BASE_KEY, decided.state)
        s.db.set(JOURNAL_KEY, None)
        kept.forget(s.db)
        s.db.set(CARRIED_KEY, upload.carry() or None)
        s.drop_kept()
        if master is not None:
            s.note_replaced(seen.tree)
        if tree_root is not None:
            note_index_of(s.db, tree_root, seen.tree, _touched(walked, seen))
    policy = base.config.policy(0)
    return replace(
        _report(s, seen, decided.state.v if master is not None else None, changes),
        pulled=a.pulled(),
        packs=len(upload.stored),
        bytes_stored=upload.bytes_stored,
        copies=policy.copies if isinstance(policy, Replicate) else policy.total,
        under_replicated=0 if a.least is not None else sum(len(p.holders) < p.copies for p in upload.stored),
        trailing=late_copies.summary(upload.trails(), s.names),
        elsewhere=sum(p.elsewhere and len(p.holders) >= p.copies for p in upload.stored),
        found_again=a.found_again,
        down={**{name: e.message for name, e in upload.transfer.down.items()}, **s.down},
        unportable=odd,
    )


def _touched(walked: Walk, seen: Scan) -> set[bytes] | None:
    """Paths at which the rows may not be the tree any more; None: they were not the agreed tree."""
    return {*seen.tree.put, *seen.tree.gone, *seen.put_rows, *seen.delete_rows} if walked.is_settled else None


def _looking(known: Callable[[bytes], bool], a: _Attempts) -> Callable[[bytes], bool]:
    """`known`, which is asked for every piece that is read, so that others are seen meanwhile."""

    def look_and_ask(object_id: bytes) -> bool:
        a.look()
        return known(object_id)

    return look_and_ask if a.turns is not None else known


def _is_the_same_but_for_devices(base: State, news: State) -> bool:
    """Whether what was packed for `base` may be agreed on top of `news` as it is."""
    same = ("era", "master", "config", "index", "retained", "epoch", "gen", "min_gen")
    return all(getattr(base, name) == getattr(news, name) for name in same)


def _begin_storing(s: Session, base: Agreed, a: _Attempts) -> Callable[[], None]:
    """Asks for the backends' space and births while the first pack is made; it waits for the answers."""
    checked = health.begin_checking_unheard(s) if a.ahead is None else None
    told = space.begin_asking(s, base.index)

    def before_the_first_pack() -> None:
        if a.ahead is not None:
            a.news = _news(s, base, a)  # nothing is stored before a quorum was seen
        ailing = health.begin_checking_unheard(s)() if checked is None else checked()
        if ailing and not a.asked:
            s.ask_newest()  # with backends ailing it is not taken for granted that a quorum is left
        told()

    return before_the_first_pack


def _complete(
    s: Session, base: Agreed, a: _Attempts, seen: Scan, before: Mapping[bytes, Entry], differing: Iterable[bytes]
) -> None:
    """Reads files whose bytes were named by an earlier scan and are stored nowhere yet."""
    assert a.upload is not None
    known = known_in(base.index, a.upload)

    def is_stored(entry: Entry) -> bool:
        pieces = (entry.content,) if not entry.root else (entry.root, *a.chunks.get(entry.root, ()))
        return (not entry.root or entry.root in a.chunks or entry.root in base.index) and all(map(known, pieces))

    # Where nothing was agreed these are all, and one by one they cost more.
    found = ((p, seen.tree.get(p)) for p in differing) if before else seen.tree.put.items()
    unstored = {p: e for p, e in found if e is not None and e.kind is Kind.FILE and e.size and not is_stored(e)}
    if not unstored:
        return
    ingest = s.ingest(sink=a.upload.add, known=_looking(known, a))
    ingest.chunks = a.chunks
    a.upload.expect(sum(entry.size for entry in unstored.values()), lambda: ingest.bytes_read)
    for path, entry in unstored.items():
        if not is_stored(entry) and not reread(s, path, entry, ingest):
            was = before.get(path)
            seen.busy.append(path)
            seen.put_rows.pop(path, None)
            if was is None:
                del seen.tree[path]
            else:
                seen.tree.revert(path)


def reread(s: Session, path: bytes, entry: Entry, ingest: Ingest) -> bool:
    """Reads a file again to store it; False when it is not what the scan named."""
    parent, name = split(path)
    disk = s.tree.disk
    try:
        fd = disk.open(name, READ_FLAGS, s.tree.dir(parent))
    except OSError:
        return False
    try:
        return tuple(ingest(fd, disk.fstat(fd))) == (entry.size, entry.content, entry.root)
    except OSError:
        return False
    finally:
        disk.close(fd)


def _add_trees(
    s: Session, base: Agreed, a: _Attempts, seen: Scan, differing: Iterable[bytes], kept: bytes
) -> tuple[bytes, bytes]:
    """Stores the directories, what merges left behind, and the snapshot; returns the ids of the root and of that."""
    assert a.upload is not None
    upload, known = a.upload, known_in(base.index, a.upload)
    if base.tree_root is None or base.state.era:  # after a new start what else is there is made sure of, too
        nodes = walk.build_nodes(seen.tree.ascending(), s.ids)
    else:
        nodes = iter(s.contents(base).walk(walk.rebuild(base.tree_root, seen.tree, differing, s.ids))[1].items())
    root = b""
    while some := list(islice(nodes, NODES_TOGETHER)):
        root = some[-1][0]
        for object_id, data in some:
            if not known(object_id):
                upload.add(ObjectKind.DIR, object_id, data)
        s.db.put_objects((i, int(ObjectKind.DIR), data) for i, data in some if i not in base.index)
    for object_id, kind, data in s.db.staged():
        if not known(object_id):
            upload.add(ObjectKind(kind), object_id, data)
    parents = [base.state.master] if base.snapshot is not None else []
    parents += [kept] if kept else []
    tags = ((VERSION_TAG, u64(base.state.v + 1)),)
    data = encode_snapshot(Snapshot(root, tuple(parents), s.device.device_id, s.wall_ns(), a.message, tags))
    snapshot_id = s.ids.of(ObjectKind.SNAPSHOT, data)
    upload.add(ObjectKind.SNAPSHOT, snapshot_id, data)
    s.db.put_objects([(snapshot_id, int(ObjectKind.SNAPSHOT), data)])
    return root, snapshot_id
