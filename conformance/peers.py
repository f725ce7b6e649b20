"""The brokers: Apache Kafka, and korvet on memory and on Redis in both layouts, started like users start them.

Settings that both have are equal, so that a difference is one of behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from attrs import frozen

from conformance.apache_kafka import ApacheKafka
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server


@frozen
class Peer:
    """A running broker, with the properties that affect how its responses are compared."""

    name: str
    port: int
    dense: bool = True  # offsets are 0, 1, 2, …; otherwise they follow the clock
    keeps_batches: bool = (
        True  # consumers get the producers' batches; otherwise the same records in other batches
    )

    @property
    def is_kafka(self) -> bool:
        """True for Apache Kafka, with which the others are compared."""
        return self.name == KAFKA


KAFKA = "Apache Kafka"
MEMORY = "memory"
RECORDS = "Redis, records"
BATCHES = "Redis, batches"
#: korvet's brokers, in the order in which differences name them.
OURS = (MEMORY, RECORDS, BATCHES)

#: Short intervals, because scenarios wait for them; and settings that expose differences.
SETTINGS: Mapping[str, str] = {
    "group.initial.rebalance.delay.ms": "500",
    "group.min.session.timeout.ms": "1000",
    "group.max.session.timeout.ms": "60000",
    "group.max.size": "4",
    "offset.metadata.max.bytes": "64",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
}
#: The delay until Kafka's housekeeping begins.
KAFKA_SETTINGS: Mapping[str, str] = {"log.initial.task.delay.ms": "500"}
REDIS_SETTINGS: Mapping[str, Mapping[str, str]] = {
    RECORDS: {"storage.layout": "record", "offset.mapping": "timestamp"},
    BATCHES: {"storage.layout": "batch", "offset.mapping": "dense"},
}


@contextmanager
def peers(ours: tuple[str, ...] = OURS) -> Iterator[list[Peer]]:
    """Start Apache Kafka and korvet's named brokers one after another, and stop them on exit."""
    # Not concurrently: a process that ends with its parent (PDEATHSIG) ends with the thread that started it.
    with ExitStack() as stack:
        yield [start(stack) for start in (_kafka, *(_STARTS[name] for name in ours))]


def _kafka(stack: ExitStack) -> Peer:
    kafka = stack.enter_context(ApacheKafka(settings={**SETTINGS, **KAFKA_SETTINGS}))
    return Peer(KAFKA, kafka.port)


def _memory(stack: ExitStack) -> Peer:
    korvet = stack.enter_context(KorvetProcess(settings=SETTINGS))
    return Peer(MEMORY, korvet.port)


def _redis(name: str) -> Callable[[ExitStack], Peer]:
    def start(stack: ExitStack) -> Peer:
        server = start_server(VALKEY)
        stack.callback(server.remove)
        settings = {**SETTINGS, **REDIS_SETTINGS[name]}
        korvet = stack.enter_context(KorvetProcess(storage=server.url, settings=settings))
        return Peer(name, korvet.port, dense=name != RECORDS, keeps_batches=name != RECORDS)

    return start


_STARTS: Mapping[str, Callable[[ExitStack], Peer]] = {
    MEMORY: _memory,
    RECORDS: _redis(RECORDS),
    BATCHES: _redis(BATCHES),
}
