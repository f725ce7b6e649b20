"""A waiting Fetch is answered immediately when a record arrives: through another broker, or by a plain XADD."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import pytest

from korvet.protocol.record_batch import build_batch, parse_batches
from tests.failures.conftest import (
    BATCH_DENSE,
    BATCH_TIMESTAMP,
    RECORD_DENSE,
    RECORD_TIMESTAMP,
    Kept,
    Report,
    StartBroker,
)
from tests.processes import KorvetProcess
from tests.servers import RedisServer, StartServer
from tests.support.wire import (
    Wire,
    create_topic,
    fetch_request,
    fetched,
    first_answer,
    frame_of,
    list_offsets_request,
    listed_offset,
    produce_request,
    produced,
)

TRIES = 9
MAX_WAIT_MS = 30_000
BOUND_S = 0.1
LATEST = -1


def wait_until_parked(server: RedisServer, broker: KorvetProcess) -> None:
    """Return once a Fetch waits in the broker: Redis has a blocked client, and the broker is idle."""
    deadline = time.monotonic() + 10
    with server.client() as client:
        while not client.info("clients")["blocked_clients"]:
            assert time.monotonic() < deadline, "no broker waits for anything"
    # Connections are served in turn: when this is answered, the Fetch before it has begun.
    for _ in range(3):
        first_answer(broker.port)


def answer_times(
    server: RedisServer, reader: KorvetProcess, topic: str, write: Callable[[], None]
) -> list[float]:
    """Return the seconds from the start of a write until a waiting Fetch is answered with a record, several times."""
    times_s = []
    with Wire(reader.port) as wire:
        for _ in range(TRIES):
            wire.send(frame_of(list_offsets_request(topic, LATEST)))
            offset = listed_offset(wire.receive())
            wire.send(frame_of(fetch_request(topic, offset, max_wait_ms=MAX_WAIT_MS)))
            wait_until_parked(server, reader)
            started = time.perf_counter()
            write()
            records = fetched(wire.receive())
            times_s.append(time.perf_counter() - started)
            assert sum(batch.record_count for batch in parse_batches(records)) == 1
    return times_s


@pytest.mark.parametrize("kept", [RECORD_TIMESTAMP, RECORD_DENSE, BATCH_TIMESTAMP, BATCH_DENSE], ids=str)
def test_parked_fetch_is_answered_when_another_broker_writes(
    new_server: StartServer, start_broker: StartBroker, topic: str, kept: Kept, report: Report
) -> None:
    server = new_server()
    writer, reader = (start_broker(server.url, kept.settings) for _ in range(2))
    create_topic(writer.port, topic)
    request = frame_of(produce_request(topic, build_batch([(0, 1, None, b"value", ())])))

    with Wire(writer.port) as wire:

        def write() -> None:
            wire.send(request)
            produced(wire.receive())

        times_s = answer_times(server, reader, topic, write)
    report(f"answered after {', '.join(f'{1000 * time_s:.1f}' for time_s in times_s)} ms")

    assert median(times_s) <= BOUND_S


@pytest.mark.parametrize("kept", [RECORD_TIMESTAMP, RECORD_DENSE, BATCH_TIMESTAMP, BATCH_DENSE], ids=str)
def test_parked_fetch_is_answered_when_a_plain_client_adds_an_entry(
    new_server: StartServer, start_broker: StartBroker, topic: str, kept: Kept, report: Report
) -> None:
    server = new_server()
    reader = start_broker(server.url, kept.settings)
    create_topic(reader.port, topic)
    # With dense offsets, offset n is the entry (n + 1)-0.
    numbers = iter(range(1, 1 + TRIES))

    with server.client() as client:

        def write() -> None:
            entry_id = f"{next(numbers)}-0" if kept.mapping == "dense" else "*"
            client.xadd(f"korvet:{topic}:0", {"value": "by hand"}, id=entry_id)

        times_s = answer_times(server, reader, topic, write)
    report(f"answered after {', '.join(f'{1000 * time_s:.1f}' for time_s in times_s)} ms")

    assert median(times_s) <= BOUND_S
