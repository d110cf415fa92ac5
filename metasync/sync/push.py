"""A push: scan, pack, store, agree, record; after a lost race, merge and go on (architecture.md, D4 and D5).

The order of things is what keeps data safe. Packs are stored on R backends, and the index segment that names them on
enough acceptors, side by side; only then the state that names the segment is proposed. A crash before that leaves packs
and segments that nothing names; a crash after it is a push that had taken place, and is found again by its operation
id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from metasync.consensus import JOURNAL_KEY, Change, Decided, State
from metasync.errors import BackendError, MetaSyncError, NoQuorumError, UsageError, WorkspaceError
from metasync.events import Phase
from metasync.keys.device_set import expired
from metasync.local import settings
from metasync.local.lock import GiveWay, Turns
from metasync.local.state_keys import CARRIED_KEY, CONFLICTS, KEPT_KEY, SHORT_KEY
from metasync.merge import guard
from metasync.objects.model import MESSAGE_BYTES_MAX
from metasync.reports.sync import Changes, PullReport, PushReport, Skipped, Trailing, together
from metasync.session import agreement, cache, health, space
from metasync.session.around import heeding
from metasync.session.folder import BASE_KEY, STATE_DIR
from metasync.session.session import Agreed, Session
from metasync.sync.no_change import Begun, keys_are_everywhere
from metasync.sync.packing import Packing, Reading
from metasync.sync.scanned import Here, push_report, scan_folder, walk
from metasync.transfer import late_copies, wrong_copies
from metasync.transfer.late_copies import TRAILING_KEY
from metasync.transfer.upload import Upload, forget_notes
from metasync.worktree.merge_walk import Walk
from metasync.worktree.overlay import Some, note_index_of
from metasync.worktree.scan import Scan, store_scan

ATTEMPTS_MAX = 200  # losing as often means that others never stop; each lost round another device's push went through
OP_ID_BYTES = 16
LAST_PACKS_S = 10.0  # for packs under way when a push fails: they are as good as stored, and 24 MiB at most


def run(
    s: Session,
    message: str,
    *,
    force: bool,
    durability: int | None,
    turns: Turns,
    begun: Begun | None,
) -> PushReport:
    """One turn of a push, with all that goes before and after it. `GiveWay`: another operation goes first.

    `durability`: of each pack as many copies are waited for; None: as many as are set on this device, else all.
    `turns` is the same for all turns. `begun`: see `push`.
    """
    least = _least_copies(s, durability)
    found_again = before(s)
    at_hand: dict[bytes, bytes] = {}
    try:
        turn = turns.begin(s.others_wait, s.runtime.clock)
        report = push(s, s.base(), message, force=force, least=least, at_hand=at_hand, turns=turn, begun=begun)
    except NoQuorumError:
        if s.config.has_blocks:
            from metasync.members import newcomers

            newcomers.ask_if_new(s)
        raise
    left = after(s, report.under_replicated, at_hand, wait=least is None)
    return replace(report, found_again=report.found_again or found_again, trailing=report.trailing or left)


def before(s: Session) -> int | None:
    """What comes before a push: an earlier one is settled, new devices are let in. -> the version it was agreed as."""
    found_again = agreement.settle_journal(s)
    if not s.config.logs_suffice:
        from metasync.members import newcomers

        newcomers.let_in(s)
    return found_again


def after(s: Session, short: int, at_hand: dict[bytes, bytes], *, wait: bool) -> tuple[Trailing, ...]:
    """What comes after a push: new devices, space, keys and copies are seen to. -> copies that are still to be made.

    `short`: packs of the push with fewer copies than promised; `at_hand`, `wait`: see `copy_on`.
    """
    if s.config.has_blocks:
        from metasync.members import newcomers

        newcomers.let_in(s, late=True)
    space.note_sent(s)
    space.put_back(s)
    if not keys_are_everywhere(s.db, s.newest_state().epoch):
        from metasync.members import key_copies

        key_copies.bring(s)
    if short:
        s.db.set(SHORT_KEY, (s.db.get(SHORT_KEY) or 0) + short)
    return copy_on(s, at_hand, wait=wait)


def copy_on(s: Session, at_hand: dict[bytes, bytes], *, wait: bool) -> tuple[Trailing, ...]:
    """Goes on with copies that are noted, in the background; `wait`: to their end, or until none can be made.

    `at_hand`: sealed packs by name. -> what is open: where it waited, what cannot be made now.
    """
    c = s.connections
    if c.copying is None and not s.db.has(TRAILING_KEY):
        return ()
    if late_copies.load(s.db) and not s.db.has(JOURNAL_KEY):
        late_copies.forget_unnamed(s.db, s.base().index)
    begun = late_copies.summary(late_copies.load(s.db).values(), s.names)
    c.copying = late_copies.go_on(c.copying, s.transfer, s.runtime, s.db, s.listener, at_hand)
    if not wait or c.copying is None:
        return begun
    c.copying.join(s.check)
    c.copying = None
    return late_copies.summary(late_copies.load(s.db).values(), s.names)


def _least_copies(s: Session, durability: int | None) -> int | None:
    """For how many of the promised copies a push waits, as asked for or else as set; None: for all.

    A setting that asks for more than are promised, as another number of backends may have it, asks for all.
    """
    copies = s.transfer.placement.copies
    if durability is None:
        kept_here = settings.read(s.directory / STATE_DIR / settings.FILE).values.get("durability")
        durability = min(int(kept_here), copies) if kept_here is not None else None
    return None if durability is None else late_copies.copies_to_wait_for(durability, copies)


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
    noted (`trailing`), and as many of the packs as memory allows are put into `at_hand`, by name.

    `turns`: `GiveWay` where it is to let another operation go first; the next push goes on with what this one did.

    `begun`: the no-change check that is still running; None if it was not begun. Its look goes on beside the scan.
    """
    text = message.encode("utf-8", "surrogateescape").decode("utf-8", "replace")  # an argument may be any bytes
    if (length := len(text.encode())) > MESSAGE_BYTES_MAX:
        raise UsageError(
            f"the message has {length:,} bytes; at most {MESSAGE_BYTES_MAX:,} fit", next_step="Shorten it."
        )
    report, upload = _Push(s, text, force, least, turns).run(base, begun)
    if at_hand is not None and upload is not None:
        at_hand.update(upload.at_hand)
    return report


