"""What operations tell their callers: plain values, all to be had from here by their names.

Paths are bytes, as the file system has them; beside each field with paths stands one as `str`, whose name ends in
`_str`. Times count nanoseconds since 1970. Fields may be added at the end of a report; none goes.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metasync.reports.backends import (
        BackendChange,
        BackendList,
        BackendState,
        Evidence,
        Freed,
        GcReport,
        Gone,
        Moving,
        RebalanceReport,
        RecoverReport,
        Share,
        Status,
        Together,
        Wiped,
    )
    from metasync.reports.checks import (
        CheckProblem,
        CheckReport,
        DrillReport,
        LeftOut,
        Repaired,
        ScrubLook,
        ScrubReport,
        Unmade,
        Untrue,
    )
    from metasync.reports.history import (
        CatReport,
        Counts,
        DiffReport,
        Facts,
        ForgetReport,
        Keep,
        KeepReport,
        Kept,
        Listed,
        Listing,
        LogItem,
        Merged,
        NotRestored,
        PathChange,
        ResolveReport,
        RestoreReport,
        ShowReport,
        SkipReport,
        TaggedVersion,
        TagReport,
        TextDiff,
    )
    from metasync.reports.members import (
        DeviceInfo,
        DeviceList,
        InvitationInfo,
        InviteReport,
        KeyReport,
        NoteReport,
        PassphraseReport,
        RenameReport,
        RotationReport,
        SlotInfo,
        Withdrawal,
    )
    from metasync.reports.settings import SettingsReport
    from metasync.reports.start import ClonePreview, CloneReport, InitReport
    from metasync.reports.sync import (
        BadCopies,
        Changes,
        ConflictReport,
        ConflictSide,
        Met,
        PullReport,
        PushReport,
        Renamed,
        Skipped,
        TightBackend,
        Trailing,
        path_str,
    )

__all__ = [
    "BackendChange",
    "BackendList",
    "BackendState",
    "BadCopies",
    "CatReport",
    "Changes",
    "CheckProblem",
    "CheckReport",
    "ClonePreview",
    "CloneReport",
    "ConflictReport",
    "ConflictSide",
    "Counts",
    "DeviceInfo",
    "DeviceList",
    "DiffReport",
    "DrillReport",
    "Evidence",
    "Facts",
    "ForgetReport",
    "Freed",
    "GcReport",
    "Gone",
    "InitReport",
    "InvitationInfo",
    "InviteReport",
    "Keep",
    "KeepReport",
    "Kept",
    "KeyReport",
    "LeftOut",
    "Listed",
    "Listing",
    "LogItem",
    "Merged",
    "Met",
    "Moving",
    "NotRestored",
    "NoteReport",
    "PassphraseReport",
    "PathChange",
    "PullReport",
    "PushReport",
    "RebalanceReport",
    "RecoverReport",
    "RenameReport",
    "Renamed",
    "Repaired",
    "ResolveReport",
    "RestoreReport",
    "RotationReport",
    "ScrubLook",
    "ScrubReport",
    "SettingsReport",
    "Share",
    "ShowReport",
    "SkipReport",
    "Skipped",
    "SlotInfo",
    "Status",
    "TagReport",
    "TaggedVersion",
    "TextDiff",
    "TightBackend",
    "Together",
    "Trailing",
    "Unmade",
    "Untrue",
    "Wiped",
    "Withdrawal",
    "path_str",
]
_MODULES = ("sync", "history", "backends", "checks", "members", "settings", "start")


def __getattr__(name: str) -> Any:
    """Loads the module of a report when that is asked for: a push does not pay for the reports of a check."""
    for module in map(import_module, (f"{__name__}.{one}" for one in _MODULES if name in __all__)):
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
