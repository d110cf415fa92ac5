"""Whole workspaces in which a device ended a version: `recover` goes past it, and can shut the device out."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from attack_kit import spoil
from ended_kit import FEW, WAYS, shorten_logs
from workspace_kit import PASSPHRASE, Lab, tree_of, write

from metasync.backends.folder import FolderBackend
from metasync.consensus import Group
from metasync.errors import ExcludedError, MetaSyncError, NoQuorumError, PassphraseError, UnreachableError, UsageError
from metasync.events import Notice
from metasync.maintenance import recover as recovering
from metasync.moving import reconfigure
from metasync.runtime.effects import Task
from metasync.session import agreement
from metasync.session.folder import NEWEST_KEY
from metasync.workspace import Workspace


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_logs(monkeypatch)


def devices(lab: Lab, *names: str, **options: Any) -> list[Workspace]:
    """A workspace on three folders, and devices that have pushed and pulled all of it."""
    first = lab.init(lab.urls("a", "b", "c"), replicas=3, **options)
    write(first.directory, {"agreed": b"agreed", "edited": b"line\n" * 9})
    first.push("one")
    others = [lab.clone(lab.urls("a", "b", "c"), device=name) for name in names]
    for other in others:
        other.push("enrolled")
    made = [first, *others]
    for w in made:
        w.sync()
    return made


def files(w: Workspace) -> dict[str, bytes]:
    return {path.decode(): node.data for path, node in tree_of(w.directory).items() if node.kind == "file"}


@pytest.mark.few(1)
@WAYS
def test_recover_with_revoke_goes_past_it_and_shuts_the_device_out(lab: Lab, how: str) -> None:
    """`push` and `device revoke` say the way; after `recover --revoke` all others go on, the files are all there, and
    the device can neither read nor end what comes after."""
    laptop, phone, desktop = devices(lab, "phone", "desktop")
    write(desktop.directory, {"of desktop": b"not pushed yet", "edited": b"line\n" * 9 + b"desktop\n"})
    write(laptop.directory, {"of laptop": b"not pushed yet"})
    spoil(lab, phone, how, ["a", "b"], FEW)
    for failing in (laptop.push, lambda: laptop.device_revoke(["phone"], PASSPHRASE)):
        with pytest.raises(NoQuorumError, match="cannot be agreed any more") as e:
            failing()
        assert "metasync recover" in e.value.next_step
    laptop = lab.reopen(laptop)
    seen = laptop.status()
    report = laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    assert (report.era, report.without, {name for name, _ in report.ended}) == (1, (), {"a", "b"})
    assert report.keys is not None and report.keys.revoked == ("phone",)
    assert len(report.keys.recovery_phrase.split()) == 12
    assert report.newest == seen.version and (report.lost_packs, report.missing) == (0, ())
    assert laptop.push("after").version
    told: list[str] = []
    desktop = lab.reopen(desktop)
    desktop.on_event = lambda e: told.append(e.text) if isinstance(e, Notice) else None
    assert desktop.push("at once after").version
    assert any("restarted as era 1 past a version that was ended" in text for text in told)
    laptop.pull()
    assert files(laptop) == files(desktop)
    assert files(laptop) == {
        "agreed": b"agreed", "edited": b"line\n" * 9 + b"desktop\n",
        "of desktop": b"not pushed yet", "of laptop": b"not pushed yet",
    }  # fmt: skip
    for _ in range(2):
        phone = lab.reopen(phone)
        write(phone.directory, {"stolen": b"?"})
        for failing in (phone.push, phone.pull):
            with pytest.raises(ExcludedError, match="revoked"):
                failing()
    assert (laptop.key_show().epoch, phone._connections.keys.epoch) == (2, 1)
    assert {d.name: d.state for d in laptop.device_list().devices} == {
        "laptop": "admitted", "desktop": "admitted", "phone": "revoked",
    }  # fmt: skip
    for w in (laptop, desktop):
        w = lab.reopen(w)
        assert w.status().problem == "" and w.check(read_data=True).lost == ()
        assert w.log()[0].version == w.status().version


def wide(lab: Lab) -> tuple[Workspace, Workspace, Workspace]:
    """Three devices, on backends of which one may give up its vote."""
    first = lab.init(lab.urls("a", "b", "c"), replicas=2)
    write(first.directory, {"agreed": b"agreed"})
    first.push("one")
    others = [lab.clone(lab.urls("a", "b", "c"), device=name) for name in ("phone", "desktop")]
    for other in others:
        other.push("enrolled")
    for w in (first, *others):
        w.sync()
    return first, others[0], others[1]


@pytest.mark.few(1)
@WAYS
def test_a_change_of_the_backends_waits_for_a_version_that_can_be_closed(lab: Lab, how: str) -> None:
    """One backend is ended in a version, which stops nobody. But a change that takes the vote from another is closed on
    both that stay: it would be the last version. So it is made in the next, which has logs of its own."""
    laptop, phone, desktop = wide(lab)
    before = laptop.status().version
    assert before is not None
    spoil(lab, phone, how, ["a"], FEW)
    report = laptop.backend_set("c", role="storage")
    assert report.version == before + 2
    for w in (laptop, desktop, phone):
        write(w.directory, {f"after {w.directory.name}": b"x"})
        assert lab.reopen(w).sync()[1].version
    laptop = lab.reopen(laptop)
    laptop.sync()
    assert laptop.check(read_data=True).lost == ()


def _saw_nothing(*_: object) -> Task:
    return {}
    yield


@pytest.mark.few(1)
@WAYS
def test_a_change_that_can_never_be_closed_is_named_and_has_a_way_past(
    lab: Lab, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend that was ended was away when the change was made. Nobody can go on from that version; all said
    "no quorum" for ever, and `recover` saw no reason."""
    laptop, phone, desktop = wide(lab)
    spoil(lab, phone, how, ["a"], FEW)
    with monkeypatch.context() as patch:
        patch.setattr(reconfigure, "foreseen", _saw_nothing)
        changed = laptop.backend_set("c", role="storage").version
    write(laptop.directory, {"of laptop": b"l"})
    write(desktop.directory, {"of desktop": b"d"})
    for failing in (laptop, desktop):
        with pytest.raises(NoQuorumError, match=f"version {changed} changed the backends.*too few.*a: ") as e:
            lab.reopen(failing).push()
        assert how == "full" or ("b: " not in e.value.message and "c: " not in e.value.message)  # tries fill others too
        assert "metasync recover" in e.value.next_step and "--revoke" in e.value.next_step
    report = lab.reopen(laptop).recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    assert (report.era, report.newest) == (1, changed)
    assert "a" in {name for name, _ in report.ended}
    for w in (laptop, desktop, laptop):
        lab.reopen(w).sync()
    assert files(laptop) == files(desktop) == {"agreed": b"agreed", "of laptop": b"l", "of desktop": b"d"}
    assert "vote" not in {b.name: b.roles for b in lab.reopen(laptop).backend_list().backends}["c"]
    with pytest.raises(ExcludedError):
        lab.reopen(phone).push()
    with pytest.raises(UsageError, match="can go on as it is"):
        lab.reopen(laptop).recover([], PASSPHRASE, confirm="docs")


