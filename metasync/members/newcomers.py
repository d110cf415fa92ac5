"""Admits new devices that cannot enter by themselves: block acceptors take no writes from a device outside the set.

A newcomer without a quorum of log acceptors leaves its head on the backends, with the certificate that the passphrase
gave it. A push of an admitted device looks for such heads and has the newcomers agreed. The certificate decides who is
admitted; the listing is only a hint.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from metasync.consensus import JOURNAL_KEY, Change
from metasync.errors import BackendError, FormatError, NoQuorumError
from metasync.events import Notice
from metasync.keys.device_set import DEVICES_MAX, decode_certificate, invitations
from metasync.runtime.effects import Op, each
from metasync.session import agreement

if TYPE_CHECKING:
    from metasync.consensus import Decided, State
    from metasync.keys.device_set import Certificate, DeviceSet
    from metasync.session.session import Session

NEWCOMERS_MAX: Final = 64  # looked at in one push: anybody who may write to a store can leave names there
LIST_TIMEOUT_S: Final = 10.0
ROUNDS_MAX: Final = 10  # others commit meanwhile; the next push tries again
_DEVICE = re.compile(r"[0-9a-f]{32}")


def may_enter(s: Session) -> bool:
    """True when this device is in, or may have itself agreed. Else it asks those who are in, and says so."""
    if s.config.logs_suffice or s.devices_of(agreement.ask_newest(s)).get(s.device.device_id) is not None:
        return True
    ask(s)
    text = "this device can read, but not push yet: run `metasync push` on one that can, which takes this one in"
    s.listener(Notice(text, warning=True))
    return False


@contextlib.contextmanager
def asking(s: Session) -> Iterator[None]:
    """Asks admitted devices to take this one in, if the body finds no quorum."""
    try:
        yield
    except NoQuorumError:
        ask_if_new(s)
        raise


def ask_if_new(s: Session) -> None:
    """Asks admitted devices to take this one in, where it needs that."""
    if s.config.has_blocks and s.devices_of(s.newest_state()).get(s.device.device_id) is None:
        ask(s)


def _logs_work(s: Session) -> bool:
    """True when the log acceptors that seem up make a quorum alone."""
    standings = s.group.standings
    fine = [e.name for e, a in s.config.acceptors if a.form == "log" and standings[e.name].kind in ("ok", "unknown")]
    return len(fine) >= s.config.quorum


def ask(s: Session) -> None:
    """Leaves this device's certificate on the backends, for an admitted device to find."""
    state = s.newest_state()
    head = s.group.write_head(state, head=state.master, prev=state.master, backends=sorted(s.names.values()))
    with contextlib.suppress(BackendError, NoQuorumError):
        s.runtime.run(head)


def let_in(s: Session, *, late: bool = False) -> tuple[str, ...]:
    """Has the devices that ask for it agreed. -> their names. One listing per backend; none where they need no help.

    `late`: after a push, which shows that too few log acceptors are up for newcomers to enter by themselves.
    """
    needed = late and s.config.has_blocks and not _logs_work(s) if s.config.logs_suffice else not late
    if not needed:
        return ()
    state = s.newest_state()
    devices = s.devices_of(state)
    if devices.get(s.device.device_id) is None:
        return ()
    backends = sorted(s.names.values())
    replies = s.runtime.run(each({b: Op(b, "list", "devices", timeout_s=LIST_TIMEOUT_S) for b in backends}))
    listed = {e.name for r in replies.values() if r.error is None for e in r.value if _DEVICE.fullmatch(e.name)}
    invited = {i.device_id for i in invitations(devices)}  # who has the secret enters, and uses the invitation up
    strangers = [d for d in sorted(map(bytes.fromhex, listed)) if devices.get(d) is None and d not in invited]
    found: list[Certificate] = []
    for device in strangers[:NEWCOMERS_MAX]:
        head = s.runtime.run(s.group.read_head(state, device, backends))
        with contextlib.suppress(FormatError):
            if head is not None and devices.admits(certificate := decode_certificate(head.certificate)):
                found.append(certificate)
    return _agreed(s, found) if found else ()


def propose_devices(s: Session, state: State, devices: DeviceSet, op_id: bytes) -> Decided:
    """Proposes a device set on top of a state, and writes a hint if it wins. `NoQuorumError`."""
    decided = agreement.propose(s, state, Change(op_id=op_id, devices=s.put_const(state, devices.encode())))
    s.db.set(JOURNAL_KEY, None)
    if decided.mine:
        with contextlib.suppress(BackendError, NoQuorumError):
            s.runtime.run(s.group.write_hint(state, decided.state, now=True))
    return decided


def _agreed(s: Session, found: list[Certificate]) -> tuple[str, ...]:
    op_id = s.entropy(16)
    state = agreement.ask_newest(s)
    for _ in range(ROUNDS_MAX):
        devices = s.devices_of(state)
        new = [c for c in found if devices.get(c.device_id) is None and devices.admits(c)]
        new = new[: DEVICES_MAX - len(devices.certificates)]
        if not new:
            break
        for certificate in new:
            devices = devices.with_device(certificate)
        if propose_devices(s, state, devices, op_id).mine:
            names = tuple(sorted(c.name for c in new))
            s.listener(Notice(f"took in {'a new device' if len(names) == 1 else 'new devices'}: {', '.join(names)}"))
            return names
        state = agreement.ask_newest(s)
    return ()
