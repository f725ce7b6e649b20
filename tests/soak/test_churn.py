"""Eight consumers of one group join, leave and are killed for minutes, and so is a broker.

No record is lost, no committed offset decreases, and the group becomes stable as soon as the churn ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random

import pytest
import redis
from attrs import define, field
from confluent_kafka import ConsumerGroupState, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from tests.clients.confluent import Confluent
from tests.clients.interface import LIMIT_S
from tests.clients.workers import CONFLUENT, KAFKA_PYTHON, Workers
from tests.failures.conftest import Report, StartBroker
from tests.processes import KorvetProcess
from tests.servers import REDIS_PATH, VALKEY, RedisServer, ServerKind, start_server

PARTITIONS = 12
CONSUMERS = 8
SESSION_MS = 6000
STEPS = 50
PAUSE_S = 2.5
BROKER_DIES_IN = (STEPS // 3, 2 * STEPS // 3)
RECORDS_PER_S = 50
# A killed member is removed after its session timeout. The others learn it with a heartbeat, and join once or twice.
REBALANCE_S = 2.0


@define
class Positions:
    """The group's committed offsets in Redis, polled all the time."""

    client: redis.Redis
    seen: dict[bytes, int] = field(factory=dict)
    looks: int = 0
    moves: int = 0
    went_back: list[str] = field(factory=list)
    _ended: threading.Event = field(factory=threading.Event)

    @contextmanager
    def watched(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.05):
            self.look()

    def look(self) -> None:
        self.looks += 1
        for name, value in self.client.hgetall("korvet:$group:g").items():
            if name.startswith(b"offset:"):
                position = int(value.split(b" ")[0])
                before = self.seen.get(name, position)
                self.moves += position != before
                if position < before:
                    self.went_back.append(f"{name.decode()}: {before} to {position}")
                self.seen[name] = position


@define
class Source:
    """A producer that runs all the time, and its acknowledged records."""

    bootstrap_servers: str
    topic: str
    delivered: set[str] = field(factory=set)
    errors: list[KafkaError] = field(factory=list)
    _ended: threading.Event = field(factory=threading.Event)

    @contextmanager
    def producing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._produce)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
        )
        number = 0
        while not self._ended.wait(1 / RECORDS_PER_S):
            producer.produce(
                self.topic, str(number), partition=number % PARTITIONS, on_delivery=self._delivered
            )
            producer.poll(0)
            number += 1
        assert not producer.flush(3 * LIMIT_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        if error is not None:
            self.errors.append(error)
        elif value is not None:
            self.delivered.add(value.decode())


@pytest.fixture(
    params=[(VALKEY, "range"), (REDIS_PATH, "cooperative-sticky")],
    ids=lambda each: f"{each[0].id}-{each[1]}",
)
def server_and_strategy(request: pytest.FixtureRequest) -> Iterator[tuple[RedisServer, str]]:
    kind: ServerKind
    kind, strategy = request.param
    server = start_server(kind, durable=True)
    yield server, strategy
    server.remove()


def test_group_in_churn_loses_no_record_and_becomes_stable(
    server_and_strategy: tuple[RedisServer, str], start_broker: StartBroker, topic: str, report: Report
) -> None:
    server, strategy = server_and_strategy
    random = Random(strategy)
    broker = start_broker(server.url, {"group.initial.rebalance.delay.ms": "500"})
    Confluent(broker.bootstrap_servers).create_topic(topic, partitions=PARTITIONS)
    workers = Workers(broker.bootstrap_servers, topic, strategy, SESSION_MS)
    source = Source(broker.bootstrap_servers, topic)
    positions = Positions(server.client())
    began_s = time.monotonic()
    with ExitStack() as stack:
        stack.callback(workers.kill_all)
        stack.enter_context(positions.watched())
        for _ in range(CONSUMERS):
            start_one(workers, random)
        with source.producing():
            for step in range(STEPS):
                churn(workers, random)
                if step in BROKER_DIES_IN:
                    broker.kill()
                    broker.start()
                threading.Event().wait(random.uniform(0.2, 2 * PAUSE_S))
            workers.kill(random.randrange(len(workers.alive)))
            while len(workers.alive) < CONSUMERS:
                start_one(workers, random)
            calm_s = seconds_until_stable(broker, workers)
        workers.wait_for(source.delivered)
        positions.look()
        lag = partitions_behind(broker, topic)
    report(
        f"{time.monotonic() - began_s:.0f} s, {len(source.delivered)} records, {workers.repeated} of them"
        f" processed again, {positions.moves} moves seen in {positions.looks} looks, at rest after {calm_s:.1f} s"
    )

    assert not source.errors
    assert not positions.went_back
    assert (
        calm_s <= SESSION_MS / 1000 + 1
    )  # the session of a killed member expires; heartbeats then return REBALANCE_IN_PROGRESS
    assert 0 == lag


def start_one(workers: Workers, random: Random) -> None:
    """Start another consumer, of any library that supports the strategy."""
    programs = [CONFLUENT] if workers.strategy == "cooperative-sticky" else [CONFLUENT, KAFKA_PYTHON]
    workers.start(random.choice(programs))


def churn(workers: Workers, random: Random) -> None:
    """Remove a consumer, in one of several ways, or start some."""
    what = random.choice(["kill", "kill and replace", "leave", "leave and replace", "fill up"])
    if what == "fill up" or len(workers.alive) <= CONSUMERS // 2:
        while len(workers.alive) < CONSUMERS:
            start_one(workers, random)
        return
    number = random.randrange(len(workers.alive))
    if what.startswith("kill"):
        workers.kill(number)
    else:
        workers.leave_group(number)
    if what.endswith("replace"):
        start_one(workers, random)


def seconds_until_stable(broker: KorvetProcess, workers: Workers) -> float:
    """Return the seconds until the group is Stable with exactly the members that are alive."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    began_s = time.monotonic()
    while time.monotonic() - began_s < 10 * SESSION_MS / 1000:
        group = admin.describe_consumer_groups(["g"])["g"].result(LIMIT_S)
        members = sorted(member.client_id for member in group.members)
        if group.state == ConsumerGroupState.STABLE and members == sorted(workers.client_ids):
            break
        threading.Event().wait(0.1)
    return time.monotonic() - began_s


def partitions_behind(broker: KorvetProcess, topic: str) -> int:
    """Return the number of partitions whose committed offset is not the end, once the last commit has arrived."""
    client = Confluent(broker.bootstrap_servers)
    began_s = time.monotonic()
    while True:
        behind = 0
        for partition in range(PARTITIONS):
            committed = client.committed("g", topic, partition=partition)
            behind += committed is None or committed[0] != client.bounds(topic, partition=partition)[1]
        if not behind or time.monotonic() - began_s > LIMIT_S:
            return behind
        threading.Event().wait(0.2)