class _Push:
    """One push, with what it carries from one attempt to the next. `turns`: who lets others go first."""

    def __init__(self, s: Session, message: str, force: bool, least: int | None, turns: Turns | None) -> None:
        self.s = s
        self.op_id = s.entropy(OP_ID_BYTES)
        self.message = message
        self.force = force
        self.least = least
        self.turns = turns
        self.pending = s.db.get(JOURNAL_KEY)
        self.found_again: int | None = None
        self.pulls: list[PullReport] = []
        self.packing = Packing(s, least, self.look, self._begin_storing, turns.chunks if turns is not None else {})
        self.proposing = False
        self.asked = True  # whether the state it is pushed on was looked for, or is known by having decided it
        self.ahead: Callable[[], State] | None = None  # a look for it that is under way
        self.news: Agreed | None = None  # what it came to while packs were made, if that is another state
        self.walked: Walk | None = None  # the folder, by `no_change`

    def run(self, base: Agreed, begun: Begun | None) -> tuple[PushReport, Upload | None]:
        s = self.s
        with heeding(s, self.yields):
            if begun is None:
                newest, self.asked = agreement.newest_or_own(s)
            elif (known := s.newest_state()).hash != base.state.hash:  # `no_change` has waited for it
                newest = s.load(known)
            else:
                newest, self.asked, self.ahead, self.walked = base, False, begun.look, begun.walk
        for _ in range(ATTEMPTS_MAX):
            if newest.state.hash != base.state.hash:
                base = self.catch_up(base, newest)
            try:
                outcome = self.attempt(base)
            except BaseException as e:
                self.packing.save(LAST_PACKS_S if isinstance(e, MetaSyncError) and not self.proposing else 0)
                if isinstance(e, GiveWay) and self.turns is not None:
                    e.save = lambda: self.packing.save(LAST_PACKS_S)
                    self.turns.chunks.update(self.packing.chunks)
                if isinstance(e, BackendError):
                    self._doubt_quorum()
                raise
            if isinstance(outcome, PushReport):
                return outcome, self.packing.end()
            newest = outcome
        raise WorkspaceError(
            f"others pushed {ATTEMPTS_MAX} times while this push was trying; nothing is lost, and nothing was pushed",
            next_step="Run again.",
        )

    def catch_up(self, base: Agreed, newest: Agreed) -> Agreed:
        """Brings the folder to a newer state. What is here and not agreed stays, and is merged."""
        from metasync.sync.pull import integrate, rebased

        base = self._find_again(rebased(self.s, base, newest), newest)
        if newest.state.master != base.state.master:
            self.pulls.append(integrate(self.s, base, newest, force=self.force, pushing=True, turns=self.yields))
        elif newest.state.hash != base.state.hash:
            self.s.db.set(BASE_KEY, newest.state)
        return newest

    def _find_again(self, base: Agreed, newest: Agreed) -> Agreed:
        """What the folder is at, once it is known what became of a push of this device that never learned its end."""
        journal = self.pending
        if journal is None or newest.state.v < journal.v:
            return base
        self.pending = None
        own = agreement.agreed_as(self.s, journal, newest.state) if journal.base.hash == base.state.hash else None
        if own is None:
            return base
        agreement.adopt(self.s, own)
        self.found_again = own.v
        return newest if own.hash == newest.state.hash else self.s.load(own)

    def attempt(self, base: Agreed) -> PushReport | Agreed:
        """One try on top of `base`. -> the report when it is agreed or nothing is to do, else the state that won."""
        s = self.s
        walked, self.walked = self.walked, None
        if walked is None:
            s.listener(Phase("scan"))
            with heeding(s, self.yields):
                walked = walk(s, base, s.around.hints())
        joins = not agreement.is_in(s, base.devices)
        staged = s.db.get(KEPT_KEY) or b""  # id of the snapshot of what merges replaced
        if walked.is_quiet and self.packing.upload is None and not staged and not joins:
            return self._news(base) or self._report(Scan(), None, Changes())
        upload = self.packing.upload_for(base)
        here = self.scan(base, walked, upload)
        nothing = not here.differing and not staged and not joins
        loss = guard.loss(here.before, Some(here.differing, here.seen.tree), s.around.gone())
        if (nothing or guard.stop("push", loss) is not None) and (news := self._news(base)) is not None:
            return news  # a commit of ours would have told
        guard.guard("push", loss, force=self.force)
        if nothing:
            upload.finish()
            return self._record_settled(base, here)
        if self.ahead is not None or self.news is not None:
            news = self._news(base)
            if news is not None and not _is_the_same_but_for_devices(base.state, news.state):
                return news
            if news is not None:
                base = news
                s.db.set(BASE_KEY, base.state)
        changes = here.changes
        tree_root, master = self.pack(base, here, upload, staged)
        change, odd = self.store(base, here, upload, master, joins=joins)
        decided = self.agree(base, change)
        if not decided.mine:
            self.asked, asked = True, self.asked
            return s.load(decided.state) if asked else agreement.newest(s)
        self.record(base, decided.state, here, upload, tree_root)
        s.around.counts(loss.net, forced=self.force)
        version = decided.state.v if master is not None else None
        return self._report_of(
            base, upload, replace(self._report(here.seen, version, changes), unportable=odd, live=here.live)
        )

    # --- the steps

    def scan(self, base: Agreed, walked: Walk, upload: Upload) -> Here:
        """Finds what differs here, and has the upload take what is read."""
        ingest = self.packing.ingest(base, upload)
        return scan_folder(self.s, walked, ingest, Reading(self.s, upload, ingest))

    def pack(self, base: Agreed, here: Here, upload: Upload, staged: bytes) -> tuple[bytes | None, bytes | None]:
        """Has the upload take all that a version of this tree consists of. -> ids of the tree's root and the snapshot.

        Neither, where only the device set changes.
        """
        tree_root = master = None
        if here.differing or staged:
            self.packing.complete(base, here, upload)
            tree_root, master = self.packing.add_trees(base, here, upload, self.message, staged)
        self.s.listener(Phase("upload"))
        upload.seal()
        return tree_root, master

    def store(
        self, base: Agreed, here: Here, upload: Upload, master: bytes | None, *, joins: bool
    ) -> tuple[Change, tuple[Skipped, ...]]:
        """Waits until packs, index and device set are stored, and prepares the agreement meanwhile.

        -> the change to propose, and new names that other systems cannot hold.
        """
        s, devices = self.s, None
        changes_devices = joins or expired(base.devices, base.state.v)
        new = upload.index_segments()
        with s.indexes.storing(base.state, base.root, base.segments, new, may_ride=not changes_devices) as stored:
            odd = here.unportable
            store_scan(s.db, here.seen)  # true of the disk whatever comes, and needed if we crash before the report
            upload.nearly_finish()
            s.listener(Phase("agree"))
            with agreement.preparing(s, base.state):
                if changes_devices:
                    from metasync.members.admission import changed_devices

                    devices = changed_devices(s, base.state, base.devices)
                upload.finish()
                refs = stored()
        if trails := upload.trails():
            late_copies.note(s.db, trails)  # before others may name them: nothing that is promised is forgotten
        index, adding = (refs[-1], tuple(refs[:-1])) if refs else (None, ())
        change = Change(op_id=self.op_id, master=master, index=index, devices=devices, adding=adding)
        return replace(change, index_rides=bool(refs.riding), riding=refs.riding), odd

    def agree(self, base: Agreed, change: Change) -> Decided:
        self._doubt_quorum()
        self.proposing = True  # from here on others may name the packs: the journal knows of them
        return agreement.propose(self.s, base.state, change)

    def _doubt_quorum(self) -> None:
        """Where a store was emptied it is not taken for granted that a quorum is left. `NoQuorumError`."""
        if self.s.transfer.strange and not self.asked:
            agreement.ask_newest(self.s)

    def record(self, base: Agreed, state: State, here: Here, upload: Upload, tree_root: bytes | None) -> None:
        """Notes what was agreed, and tells the others meanwhile."""
        s, seen = self.s, here.seen
        with agreement.telling(s, base.state, state), s.db.transaction():
            s.db.delete_rows([p for p in seen.deleted if p not in seen.tree])
            if s.db.count_records(CONFLICTS):
                from metasync.sync.sides import forget_gone

                forget_gone(s)
            s.db.set(BASE_KEY, state)
            s.db.set(JOURNAL_KEY, None)
            forget_notes(s.db)
            wrong_copies.note(s.db, self._short_packs(upload))
            s.db.set(CARRIED_KEY, upload.carry() or None)
            agreement.drop_kept(s)
            if tree_root is not None:
                agreement.note_replaced(s, seen.tree)
                note_index_of(s.db, tree_root, seen.tree, here.touched)
            if base.config.prev_config is None:
                cache.let_go(s.db, base.state, state)

    def _record_settled(self, base: Agreed, here: Here) -> PushReport:
        """Notes that the folder is what is agreed."""
        s, seen = self.s, here.seen
        with s.db.transaction():
            store_scan(s.db, seen)
            if base.tree_root is not None:
                note_index_of(s.db, base.tree_root, seen.tree, here.touched)
        return self._report(seen, None, Changes())

    # --- what they need

    @property
    def yields(self) -> Turns | None:
        """Who lets others of this folder go first: nobody any more once a proposal is on its way."""
        return None if self.proposing else self.turns

    def look(self) -> None:
        """`GiveWay` where others are to go first."""
        if self.yields is not None:
            self.yields.look()

    def _news(self, base: Agreed) -> Agreed | None:
        """A newer state than `base`, looked for where that was not done yet: here it matters what others did."""
        if not self.asked:
            ahead, self.asked, self.ahead = self.ahead, True, None
            with heeding(self.s, self.yields):
                newest = agreement.newest(self.s) if ahead is None else self.s.load(agreement.told(self.s, ahead))
            self.news = newest if newest.state.hash != base.state.hash else None
        news, self.news = self.news, None
        return news

    def _begin_storing(self, base: Agreed) -> Callable[[], None]:
        """Asks for the backends' space and births while the first pack is made; it waits for the answers."""
        s = self.s
        checked = health.begin_checking_unheard(s) if self.ahead is None else None
        told = space.begin_asking(s, base.index)

        def before_the_first_pack() -> None:
            if self.ahead is not None:
                self.news = self._news(base)  # nothing is stored before a quorum was seen
            ailing = health.begin_checking_unheard(s)() if checked is None else checked()
            if ailing and not self.asked:
                agreement.ask_newest(s)  # with backends ailing it is not taken for granted that a quorum is left
            told()

        return before_the_first_pack

    def _report(self, seen: Scan, version: int | None, changes: Changes) -> PushReport:
        pulled = together(self.pulls) if self.pulls else None
        return replace(push_report(self.s, seen, version, changes), pulled=pulled, found_again=self.found_again)

    def _short_packs(self, upload: Upload) -> list[bytes]:
        """Names of the packs that found fewer places than copies are promised; not of those that trail."""
        return [p.record.name for p in upload.stored if len(p.holders) < p.copies] if self.least is None else []

    def _report_of(self, base: Agreed, upload: Upload, report: PushReport) -> PushReport:
        """The same with what was stored."""
        policy, trails = base.config.policy(0), upload.trails()
        return replace(
            report,
            packs=len(upload.stored),
            bytes_stored=upload.bytes_stored,
            copies=policy.copies,
            under_replicated=len(self._short_packs(upload)),
            trailing=late_copies.summary(trails, self.s.names) if trails else (),
            elsewhere=sum(p.elsewhere and len(p.holders) >= p.copies for p in upload.stored),
            down={**{name: e.message for name, e in upload.transfer.down.items()}, **self.s.down},
        )


def _is_the_same_but_for_devices(base: State, news: State) -> bool:
    """Whether what was packed for `base` may be agreed on top of `news` as it is."""
    same = ("era", "master", "config", "index", "retained", "epoch", "gen", "min_gen")
    return all(getattr(base, name) == getattr(news, name) for name in same)
