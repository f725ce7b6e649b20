"""The failures that docs/operations.md describes, with a real producer and a real consumer; prints the results.

Power loss is simulated: a library preloaded into Redis records how much of each file was synced, and when Redis is
killed, its files are truncated to that length. This is the worst case for a disk that honours fsync; usually the system
has written more by then.

If acknowledged records are lost, an idempotent producer of librdkafka ends with a fatal error, as after an unclean
leader election in Kafka: its next sequence numbers do not follow the stored ones. So tests that expect losses use plain
producers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from attrs import define

from tests.clients.confluent import Confluent
from tests.failures.conftest import Report, StartBroker
from tests.processes import KorvetProcess
from tests.servers import REDIS_PATH, RedisServer, start_replica, start_server
from tests.soak.attempt import Attempt
from tests.syncs import Syncs, build_syncs, cut_power

BEFORE = 800
AFTER = 400


@pytest.fixture
def server() -> Iterator[RedisServer]:
    server = start_server(REDIS_PATH, durable=True, options={"appendfsync": "everysec"})
    yield server
    server.remove()


def attempt(
    broker: KorvetProcess,
    topic: str,
    happen: Callable[[], object],
    *,
    acks: str = "all",
    idempotent: bool = True,
) -> Attempt:
    """Call `happen` in the middle of work."""
    Confluent(broker.bootstrap_servers).create_topic(topic)
    with Attempt(broker.bootstrap_servers, topic, acks, idempotent) as at_work:
        at_work.wait_for_the_first_read()
        at_work.wait_for_more(BEFORE)
        happen()
        at_work.wait_for_more(AFTER)
    return at_work


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_clients_survive_a_broker_restart(
    server: RedisServer, start_broker: StartBroker, topic: str, how: str, acks: str, report: Report
) -> None:
    broker = start_broker(server.url)

    def end() -> None:
        getattr(broker, how)()
        broker.start()

    outcome = attempt(broker, topic, end, acks=acks).outcome()
    report(str(outcome))

    assert outcome.lost == 0 or acks == "0"
    assert outcome.consumer_goes_on


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_clients_survive_a_redis_restart(
    server: RedisServer, start_broker: StartBroker, topic: str, acks: str, report: Report
) -> None:
    with server.client() as client:
        # While a sync of `everysec` is under way, Redis answers before it writes: tests/failures/test_slow_disk.py.
        client.config_set("appendfsync", "no")
    broker = start_broker(server.url)

    def end() -> None:
        server.kill()
        server.start()

    outcome = attempt(broker, topic, end, acks=acks).outcome()
    report(str(outcome))

    assert outcome.lost == 0 or acks == "0"
    assert outcome.consumer_goes_on


def test_clients_survive_a_full_redis(
    server: RedisServer, start_broker: StartBroker, topic: str, report: Report
) -> None:
    broker = start_broker(server.url)

    def fill() -> None:
        with server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", "1")
            threading.Event().wait(5)
            client.config_set("maxmemory", "0")

    outcome = attempt(broker, topic, fill).outcome()
    report(str(outcome))
    report(f"log: {[line for line in broker.log if 'OOM' in line][:1]}")

    assert (0, 0) == (outcome.lost, outcome.repeated)
    assert outcome.consumer_goes_on


@pytest.mark.parametrize("insync", ["1", "2"])
@pytest.mark.parametrize("how", ["killed", "running"])
def test_clients_survive_a_failover_to_a_replica(
    start_broker: StartBroker, topic: str, tmp_path: Path, how: str, insync: str, report: Report
) -> None:
    """The old primary is killed a second after the replica lost it, or keeps running and answers the broker."""
    address = tmp_path / "redis"
    with ExitStack() as servers:
        primary = start_server(REDIS_PATH, tcp=True)
        servers.callback(primary.remove)
        replica = start_replica(primary)
        servers.callback(replica.remove)
        address.symlink_to(primary.socket)
        broker = start_broker(f"unix://{address}", {"min.insync.replicas": insync})

        def fail_over() -> None:
            with replica.client() as client:
                client.replicaof("127.0.0.1", "1")  # no server listens there
                threading.Event().wait(1)
                if how == "killed":
                    primary.kill()
                client.replicaof("NO", "ONE")
            servers.callback(start_replica(replica).remove)
            address.unlink()
            address.symlink_to(replica.socket)
            if how == "running":
                broker.wait_for_log("leads to another server")

        outcome = attempt(broker, topic, fail_over, idempotent=False).outcome()
    report(str(outcome))

    assert outcome.lost == 0 or insync == "1"
    assert outcome.consumer_goes_on


@define
class Plug:
    """A server with simulated power loss."""

    server: RedisServer
    syncs: Syncs
    setting: str  # one of POWER

    def cut(self) -> None:
        """Kill the server, and truncate its files to what was synced."""
        self.server.kill()
        cut_power(self.server.folder, self.syncs)
        self.server.start()


POWER = {
    "always": {"appendonly": "yes", "appendfsync": "always"},
    "everysec": {"appendonly": "yes", "appendfsync": "everysec"},
    "no": {"appendonly": "yes", "appendfsync": "no"},
    "snapshots": {"appendonly": "no", "save": "1 1"},
    "nothing": {"appendonly": "no"},
}


@pytest.fixture
def plug(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    syncs = build_syncs(tmp_path)
    with monkeypatch.context() as patch:
        for name, value in syncs.environment().items():
            patch.setenv(name, value)
        server = start_server(REDIS_PATH, options=POWER[request.param])
    yield Plug(server, syncs, request.param)
    server.remove()


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("plug", list(POWER), indirect=True)
def test_clients_survive_a_power_loss(
    plug: Plug, start_broker: StartBroker, topic: str, acks: str, report: Report
) -> None:
    broker = start_broker(plug.server.url)
    outcome = attempt(broker, topic, plug.cut, acks=acks, idempotent=False).outcome()
    report(str(outcome))

    assert outcome.lost == 0 or acks == "0" or plug.setting != "always"
    assert outcome.consumer_goes_on
