"""What parts of `python -m conformance.clients` are given, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from attrs import frozen

from conformance.apache_kafka import ApacheKafka
from tests.processes import KorvetProcess
from tests.servers import VALKEY, start_server

SETTINGS = {"group.initial.rebalance.delay.ms": "200", "group.min.session.timeout.ms": "1000"}
REDIS = {
    "record/timestamp": {"storage.layout": "record", "offset.mapping": "timestamp"},
    "batch/dense": {"storage.layout": "batch", "offset.mapping": "dense"},
}


@frozen
class Target:
    """A running broker."""

    name: str
    bootstrap_servers: str
    is_kafka: bool = False
    dense: bool = True  # offsets are 0, 1, 2, …; else they follow the clock


@frozen
class Result:
    """One check on one broker; `fault` is empty when all was well."""

    check: str
    target: str
    fault: str = ""


class Unavailable(Exception):  # noqa: N818  it says what is missing
    """Something that a part needs is not on this machine, or could not be fetched."""


Part = Callable[[Sequence[Target]], Iterator[Result]]


@contextmanager
def targets() -> Iterator[list[Target]]:
    """Apache Kafka, and korvet on memory and on Redis in both layouts; all have ended when this ends."""
    with ExitStack() as stack:
        kafka = stack.enter_context(ApacheKafka(settings=SETTINGS))
        found = [Target("Apache Kafka", kafka.bootstrap_servers, is_kafka=True)]
        memory = stack.enter_context(KorvetProcess(settings=SETTINGS))
        found.append(Target("memory", memory.bootstrap_servers))
        for name, form in REDIS.items():
            server = start_server(VALKEY)
            stack.callback(server.remove)
            korvet = stack.enter_context(KorvetProcess(storage=server.url, settings={**SETTINGS, **form}))
            found.append(Target(name, korvet.bootstrap_servers, dense="dense" in name))
        yield found
