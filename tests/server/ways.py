"""Several brokers that get the same requests, each of which handles them in another way.

Everything that a client, an operator or a consumer can see has to be equal: bytes of responses, records, committed
offsets, counts, lines of the log, spans, and when the connection is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import Enum
from itertools import count
from typing import Any, Protocol
from unittest.mock import patch
from uuid import UUID

import trio
from attrs import define
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import MockClock, wait_all_tasks_blocked

from korvet.broker.broker import Broker, open_broker
from korvet.broker.limits import ByteBudget
from korvet.config import Config
from korvet.coordination.runtime import Runtime
from korvet.faults.injection import Faults
from korvet.handlers import APIS
from korvet.metrics import names
from korvet.metrics.recorder import Recorder
from korvet.protocol.connection import Api
from korvet.protocol.wrapped_apis import WrappedApis
from korvet.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import STANDARD
from korvet.security.session import ANONYMOUS
from korvet.server.connection import ServedConnection, Shared
from korvet.server.receiving import RequestMemory
from korvet.storage.interface import PendingAck, PendingRead, ReadResult, Storage, Topic, TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.storage.proxy import StorageProxy
from korvet.testing.records import records_from
from korvet.tracing.requests import RequestSpans
from tests.handlers.quotas import set_quotas
from tests.server.transport import FakeTransport

NOW_MS = 1_700_000_000_000
LONGEST_WAIT_S = 3600.0
# Of members of groups: much longer than the steps of a test take.
SESSION_MS = 1_800_000
TOPICS = {
    "plain": {},
    "compacted": {"cleanup.policy": "compact"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "recent": {"message.timestamp.before.max.ms": "1000"},
    "small": {"max.message.bytes": "100"},
    "unchecked": {"record.validation": "batch"},
    "replicated": {"min.insync.replicas": "2"},
}
NAMES = (*TOPICS, "missing", "denied", "__consumer_offsets")
IDS = {name: UUID(int=number) for number, name in enumerate(TOPICS, 1)}


class Way(Enum):
    """A way in which the broker handles requests."""

    AS_SERVED = "without waiting if it can, and decoding by comparison"
    NEVER_COMPARES = "decoding all requests by the codec"
    WAITS = "waiting for everything, with a store that answers no call immediately"
    NOTIFIED = "with a store that notifies when it has answered"


@define
class Served:
    """A broker with one connection."""

    broker: Broker
    connection: ServedConnection
    transport: FakeTransport
    way: Way
    session_id: int = 0  # of the last fetch session, and the epoch of its next request
    session_epoch: int = -1

    async def ask(self, frame: bytes, wait_s: float = LONGEST_WAIT_S) -> None:
        """Send a frame, and wait until the broker waits for the next one, or has closed the connection."""
        incoming = self.connection.incoming
        if self.way is Way.NEVER_COMPARES:
            incoming._repeated, incoming._likeness, incoming._alike = None, None, 0
        self.transport.arrive(frame)
        await trio.sleep(wait_s)


class Step(Protocol):
    """A request of the client, or a change by another one."""

    async def apply(self, served: Served) -> None: ...


class NotifyingStorage(StorageProxy):
    """A storage in memory that answers reads and commits by a notification. The caller has to wait for some of them."""

    storage: MemoryStorage

    def __init__(self, storage: MemoryStorage) -> None:
        self.storage = storage
        self.begun = 0

    def known_topics(self) -> Mapping[str, Topic]:
        return self.storage.known_topics()

    def known_topic(self, name: str) -> Topic | None:
        return self.storage.known_topic(name)

    def known_topic_by_id(self, topic_id: UUID) -> Topic | None:
        return self.storage.known_topic_by_id(topic_id)

    def try_append(self, batches: Any, **options: Any) -> Any:
        return self.storage.try_append(batches, **options)

    def try_read(self, requests: Any, **options: Any) -> PendingRead:
        return NotifiedRead(self, self.storage.try_read(requests, **options))

    def try_ack(self, group_id: str, offsets: Any, **options: Any) -> PendingAck:
        return NotifiedAck(self, self.storage.try_ack(group_id, offsets, **options))


class Notified:
    """A call of a NotifyingStorage. It has been executed already."""

    def __init__(self, storage: NotifyingStorage, results: Any) -> None:
        self.storage = storage
        self.results = results
        self.is_abandoned = False
        storage.begun += 1
        self.number = storage.begun

    def notify(self, call: Callable[[], None]) -> bool:
        if not self.number % 5:
            return False
        trio.lowlevel.current_trio_token().run_sync_soon(lambda: None if self.is_abandoned else call())
        return True

    def known_results(self) -> Any:
        return None if not self.number % 3 else self.results

    async def wait(self) -> Any:
        await trio.lowlevel.checkpoint()
        return self.results

    def abandon(self) -> None:
        self.is_abandoned = True


class NotifiedRead(Notified, PendingRead):
    """A read."""

    def report_ends(self) -> None:
        memory = self.storage.storage
        for tp, result in self.results.items():
            log = memory._logs.get(tp)
            if log is None or not isinstance(result, ReadResult) or log.bounds != result.offsets:
                memory._wake(tp)


class NotifiedAck(Notified, PendingAck):
    """A commit."""


@contextmanager
def deterministic(way: Way) -> Iterator[None]:
    """Let ids not be random, and groups not answer immediately in the way that waits."""
    topics, members, sessions = iter(IDS.values()), count(1), count()
    with ExitStack() as stack:
        stack.enter_context(patch("korvet.storage.memory.uuid4", lambda: next(topics)))
        for module in ("classic", "mixed"):
            stack.enter_context(patch(f"korvet.groups.{module}.uuid4", lambda: UUID(int=next(members))))
        stack.enter_context(patch("korvet.broker.fetch_sessions.secrets.randbelow", lambda _: next(sessions)))
        if way is Way.WAITS:
            stack.enter_context(patch.object(Runtime, "at_rest", lambda *_: None))
        yield


def storage_for(way: Way, memory: MemoryStorage) -> Storage:
    """Return the storage of a broker that works in that way."""
    if way is Way.WAITS:
        return StorageProxy(memory)
    return NotifyingStorage(memory) if way is Way.NOTIFIED else memory


@define
class Delete:
    """Another client deletes a topic."""

    topic: str

    async def apply(self, served: Served) -> None:
        topics = {each.name: each for each in await served.broker.all_topics()}
        if self.topic in topics:
            await served.broker.delete_topic(topics[self.topic])


@define
class Alter:
    """Another client alters a topic's settings."""

    topic: str
    settings: dict[str, str]

    async def apply(self, served: Served) -> None:
        topics = {each.name: each for each in await served.broker.all_topics()}
        if self.topic in topics:
            await served.broker.alter_topic(topics[self.topic], partitions=None, settings=self.settings)


