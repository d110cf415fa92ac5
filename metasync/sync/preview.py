"""What a push would take, without storing anything (`push --dry-run`)."""

from __future__ import annotations

from dataclasses import replace

from metasync.events import Phase
from metasync.merge import guard
from metasync.objects.model import Kind
from metasync.reports.sync import PushReport
from metasync.session import space
from metasync.session.session import Session
from metasync.sync.scanned import push_report, scan_folder, summary, walk
from metasync.worktree.overlay import Some


def preview(s: Session) -> PushReport:
    """What a push would take, without storing anything."""
    s.listener(Phase("scan"))
    base = s.base()
    here = scan_folder(s, walk(s, base), s.ingest())
    seen, before = here.seen, here.before
    changes = summary(here.differing, before.get, seen.tree.get)
    stop = guard.stop("push", guard.loss(before, Some(here.differing, seen.tree)))
    files = [seen.tree[p].size for p in (*changes.added, *changes.modified) if seen.tree[p].kind is Kind.FILE]
    shares = space.shares_of(s, sum(files))
    policy = base.config.policy(0)
    report = push_report(s, seen, None, changes)
    return replace(
        report,
        files_to_read=len(files),
        size_to_read=sum(files),
        to_send=shares,
        copies=policy.copies,
        unportable=here.unportable,
        live=here.live,
        tight=space.tight(s, base.index, shares),
        warnings=report.warnings if stop is None else (*report.warnings, guard.warning(stop)),
    )
