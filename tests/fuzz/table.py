"""All fuzz targets by name."""

from __future__ import annotations

from fuzz.agreement import AGREEMENT
from fuzz.content import CONTENT
from fuzz.daemon import DAEMON
from fuzz.linked import LINKED
from fuzz.local import LOCAL
from fuzz.members import MEMBERS
from fuzz.network import NETWORK
from fuzz.records import RECORDS
from fuzz.target import Target

TARGETS: dict[str, Target] = {
    t.name: t for t in (*CONTENT, *AGREEMENT, *RECORDS, *MEMBERS, *NETWORK, *LOCAL, *LINKED, *DAEMON)
}