def test_the_device_knows_no_name_of_the_new_era(lab: Lab) -> None:
    """With its keys and its logins it computes where the next entries would lie; what it puts there is nowhere."""
    laptop, phone = devices(lab, "phone")
    spoil(lab, phone, "garbage", ["a", "b"], FEW)
    laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    state = laptop._connections.db.get(NEWEST_KEY)
    with pytest.raises(MetaSyncError, match="does not hold those of epoch 2"):
        phone._connections.keys.log_name(state.epoch, b"")
    spoil(lab, phone, "garbage", ["a", "b", "c"], FEW, at=laptop)
    write(laptop.directory, {"goes": b"on"})
    assert laptop.push().version


@pytest.mark.long
def test_without_revoke_everything_but_the_version_is_as_it_was(lab: Lab) -> None:
    """`recover` alone goes past it: the same backends, copies, devices and keys. It can be done a second time."""
    laptop, phone = devices(lab, "phone")
    for era in (1, 2):
        spoil(lab, phone, "garbage", ["b", "c"], FEW)
        laptop = lab.reopen(laptop)
        before = laptop.status().survives
        report = laptop.recover([], PASSPHRASE, confirm="docs")
        assert (report.era, report.keys, report.before) == (era, None, report.after)
        write(phone.directory, {f"in era {era}": b"x"})
        phone = lab.reopen(phone)
        phone.sync()
        laptop.pull()
        assert files(laptop) == files(phone) and laptop.status().survives == before
        assert laptop.key_show().epoch == 1


