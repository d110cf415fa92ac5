"""The push channel on real brokers: hints come, a broker that is back is found again, wrong logins are told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import brokers
import loopback
import pytest
from daemon_kit import HUNG_S, FakeKeeper, wait_for

from metasync.local.settings import Settings
from metasync.runtime.daemon_keys import BROKER, PASSWORD, broker_of
from metasync.service.brokers import push_channel
from metasync.service.brokers.passwords import with_password
from metasync.service.brokers.push_channel import BrokerError, PushChannel, connect_by

pytestmark = pytest.mark.servers
TOPIC = "0123456789abcdef" * 2


@pytest.fixture(params=brokers.KINDS, scope="module")
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[brokers.Mosquitto | brokers.RabbitMq]:
    variable, kind = brokers.KINDS[request.param]
    program = brokers.find(variable)
    if program is None:
        pytest.skip(f"no {request.param}: tests/servers/run.sh fetches it")
    with loopback.running(1, tmp_path_factory.mktemp(request.param), lambda root: kind(root, program)) as (one,):
        yield one


def url_of(broker: brokers.Mosquitto | brokers.RabbitMq, login: str = "") -> str:
    return f"{broker.scheme}://{login}127.0.0.1:{broker.port}"


def test_a_message_comes_to_all_who_hear_the_topic_and_to_nobody_else(
    broker: brokers.Mosquitto | brokers.RabbitMq,
) -> None:
    url = broker_of(url_of(broker))
    heard: dict[str, list[bytes]] = {"one": [], "two": [], "other": []}
    links = {name: connect_by(url)(url, TOPIC if name != "other" else "f" * 32, heard[name].append) for name in heard}
    threads = [threading.Thread(target=link.run) for link in links.values()]
    for thread in threads:
        thread.start()
    links["one"].publish(b"\x00" * 16)
    wait_for(lambda: heard["one"] and heard["two"], "the message")
    links["other"].publish(b"\x01" * 16)
    wait_for(lambda: heard["other"], "the other message")
    for link in links.values():
        link.close()
    for thread in threads:
        thread.join(HUNG_S)
        assert not thread.is_alive()
    assert heard == {"one": [b"\x00" * 16], "two": [b"\x00" * 16], "other": [b"\x01" * 16]}


def test_a_broker_that_ended_and_is_back_is_found_again(
    broker: brokers.Mosquitto | brokers.RabbitMq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push_channel, "topic_of", lambda _: TOPIC)
    monkeypatch.setattr(push_channel, "RETRY_S", (0.05, 0.5))
    said: tuple[list[str], list[str]] = ([], [])
    devices = []
    for words in said:
        keeper = FakeKeeper(Path("/w/docs"), Settings(), lambda _: None)
        channel = PushChannel(lambda what, words=words, **_: words.append(what))
        channel.begin(keeper, Settings({BROKER: url_of(broker)}))
        devices.append((keeper, channel))
    (one, _), (other, _) = devices
    wait_for(lambda: all("broker connected" in words for words in said), "both lines")
    before = other.asked.count("hint")
    one.published()
    wait_for(lambda: other.asked.count("hint") > before, "the hint")
    broker.stop()
    wait_for(lambda: all("broker away" in words for words in said), "the word about it")
    one.published()  # goes nowhere
    lines = [words.count("broker connected") for words in said]
    broker.start()
    wait_for(lambda: all(w.count("broker connected") > n for w, n in zip(said, lines, strict=True)), "both lines again")
    before = other.asked.count("hint")
    one.published()
    wait_for(lambda: other.asked.count("hint") > before, "the hint after it")
    for _, channel in devices:
        channel.end()


def test_a_wrong_login_is_told_without_the_password(broker: brokers.Mosquitto | brokers.RabbitMq) -> None:
    if broker.scheme == "mqtt":
        pytest.skip("this Mosquitto lets everybody in")
    url = with_password(broker_of(url_of(broker, "stranger@")), {PASSWORD: "s3cret", "METASYNC_KEYRING": "off"})
    with pytest.raises(BrokerError) as e:
        connect_by(url)(url, TOPIC, lambda _: None)
    assert "s3cret" not in str(e.value)
