"""More broken rules, as in `mutants`: what collects packs, moves them, and deletes copies (tla: Packs, Replicas)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

from metasync.consensus.group import Group
from metasync.consensus.records import log_replay, state
from metasync.consensus.records.state import State
from metasync.maintenance import collect, moved, sweep
from metasync.merge.lines import merge3
from metasync.moving import rebalance, reconfigure, surplus
from metasync.objects.model import ID_BYTES
from metasync.runtime.effects import Task
from metasync.session import write_index
from metasync.store import collection, deltas, moves
from metasync.store.index import IndexSegment, rows_of
from metasync.store.moves import Places
from metasync.store.pack_format import DELTA
from metasync.sync import packing, texts
from metasync.sync.packing import Packing
from metasync.transfer.upload import Notes, known_in
from simulation.mutants import mutant, needs, rewritten
from simulation.scenarios import (
    base_dropped,
    base_returns,
    changed_often,
    collected_deltas,
    collected_often,
    delta_returns,
    removed_while_one_slept,
    reused_dropped,
)

# Indexes.


@mutant(
    "index-unsettled",
    "a version keeps, or a backend joins on, an index that is in one version's log alone, and no reader looks there",
)
def _index_unsettled() -> Iterator[None]:
    def settle(self: Group, state: State) -> Task:
        return
        yield

    def find(*_: object) -> Task:
        return
        yield

    with mock.patch.object(Group, "settle", settle), mock.patch.object(write_index, "find_in_logs", find):
        yield


# Merges.


@mutant(
    "merge-one-side",
    "where two changed a text, the lines of one are merged and those of the other are not",
    needs("deltas"),
)
def _one_side() -> Iterator[None]:
    def merged(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
        return None if merge3(base, ours, theirs) is None else theirs

    with mock.patch.object(texts, "merge3", merged):
        yield


# Collection.


@mutant("gc-no-rebase-fence", "own packs are not measured against the new base's `min_gen`", collected_often)
def _no_rebase_fence() -> Iterator[None]:
    counts = "not upload.counting(state.min_gen, state.epoch)", "upload.form.epoch != state.epoch"
    with rewritten(Packing, "upload_for", counts):
        yield


@mutant("gc-no-rebase-epoch", "... nor against its key epoch", collected_often)
def _no_rebase_epoch() -> Iterator[None]:
    counts = "not upload.counting(state.min_gen, state.epoch)", "upload.generation < state.min_gen"
    with rewritten(Packing, "upload_for", counts):
        yield


@mutant(
    "gc-no-rebase-delta", "what own deltas are made of is not looked up again in the new base's index", base_dropped
)
def _no_rebase_delta() -> Iterator[None]:
    with rewritten(deltas, "have_bases", ("all((depth", "True or all((depth")):
        yield


@mutant("gc-no-rebase-reuse", "what is reused is not looked up again in the new base's index", reused_dropped)
def _no_rebase_reuse() -> Iterator[None]:
    real, met = known_in, list[tuple[Any, Any]]()

    def known(index: Any, upload: Any) -> Any:
        met.append((upload, real(index, upload)))
        return lambda object_id: any(knows(object_id) for of, knows in met if of is upload)

    with mock.patch.object(packing, "known_in", known):
        yield


@mutant("gc-no-depth", "... only whether it is there, not that it lies strictly lower", base_returns)
def _no_depth() -> Iterator[None]:
    with rewritten(deltas, "have_bases", (" and depth < row.depth", "")):
        yield


@mutant("gc-reuse-headless", "an index keeps deltas that nothing needs, and a push reuses them", delta_returns)
def _reuse_headless() -> Iterator[None]:
    def rewritten_with(segment: IndexSegment, stays: Any, marked: Any) -> IndexSegment | None:
        made_of: Any = {
            row[:ID_BYTES] for part in segment.parts() for row in rows_of(part) if row[ID_BYTES] >> 4 == DELTA
        }
        out = collection.combined([segment], stays, deltas.Needed(marked, made_of), (), segment.tags)
        return out if len(out.packs) else None

    with mock.patch.object(collection, "rewritten", rewritten_with):
        yield


@mutant("gc-reuse-stored", "what was once stored is reused, whatever was fenced since", collected_often)
def _reuse_stored() -> Iterator[None]:
    with rewritten(Notes, "load", ("data[:CONTEXT_BYTES] == self._context", "True")):
        yield


@mutant("gc-drop-late-roots", "a FENCE that lost its base does not add what newer roots reach", collected_often)
def _drop_late_roots() -> Iterator[None]:
    with rewritten(
        collect._Collection,
        "_fenced",
        ("self._follow(found, newest) or self.look(newest, repack=repack)", "replace(found, base=newest)"),
    ):
        yield


@mutant("gc-no-repack-fence", "the collector does not measure its repacked packs against `min_gen`", collected_often)
def _no_repack_fence() -> Iterator[None]:
    with rewritten(collect._Collection, "_pack", ("self.upload.counting(state.min_gen, state.epoch)", "True")):
        yield


@mutant("gc-fence-sinks", "`min_gen` may go down", collected_often)
def _fence_sinks() -> Iterator[None]:
    follows = rewritten(state, "follows", ("and state.min_gen >= base.min_gen", ""))
    with follows, rewritten(collect._Collection, "_fence", ("max(found.base.state.min_gen, ", "max(0, ")):
        yield


@mutant("gc-delete-unfenced", "packs of the current generation are deleted if unnamed", collected_often)
def _delete_unfenced() -> Iterator[None]:
    goes = rewritten(sweep, "may_go", ("pack_id[0] < min_gen and ", ""))
    with goes, rewritten(sweep, "sweep", ("listed(s, out.away, min_gen)", "listed(s, out.away)")):
        yield


@mutant("gc-delete-by-old", "what to delete is judged by the index before the FENCE", collected_often)
def _delete_by_old() -> Iterator[None]:
    old = "self.__dict__.setdefault('old', base.index)"
    first = "before = s.indexes.retained(base.state)", f"{old}\n    before = s.indexes.retained(base.state)"
    judged = rewritten(collect._Collection, "_swept", ("marked = base.index,", f"marked = {old},"))
    with judged, rewritten(collect._Collection, "look", first):
        yield


@mutant("gc-no-bases", "a collection keeps no blob for the deltas alone that are made of it", collected_deltas)
def _no_bases() -> Iterator[None]:
    unseen = rewritten(deltas, "with_bases", ("in _marked_deltas(index, marked):", "in ():"))
    with unseen, rewritten(deltas, "is_relied_on", ("and delta_at(record.tags, located).base in needed", "")):
        yield


# Moves and trims.


def _all_ids(self: Places, backend_id: bytes, partition: int) -> tuple[bytes, ...]:
    return self._ids.get(backend_id, ())[::-1]


@mutant(
    "trim-same-id", "a backend that gets a partition back keeps its storage id, and copies in it count", changed_often
)
def _same_id() -> Iterator[None]:
    same = mock.patch.object(moves, "fresh", return_value=set())
    with same, mock.patch.object(Places, "_counting", _all_ids):
        yield


@mutant("trim-old-counts", "copies in ids older than the trim that excluded them count", changed_often)
def _old_counts() -> Iterator[None]:
    with mock.patch.object(Places, "_counting", _all_ids):
        yield


@mutant("trim-unverified", "`prev_mapping` is cleared without verified copies", changed_often)
def _unverified() -> Iterator[None]:
    unmoved = rewritten(rebalance, "rebalance", ("_move(mover)\n", "pass\n"))
    with unmoved, rewritten(rebalance, "_trim", ("mover.unverified(base.index.packs().values())", "False")):
        yield


@mutant(
    "trim-last-only",
    "a mapping changes while `prev_mapping` is not empty, and only the last one is kept",
    changed_often,
)
def _last_only() -> Iterator[None]:
    merges = "if old.prev_config is not None:\n        return moves", "if False:\n        return moves"
    unseen = "if new.prev_config is not None:", "if False:"  # others do not vote for such a config
    with rewritten(reconfigure, "_complete", merges), rewritten(log_replay, "_fault_of_step", unseen):
        yield


@mutant("move-early", "what is not where it belongs is deleted before a trim is agreed", changed_often)
def _early() -> Iterator[None]:
    def is_surplus(self: Places, backend_id: bytes, storage_id: bytes, record: Any) -> bool:
        return backend_id not in self.primary(record.name)

    early = rewritten(rebalance, "rebalance", ("if s.previous is None:", "if True:"))
    with early, mock.patch.object(Places, "is_surplus", is_surplus):
        yield


@mutant("move-blind", "surplus copies are deleted though those that count were not verified", changed_often)
def _blind() -> Iterator[None]:
    brings = "mover.bring_all([p for key, p in records.items() if key not in mover.tally.done], note=False)", "pass"
    with rewritten(surplus, "free", brings, (" if key in mover.tally.done]\n", "]\n")):
        yield


@mutant("trim-late", "a move ends though packs were pushed since the others were verified", changed_often)
def _late() -> Iterator[None]:
    with rewritten(rebalance, "_trim", ("mover.unverified(base.index.packs().values())", "False")):
        yield


@mutant("trim-any-place", "a pusher commits with a copy that does not count", removed_while_one_slept)
def _any_place() -> Iterator[None]:
    with rewritten(Packing, "upload_for", ("or moved\n", "or False\n")):
        yield


@mutant("move-notes", "what was noted as moved counts after another change of the backends", changed_often)
def _notes() -> Iterator[None]:
    with rewritten(moved, "load", ('if data[:_HASH_BYTES] == s.connections.config_hash else b""', "")):
        yield