def test_what_comes_after_works_as_ever(lab: Lab) -> None:
    """clone, restore, a later revocation, new keys, another passphrase, and one more restart."""
    laptop, phone, desktop = devices(lab, "phone", "desktop")
    spoil(lab, phone, "garbage", ["a", "c"], FEW)
    laptop.recover([], PASSPHRASE, revoke=["phone"], new_passphrase="eight loud herons", confirm="docs")
    with pytest.raises(PassphraseError):
        lab.clone(lab.urls("a", "b"), device="wrong")
    tablet = lab.clone(lab.urls("a", "b"), device="tablet", passphrase="eight loud herons")
    tablet.link("c", lab.url("c"))
    write(tablet.directory, {"tablet": b"t"})
    tablet.push("of tablet")
    desktop = lab.reopen(desktop)
    desktop.sync()
    assert files(desktop) == files(tablet)
    (desktop.directory / "agreed").unlink()
    desktop.restore("2", [b"agreed"])
    assert files(desktop)["agreed"] == b"agreed"
    spoil(lab, desktop, "last round", ["a", "b"], FEW)
    report = laptop.recover([], "eight loud herons", revoke=["desktop"], confirm="docs")
    assert (report.era, report.keys.epoch if report.keys else 0) == (2, 3)
    with pytest.raises(ExcludedError):
        lab.reopen(desktop).push()
    laptop.key_rotate("eight loud herons", new_passphrase="nine herons")
    laptop.device_revoke(["tablet"], "nine herons")
    with pytest.raises(ExcludedError):
        lab.reopen(tablet).sync()
    laptop.key_change_passphrase("nine herons", "ten herons")
    last = lab.clone(lab.urls("a", "b", "c"), device="last", passphrase="ten herons")
    laptop.pull()
    assert files(last) == files(laptop)
    assert laptop.check(read_data=True).lost == ()


@pytest.mark.long
def test_a_device_that_slept_over_it_and_new_keys_follows(lab: Lab) -> None:
    laptop, phone, desktop = devices(lab, "phone", "desktop")
    write(desktop.directory, {"slept": b"over two changes of keys"})
    laptop.key_rotate(PASSPHRASE)
    phone = lab.reopen(phone)
    phone.sync()
    spoil(lab, phone, "garbage", ["a", "b"], FEW)
    laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    desktop = lab.reopen(desktop)
    desktop.sync()
    laptop.pull()
    assert files(laptop) == files(desktop) and "slept" in files(laptop)


def test_without_encryption_a_revoked_device_is_told_too(lab: Lab) -> None:
    """Anybody can derive the keys there; who may write is decided by the device set."""
    laptop, phone = devices(lab, "phone", encryption=False)
    spoil(lab, phone, "garbage", ["a", "b"], FEW)
    laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    write(phone.directory, {"stolen": b"?"})
    with pytest.raises(ExcludedError, match="revoked"):
        lab.reopen(phone).push()
    write(laptop.directory, {"goes": b"on"})
    assert laptop.push().version


def test_lost_backends_and_an_ended_version_at_once(lab: Lab) -> None:
    """One of three is dead, and of the others one was ended: neither alone is a reason, both are."""
    laptop, phone = devices(lab, "phone")
    spoil(lab, phone, "garbage", ["a"], FEW)
    lab.lose("b")
    laptop = lab.reopen(laptop)
    with pytest.raises(NoQuorumError, match="b: "):
        laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    report = laptop.recover(["b"], PASSPHRASE, revoke=["phone"], confirm="docs")
    assert (report.without, [name for name, _ in report.ended]) == (("b",), ["a"])
    write(laptop.directory, {"goes": b"on"})
    assert laptop.push().version


@pytest.mark.long
def test_a_backend_that_only_holds_data_is_not_taken_for_lost(lab: Lab) -> None:
    """What lies there alone would leave the index, if the restart went on while it does not answer."""
    laptop = lab.init([*lab.urls("a", "b", "c"), lab.url("d", role="storage")], replicas=1)
    for n in range(8):
        write(laptop.directory, {f"f{n}": b"%d" % n * 5000})
        laptop.push()
    spoil(lab, laptop, "garbage", ["a", "b"], FEW)
    gone = lab.lose("d")
    laptop = lab.reopen(laptop)
    with pytest.raises(NoQuorumError, match=r"a backend that is to be kept does not answer as it should \(d: "):
        laptop.recover([], PASSPHRASE, confirm="docs")
    gone.rename(lab.store("d"))
    laptop = lab.reopen(laptop)
    assert laptop.recover([], PASSPHRASE, confirm="docs").lost_packs == 0
    assert laptop.check(read_data=True).lost == ()


