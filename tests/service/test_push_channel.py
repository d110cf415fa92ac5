"""The push channel: a hint goes to the others, so many come through, and a broker that is away costs nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon_kit import HUNG_S, FakeKeeper, wait_for

from metasync.errors import UsageError, WorkspaceError
from metasync.local.settings import Settings
from metasync.runtime.daemon_keys import BROKER, PASSWORD, PASSWORD_FILE, BrokerUrl, broker_of
from metasync.service.brokers import push_channel
from metasync.service.brokers.hints import AT_ONCE_MAX, EACH_S, Bucket
from metasync.service.brokers.passwords import with_password
from metasync.service.brokers.push_channel import BrokerError, PushChannel, connect_by

URL = "amqp://127.0.0.1"


class Broker:
    """A broker in memory. `is_up`: whether it takes connections."""

    def __init__(self) -> None:
        self.links: list[MemoryLink] = []
        self.is_up = True
        self.tries = 0

    def connect(self, url: BrokerUrl, topic: str, hear: Callable[[bytes], None]) -> MemoryLink:
        self.tries += 1
        if not self.is_up:
            raise BrokerError("away")
        link = MemoryLink(self, topic, hear)
        self.links.append(link)
        return link


class MemoryLink:
    def __init__(self, broker: Broker, topic: str, hear: Callable[[bytes], None]) -> None:
        self.broker, self.topic, self.hear = broker, topic, hear
        self.ends = threading.Event()
        self.breaks = False

    def run(self) -> None:
        assert self.ends.wait(HUNG_S)
        if self.breaks:
            raise BrokerError("the line broke")

    def publish(self, data: bytes) -> None:
        for link in tuple(self.broker.links):
            if link.topic == self.topic:
                link.hear(data)

    def close(self) -> None:
        if self in self.broker.links:
            self.broker.links.remove(self)
        self.ends.set()


class Device:
    """A keeper with its push channel."""

    def __init__(self, broker: Broker) -> None:
        self.said: list[str] = []
        self.keeper = FakeKeeper(Path("/w/docs"), Settings(), lambda _: None)
        self.channel = PushChannel(lambda what, **_: self.said.append(what), connect_by=lambda _: broker.connect)

    def begin(self) -> Device:
        self.channel.begin(self.keeper, Settings({BROKER: URL}))
        return self

    @property
    def hints(self) -> int:
        return self.keeper.asked.count("hint")


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(push_channel, "topic_of", lambda _: "t" * 32)
    monkeypatch.setattr(push_channel, "RETRY_S", (0.001, 0.004))
    return Broker()


@pytest.fixture
def two(broker: Broker) -> Iterator[tuple[Device, Device]]:
    devices = Device(broker).begin(), Device(broker).begin()
    wait_for(lambda: len(broker.links) == 2 and all(d.hints for d in devices), "both lines")
    yield devices
    for device in devices:
        device.channel.end()


def test_what_one_pushed_the_other_looks_at_and_it_does_not_itself(two: tuple[Device, Device]) -> None:
    one, other = two
    before = one.hints, other.hints
    one.keeper.published()
    assert (one.hints, other.hints) == (before[0], before[1] + 1)


def test_the_keeper_knows_whether_a_broker_tells_of_news(broker: Broker, two: tuple[Device, Device]) -> None:
    def covered(device: Device) -> list[bool]:
        return [asked[1] for asked in device.keeper.asked if isinstance(asked, tuple) and asked[0] == "broker"]

    for device in two:
        assert covered(device) == [True]
    broker.is_up = False
    for link in tuple(broker.links):
        link.breaks = True
        link.close()
    tries = broker.tries
    wait_for(lambda: broker.tries >= tries + 4, "tries to connect")
    for device in two:
        assert covered(device)[-1] is False
        whys = [asked[2] for asked in device.keeper.asked if isinstance(asked, tuple) and asked[0] == "broker"]
        assert whys[0] == ""
        assert whys[-1] == f"{broker_of(URL).where}: away"
    broker.is_up = True
    wait_for(lambda: all(covered(device)[-1] for device in two), "the lines")


def test_a_flood_is_a_bounded_number_of_looks(two: tuple[Device, Device], broker: Broker) -> None:
    link = broker.links[0]
    for n in range(10_000):
        link.publish(b"%d" % n)
    assert max(d.hints for d in two) <= AT_ONCE_MAX
    link.publish(b"x" * 5000)
    assert max(d.hints for d in two) <= AT_ONCE_MAX


def test_the_bucket_lets_a_look_pass_each_so_many_seconds() -> None:
    bucket = Bucket(0.0)
    assert [bucket.wait_s(0.0) for _ in range(AT_ONCE_MAX)] == [0.0] * AT_ONCE_MAX
    assert bucket.wait_s(0.0) == EACH_S
    assert bucket.wait_s(EACH_S / 2) == EACH_S / 2
    assert bucket.wait_s(EACH_S) == 0.0
    assert [bucket.wait_s(1e9) for _ in range(AT_ONCE_MAX + 1)][-1] > 0
    passed, now = 0, 1e9
    for _ in range(3600 * 10):
        now += 0.1
        passed += bucket.wait_s(now) == 0
    assert passed <= 3600 / EACH_S + 1


def test_a_hint_that_is_too_early_comes_later_once(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    goes_on = threading.Event()

    class Ends(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout or 0)
            assert goes_on.wait(HUNG_S)
            return False

    hinted: list[int] = []
    hints = push_channel._Hints(lambda: hinted.append(1), Ends())
    hints._bucket._room = 0.0
    for _ in range(5):
        hints.come()
    wait_for(lambda: waits)
    hints._bucket._room = 1.0
    goes_on.set()
    wait_for(lambda: hinted)
    assert hinted == [1]
    assert len(waits) == 1


def test_a_broker_that_is_away_is_tried_again_told_once_and_missed_by_nobody(broker: Broker) -> None:
    broker.is_up = False
    device = Device(broker).begin()
    wait_for(lambda: broker.tries >= 5, "some tries")
    device.keeper.published()  # goes nowhere, and raises nothing
    assert device.said == ["broker away"]
    assert device.hints == 0
    broker.is_up = True
    wait_for(lambda: device.hints, "the look when it is back")
    assert device.said[-1] == "broker connected"
    link = broker.links[0]
    link.breaks = True
    link.close()
    wait_for(lambda: broker.links and broker.links[0] is not link, "another line")
    device.channel.end()
    wait_for(lambda: not broker.links, "its end")
    thread = device.channel._thread
    assert thread is not None
    thread.join(HUNG_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("steady_s", [0.0, HUNG_S])
def test_each_outage_after_a_line_that_held_is_told(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, steady_s: float
) -> None:
    monkeypatch.setattr(push_channel, "STEADY_S", steady_s)
    device = Device(broker).begin()
    for number in range(1, 4):
        wait_for(lambda number=number: device.said.count("broker connected") == number, "the line")
        (link,) = broker.links
        link.breaks = True
        link.close()
    wait_for(lambda: device.said.count("broker connected") == 4, "the last line")
    device.channel.end()
    assert device.said.count("broker away") == (3 if steady_s == 0.0 else 1)


def test_without_a_broker_nothing_is_loaded_or_begun(broker: Broker) -> None:
    device = Device(broker)
    device.channel.begin(device.keeper, Settings())
    device.channel.end()
    assert device.channel._thread is None
    assert broker.tries == 0


def test_the_topic_says_nothing_of_the_workspace_and_is_the_same_on_all_its_devices() -> None:
    class Keys:
        ns_id, id_key = b"n" * 32, b"k" * 32

    class Opened:
        class _connections:  # noqa: N801
            keys: Any = Keys

    first = push_channel.topic_of(Opened)  # type: ignore[arg-type]
    assert first == push_channel.topic_of(Opened)  # type: ignore[arg-type]
    assert len(first) == 32
    assert int(first, 16)
    Keys.id_key = b"o" * 32
    assert push_channel.topic_of(Opened) != first  # type: ignore[arg-type]


def test_a_package_that_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pika", None)
    with pytest.raises(WorkspaceError) as e:
        connect_by(broker_of("amqps://h"))
    assert "metasync[amqp]" in e.value.next_step
    assert connect_by(broker_of("mqtt://127.0.0.1")).__module__.endswith("mqtt")


def test_the_password_comes_from_the_environment_or_a_file_of_the_users_alone(tmp_path: Path) -> None:
    url = broker_of("amqps://me@h")
    off = {"METASYNC_KEYRING": "off"}
    assert with_password(url, off).password == ""
    assert with_password(url, {**off, PASSWORD: "a"}).password == "a"
    path = tmp_path / "password"
    path.write_text("b c\n")
    path.chmod(0o600)
    assert with_password(url, {**off, PASSWORD_FILE: str(path)}).password == "b c"
    path.chmod(0o640)
    with pytest.raises(UsageError, match="others can read"):
        with_password(url, {**off, PASSWORD_FILE: str(path)})
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(UsageError):
            with_password(url, {**off, PASSWORD_FILE: str(wrong)})
    with pytest.raises(UsageError, match="in the clear"):
        with_password(BrokerUrl("amqp", "h", 1), {**off, PASSWORD: "a"})
    assert "secret" not in repr(with_password(url, {**off, PASSWORD: "secret"}))