@define
class Deny:
    """Another client adds or removes ACLs that deny topics to every client."""

    topics: Sequence[str]

    async def apply(self, served: Served) -> None:
        assert served.broker.authorization is not None
        served.broker.authorization.authorizer.acls_changed(
            [
                Acl(
                    ResourceType.TOPIC,
                    PatternType.LITERAL,
                    topic,
                    ANONYMOUS,
                    "*",
                    Operation.ALL,
                    Permission.DENY,
                )
                for topic in (*self.topics, "denied")
            ]
        )


@define
class Leave:
    """The broker begins to leave the cluster, so that it leads no partition."""

    async def apply(self, served: Served) -> None:
        served.broker.membership.is_leaving = True


@define
class Limit:
    """Another client sets quotas, in bytes per second and in percent of a processor."""

    bytes_per_second: float

    async def apply(self, served: Served) -> None:
        await set_quotas(
            served.broker,
            {"client-id": "me"},
            producer_byte_rate=self.bytes_per_second,
            request_percentage=1e9,
        )


@define
class Outcome:
    """Everything that is visible after all steps."""

    sent: bytes
    is_closed: bool
    records: dict[str, Any]
    samples: dict[str, Any]
    lines: list[tuple[str, str]]
    spans: list[Any]


class Lines(logging.Handler):
    """Collects lines of the log."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.name, record.getMessage()))


async def outcome_of(steps: Sequence[Step], way: Way, *, is_wrapped: bool) -> Outcome:
    """Return the outcome on a broker with metrics, an authorizer and an audit log.

    If it `is_wrapped`, it has traces and a table of faults, too.
    """
    with deterministic(way):
        return await _outcome_of(steps, way, is_wrapped=is_wrapped)


async def _outcome_of(steps: Sequence[Step], way: Way, *, is_wrapped: bool) -> Outcome:
    storage = MemoryStorage(clock=lambda: NOW_MS)
    for name, given_settings in TOPICS.items():
        await storage.create_topic(name, 2, given_settings)
    recorder = Recorder(100)
    config = Config(
        authorizer_class_name=STANDARD,
        allow_everyone_if_no_acl_found=True,
        group_consumer_session_timeout_ms=SESSION_MS,
        group_consumer_max_session_timeout_ms=SESSION_MS,
    )
    broker = await open_broker(storage_for(way, storage), config, counters=recorder, clock=lambda: NOW_MS)
    transport = FakeTransport()
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    apis: Mapping[int, Api] = APIS
    if is_wrapped:
        apis = Faults().apis(WrappedApis(APIS, lambda api: RequestSpans(tracer, api).handle))
    shared = Shared(broker, apis, RequestMemory(ByteBudget(-1)))
    connection = ServedConnection(transport, "127.0.0.1:5", "PLAINTEXT", shared)
    served = Served(broker, connection, transport, way)
    lines = Lines()
    logger = logging.getLogger("korvet")
    logger.addHandler(lines)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.groups.run)
            nursery.start_soon(connection.serve)
            try:
                await Deny(()).apply(served)
                for step in steps:
                    await step.apply(served)
                is_closed = transport.is_closed
            finally:
                connection.end()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
    stored = {
        f"{topic.name}-{number}": await records_from(storage, TopicPartition(topic.name, number))
        for topic in await broker.all_topics()
        for number in range(topic.partitions)
    }
    groups = {
        group_id: (await storage.committed(group_id), held.machine.wake_ms, held.writes)
        for group_id, held in broker.groups.runtime.held.items()
    }
    samples = {**recorder.samples()}
    times = samples.pop(names.REQUEST_PHASE_SECONDS)
    samples["times"] = {labels: sum(values[:-1]) for labels, values in times.items() if labels[1] == "sent"}
    budgets = {
        "requests": shared.memory.budget.taken,
        "answers": (broker.answers.taken, broker.answers.read),
        "progress": repr(connection),
        "watches": sorted(storage._watches),
        "sessions": len(broker.fetch_sessions),
    }
    spans = [(each.name, each.attributes, each.status.status_code) for each in exporter.get_finished_spans()]
    return Outcome(bytes(transport.sent), is_closed, stored | groups, samples | budgets, lines.lines, spans)


def outcomes(*steps: Step, ways: Sequence[Way], is_wrapped: bool = False) -> Outcome:
    """Return the outcome of the steps, which is the same in each way."""
    first, *others = (
        trio.run(
            lambda way=way: outcome_of(steps, way, is_wrapped=is_wrapped),
            clock=MockClock(autojump_threshold=0),
        )
        for way in ways
    )
    for other in others:
        assert first == other
    return first