@pytest.mark.few(1)
@pytest.mark.parametrize("epoch", [1, 2])
def test_what_only_looks_like_a_record_excludes_nobody(lab: Lab, epoch: int) -> None:
    """The clear header of garbage says that it is the record of an era, under keys whose ring is not for a device that
    joined by the passphrase, or for nobody. The device is told what it is told without it."""
    laptop, phone = devices(lab, "phone")
    spoil(lab, laptop, "garbage", ["a", "b"], FEW)
    for name in "abc":
        folder = next(p for p in lab.store(name).iterdir() if (p / "keys").is_dir())
        (folder / "eras").mkdir()
        (folder / "eras" / "1").write_bytes(bytes([1, 18]) + bytes([0, 0, 0, 1, 0, 0, 0, epoch]) + bytes(1014))
    write(phone.directory, {"new": b"new"})
    with pytest.raises(NoQuorumError, match="cannot be agreed any more"):
        phone.push()


def test_where_nothing_was_ended_nothing_is_restarted(lab: Lab) -> None:
    laptop, phone = devices(lab, "phone")
    with pytest.raises(UsageError, match="the workspace can go on as it is"):
        laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    spoil(lab, phone, "garbage", ["a"], FEW)
    with pytest.raises(UsageError, match="b, c answer, which is a quorum of 2"):
        laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")


def test_bad_input_changes_nothing(lab: Lab) -> None:
    laptop, phone = devices(lab, "phone")
    spoil(lab, phone, "garbage", ["a", "b"], FEW)
    laptop = lab.reopen(laptop)
    stores = {p: p.read_bytes() for name in "abc" for p in lab.store(name).rglob("*") if p.is_file()}
    for revoke, passphrase, error, match in (
        (["tablet"], PASSPHRASE, UsageError, "no device of this workspace is called 'tablet'"),
        (["laptop"], PASSPHRASE, UsageError, "can't revoke itself"),
        (["phone", "laptop"], PASSPHRASE, UsageError, "can't revoke itself"),
        (["phone"], "a guess", PassphraseError, "wrong passphrase"),
    ):
        with pytest.raises(error, match=match):
            laptop.recover([], passphrase, revoke=revoke, confirm="docs")
    with pytest.raises(UsageError, match="its name 'docs'"):
        laptop.recover([], PASSPHRASE, revoke=["phone"], confirm="")
    with pytest.raises(UsageError, match="the new passphrase is empty"):
        laptop.recover([], PASSPHRASE, revoke=["phone"], new_passphrase=" ", confirm="docs")
    report = laptop.recover([], "", revoke=["phone"], dry_run=True)
    assert report.keys is not None
    assert (report.version, report.keys.version, report.keys.revoked, report.keys.devices) == (
        None, None, ("phone",), ("laptop",),
    )  # fmt: skip
    assert stores == {p: p.read_bytes() for name in "abc" for p in lab.store(name).rglob("*") if p.is_file()}


