"""Sizes, and the times that go with them, which several rooms must agree on."""

from __future__ import annotations

from typing import Final

SMALL_BYTES_MAX: Final = 256 << 10
"""A request that moves more than this is a large one: it takes a line's time, where a small one takes a round trip."""

CALLS_MAX: Final = 32  # on one backend at once; as many that hang are left behind
QUEUED_MAX: Final = 10_000  # calls that wait for one backend, and pieces of work that wait; beyond, they fail at once
PACKS_ASKED_AT_ONCE: Final = 16  # packs of whose copies only the size is asked for
GIVES_WAY_S: Final = 0.5  # between looks whether a time has ended early, since somebody waits
LOST_ROUNDS_MAX: Final = 50  # proposals that lose; losing as often means that others never stop

KNOWN_FOLDERS_MAX: Final = 1 << 14
"""Folders that a provider knows to exist: a workspace uses a few hundred; beyond this the set starts anew."""

LEFT_OVER_MAX: Final = 64  # temporary files of writes that broke off: as many as a command has under way, twice
BIRTH_ANSWER_BYTES_MAX: Final = 1024  # of what stands in the place of a birth, which is far smaller
PROMPT_BYTES_MAX: Final = 16 << 10  # an answer of so many bytes is as slow as an empty one: 3 ms on a line of 5 MB/s
SMALL_FILE_BYTES: Final = 4096  # what a small file takes on a disk, for the look at free space
DISK_MARGIN_BYTES: Final = 64 << 20  # of the folder's disk: stays free, whatever comes or is kept
CONNECT_TIMEOUT_S: Final = 5  # for a server to take a connection
SMALL_TIMEOUT_S: Final = 60  # for a server's answer to a request of at most SMALL_BYTES_MAX

LARGE_TIMEOUT_S: Final = 600
"""For its answer to any other: a pack of 16 MiB at 0.25 Mbit/s. Slower lines are not waited for."""
