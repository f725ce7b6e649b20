"""A broker inside a Trio program, with shortcuts for tests that need no Kafka client.

The shortcuts use the broker's log directly, not the Kafka protocol, so that they also work while clients are refused.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import TypeVar

import trio
from attrs import define, field, frozen

from korvet.broker.broker import Broker, partition_of
from korvet.broker.context import RequestContext
from korvet.broker.topics import NewTopic
from korvet.config import Config, load_config
from korvet.faults.injection import Faults, expire
from korvet.handlers import APIS
from korvet.protocol.errors import KafkaError
from korvet.protocol.record import Headers
from korvet.server.assembly import open_server
from korvet.server.server import Server
from korvet.storage.interface import AppendResult
from korvet.testing.records import Record, batch, records_from, results_of

#: Settings that differ from those of `korvet serve`: offsets are 0, 1, 2, …, and groups do not wait for more members.
SETTINGS = {
    "listeners": "127.0.0.1:0",
    "offset.mapping": "dense",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
}
LIMIT_S = 10.0
PAUSE_S = 0.005

Data = bytes | str | None
T = TypeVar("T")


@frozen
class ReceivedRecord:
    """A record in a topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


@define(eq=False)
class ServedBroker:
    """A broker that serves until its block ends."""

    server: Server
    faults: Faults
    _numbers: Iterator[int] = field(factory=count, repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, as `host:port`."""
        return self.server.bootstrap_servers

    @property
    def _broker(self) -> Broker:
        return self.server.broker

    def new_name(self, prefix: str = "topic") -> str:
        """Return a name for a topic or a group that no other call has returned."""
        return f"{prefix}-{next(self._numbers)}"

    async def create_topic(
        self, name: str | None = None, *, partitions: int = 1, settings: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, by default with a new name, and return its name. Raises KafkaError."""
        name = self.new_name() if name is None else name
        new = NewTopic(name, partitions, settings=[*(settings or {}).items()])
        await self._broker.create_topic(await self._broker.plan_topic(new))
        return name

    async def produce(
        self,
        topic: str,
        *values: Data,
        key: Data = None,
        headers: Mapping[str, bytes | None] | None = None,
        timestamp_ms: int | None = None,
        partition: int = 0,
    ) -> list[int]:
        """Append records with these values to a topic, which is created if it does not exist. Return their offsets.

        Text is encoded as UTF-8. The timestamp is the present time by default. Raises KafkaError.
        """
        when = self._broker.clock() if timestamp_ms is None else timestamp_ms
        pairs = tuple((headers or {}).items())
        records = [Record(as_bytes(value), as_bytes(key), when, pairs) for value in values]
        if not records:
            return []
        found = await self._broker.topic_or_new(RequestContext(0), topic)
        tp = partition_of(found, partition)
        appending = await self._broker.log.begin_append({tp: batch(records)}, acks=-1, timeout_s=LIMIT_S)
        base_offset = succeeded((await results_of(appending))[tp]).base_offset
        return [*range(base_offset, base_offset + len(records))]

    async def records(self, topic: str, partition: int | None = None) -> list[ReceivedRecord]:
        """Return all records of a topic or of one partition, by partition and offset. Raises KafkaError."""
        found = await self._broker.find_topic(topic)
        numbers = range(found.partitions) if partition is None else [partition]
        return [
            ReceivedRecord(number, each.offset, each.timestamp, each.key, each.value, each.headers)
            for number in numbers
            for each in await records_from(self._broker.log, partition_of(found, number))
        ]

    async def committed(self, group_id: str, topic: str) -> dict[int, int]:
        """Return the committed offsets of a group by partition of the topic."""
        found = await self._broker.groups.committed(group_id, None)
        return {tp.partition: each.offset for tp, each in sorted(found.items()) if tp.topic == topic}

    async def expire_member(self, group_id: str, member_id: str | None = None) -> None:
        """Remove a member of a group, or all, as if its session had timed out. Raises GroupIdNotFound."""
        await expire(self._broker, group_id, member_id)

    async def wait_until(self, condition: Callable[[], Awaitable[T]], timeout_s: float = LIMIT_S) -> T:
        """Await `condition()` repeatedly until its result is true, and return the result. Raises TimeoutError."""
        with trio.move_on_after(timeout_s):
            while not (result := await condition()):  # noqa: ASYNC110  any condition, which sets no event
                await trio.sleep(PAUSE_S)
            return result
        raise not_in_time(condition, timeout_s)


def as_bytes(data: Data) -> bytes | None:
    """Return bytes, or text as UTF-8. Raises TypeError for anything else."""
    if isinstance(data, str):
        return data.encode()
    if data is not None and not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"{data!r} is {type(data).__name__}; accepted for keys and values: str, bytes, None")
    return data


def succeeded(result: AppendResult | KafkaError) -> AppendResult:
    """Return the result of an append to one partition. Raises its error."""
    if isinstance(result, KafkaError):
        raise result
    return result


def not_in_time(condition: object, timeout_s: float) -> TimeoutError:
    name = getattr(condition, "__qualname__", repr(condition))
    return TimeoutError(f"{name} did not become true within {timeout_s:g} s")


@contextmanager
def config_for(storage: str, settings: Mapping[str, str] | None) -> Iterator[Config]:
    """Yield the settings of a test's broker: `SETTINGS`, then `settings`. Raises ConfigError.

    The storage is `memory`, `embedded` for a private server in a temporary folder, or any storage URL.
    """
    flags = SETTINGS | dict(settings or {})
    if storage != "embedded":
        yield load_config(flags=flags | {"storage": "memory://" if storage == "memory" else storage})
        return
    # The folder's name is short, since the path of a Unix socket may have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="korvet-", ignore_cleanup_errors=True) as folder:
        yield load_config(flags=flags | {"storage": f"embedded:{folder}/data"})


@asynccontextmanager
async def serving(
    storage: str = "memory", settings: Mapping[str, str] | None = None
) -> AsyncIterator[ServedBroker]:
    """Run a broker for the time of a block. See `config_for` for the arguments.

    Raises ConfigError, ListenError and StorageUsageError.
    """
    with config_for(storage, settings) as config:
        faults = Faults()
        async with open_server(config, apis=faults.apis(APIS)) as server:
            yield ServedBroker(server, faults)