def test_the_commands(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the command line: what push and status say, the dry run, the restart, and what the device is told."""
    _, phone = devices(lab, "phone")
    spoil(lab, phone, "garbage", ["a", "b"], FEW)
    write(lab.root / "laptop", {"new": b"new"})
    pushed = lab.cli("push")
    assert pushed.code == 5 and "a: entry 0 of version" in pushed.err and "metasync recover" in pushed.err
    assert "waiting for" not in pushed.err
    assert "metasync recover" in lab.cli("status").out
    dry = lab.cli("recover", "--revoke", "phone", "--dry-run")
    assert dry.code == 0 and "Would revoke phone" in dry.out and "could not be agreed any more" in dry.out
    monkeypatch.setenv("METASYNC_NEW_PASSPHRASE", "eight loud herons by the mill")
    ran = lab.cli("recover", "--revoke", "phone", "--confirm", "docs", "--json")
    assert ran.code == 0 and ran.json["keys"]["revoked"] == ["phone"] and json.dumps(ran.json["keys"]["new_passphrase"])
    assert lab.cli("push").code == 0
    told = lab.cli("pull", cwd="phone")
    assert told.code == 6 and "revoked" in told.err
    assert lab.cli("recover", "--revoke", "phone", "--confirm", "docs").code == 2


@pytest.mark.few(2)
@pytest.mark.parametrize("revoked", [[], ["phone"], ["desktop"]])
def test_two_admins_at_once_make_one_era(lab: Lab, monkeypatch: pytest.MonkeyPatch, revoked: list[str]) -> None:
    """Another device's record stands, under other keys of the same epoch or under those of today, when this one comes
    to claim its own: it follows that one, and says what is left to do. It never takes it for garbage."""
    laptop, phone, desktop = devices(lab, "phone", "desktop")
    spoil(lab, phone, "garbage", ["a", "b"], FEW)
    begin_it = recovering.begin

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(recovering, "begin", begin_it)
        laptop.recover([], PASSPHRASE, revoke=revoked, confirm="docs")
        return begin_it(*args)

    monkeypatch.setattr(recovering, "begin", overtaken)
    if revoked == ["desktop"]:
        with pytest.raises(ExcludedError, match="revoked"):
            desktop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
    else:
        report = desktop.recover([], PASSPHRASE, revoke=["phone"], confirm="docs")
        assert (report.era, report.keys) == (1, None)
        assert any("metasync device revoke phone" in note for note in report.notes) == (not revoked)
    records = [p.read_bytes() for name in "abc" for p in lab.store(name).rglob("eras/*")]
    assert (len(records), len(set(records))) == (3, 1)
    write(laptop.directory, {"goes": b"on"})
    assert laptop.push().version
    states = {d.name: d.state for d in laptop.device_list().devices}
    assert [name for name, state in states.items() if state == "revoked"] == revoked
    if not revoked:
        assert desktop.device_revoke(["phone"], PASSPHRASE).revoked == ("phone",)


# --- killed at every step


WRITES = 49  # of a restart with a revocation, before its first version
AS_RULE = (5, 30, 44, 47)  # of them: new keys, objects of the new era, one of three records, tombstones that name it


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "n", [*AS_RULE, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, WRITES) if n not in AS_RULE)]
)
def test_cut_off_at_any_write_it_goes_on_when_run_again(lab: Lab, monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """From its nth write on no backend answers; then all do, and the same command is run again: one record stands, the
    device is out, and nobody lacks a file."""
    laptop, phone = devices(lab, "phone")
    spoil(lab, phone, "garbage", ["a", "b"], FEW)
    write(laptop.directory, {"only mine": b"mine"})

    def again() -> Any:
        return lab.reopen(laptop).recover([], PASSPHRASE, revoke=["phone"], confirm="docs")

    with monkeypatch.context() as patch:
        assert until(n, patch, again)
    try:
        assert again().era == 1
    except UsageError as e:  # all was done but the last of it
        assert "can go on as it is" in e.message
    records = [p.read_bytes() for name in "abc" for p in lab.store(name).rglob("eras/*")]
    assert (len(records), len(set(records))) == (3, 1)
    laptop = lab.reopen(laptop)
    assert laptop.sync()[1].version
    assert [d.state for d in laptop.device_list().devices if d.name == "phone"] == ["revoked"]
    with pytest.raises(ExcludedError):
        lab.reopen(phone).sync()
    other = lab.clone(lab.urls("a", "b", "c"), device="other")
    assert files(other) == files(laptop) == {"agreed": b"agreed", "edited": b"line\n" * 9, "only mine": b"mine"}


def until(n: int, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> bool:
    """Calls, with no answer to the nth write and all after it. -> whether it came to that."""
    writes = 0

    def dying(real: Any) -> Any:
        def write_or_die(self: Any, *args: Any, **more: Any) -> Any:
            nonlocal writes
            writes += 1
            if writes >= n:
                raise UnreachableError("the line is dead")
            return real(self, *args, **more)

        return write_or_die

    for task in (agreement.ask_newest, agreement.looking.__wrapped__, Group.propose):  # type: ignore[attr-defined]
        monkeypatch.setitem(task.__kwdefaults__, "deadline_s", 0.5)
    for verb in ("put", "create"):
        monkeypatch.setattr(FolderBackend, verb, dying(getattr(FolderBackend, verb)))
    with contextlib.suppress(MetaSyncError):
        call()
    return writes >= n
