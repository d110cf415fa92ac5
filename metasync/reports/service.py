"""What the daemon tells of itself and of the workspaces that it keeps in step.

The daemon gives these out on its socket, and the commands and the page show them. Times are seconds since 1970 by this
device's clock, spans are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Doing = Literal["in step", "waiting", "pushing", "pulling", "looking", "paused", "stuck", "starting", "stopping"]
"""What a workspace is at.

in step   nothing is to be done, as far as a quorum of its backends told when they were last asked
waiting   changes gather, or a backend or a file is waited for; `WorkspaceState.why` says for what
stuck     it does not get on without the user: a problem says what to do
"""

Kind = Literal[
    "conflict",
    "guard",
    "backend",
    "quorum",
    "login",
    "space",
    "folder",
    "watch",
    "damage",
    "fork",
    "unplaced",
    "other",
    "disk",
]
AWAY: Final = "open:away"  # the key of the problem of a folder that is not there
COPIES: Final = "copies:"  # how the key of a problem of bad copies begins; the name of the backend follows


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that the user is to know of, told once.

    key        the same for the same problem, also after a restart: what is told once is told by it
    kind       what it is about
    text       a sentence: what is wrong; `next_step`: what to do about it
    since_s    when it was first noticed
    asks       what it asks the user to allow: "push" or "pull" that a guard stopped; "" where nothing is asked
    blocks     whether the workspace does not get on until it is gone
    """

    key: str
    kind: Kind
    text: str
    next_step: str
    since_s: float
    asks: Literal["", "push", "pull"] = ""
    blocks: bool = False


@dataclass(frozen=True, slots=True)
class Activity:
    """How far the work under way is: `done` of `total` (None: not known) in `unit` ("B", "files")."""

    phase: str
    done: int = 0
    total: int | None = None
    unit: str = ""
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """What went over the line of one backend since the daemon began to keep the workspace. `away`: why it is, or ""."""

    backend: str
    up_bytes: int = 0
    down_bytes: int = 0
    requests: int = 0
    away: str = ""
    since_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceState:
    """One workspace, as the daemon keeps it.

    version         the version that the folder is at
    why             what `doing` waits for, in a few words; "" where nothing
    since_s         since when it is `doing` that
    changed         paths or directories that changed and are not pushed yet; `changed_bytes`: their estimate
    pushed_s, pulled_s, looked_s   when it last pushed or pulled something, and last asked for news; None: not yet
    look_at_s       when it asks for news again
    paused_until_s  None: not paused; infinity: until it is resumed
    has_broker      whether its broker is connected, and tells of news; None: none was asked yet, or none is set
    """

    directory: str
    name: str
    doing: Doing
    since_s: float
    why: str = ""
    version: int = 0
    changed: int = 0
    changed_bytes: int = 0
    activity: Activity | None = None
    problems: tuple[Problem, ...] = ()
    lines: tuple[Line, ...] = ()
    pushed_s: float | None = None
    pulled_s: float | None = None
    looked_s: float | None = None
    look_at_s: float | None = None
    paused_until_s: float | None = None
    has_broker: bool | None = None


@dataclass(frozen=True, slots=True)
class DaemonState:
    """The daemon of this user. `version`: of the program; `began_s`: when it was started."""

    pid: int
    version: str
    began_s: float
    workspaces: tuple[WorkspaceState, ...] = ()
