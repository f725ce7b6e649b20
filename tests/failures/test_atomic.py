"""Redis holds only whole batches, also while brokers write and while one of them is killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from attrs import define, field

from korvet.protocol.record_batch import build_batch, decode_records, parse_batches
from tests.failures.conftest import EACH_LAYOUT, Kept, Report, StartBroker
from tests.processes import KorvetProcess
from tests.servers import RedisServer
from tests.support.wire import Wire, create_topic, frame_of, produce_request, produced

BATCH_RECORDS = 50
IN_FLIGHT = 4
KILLS = 2
BATCHES_BETWEEN = 60
LIMIT_S = 60.0


@define
class Writer:
    """Produces batches through one broker, from a thread; reconnects when the broker is gone, and never retries."""

    broker: KorvetProcess
    topic: str
    name: str
    acknowledged: set[str] = field(factory=set)
    unanswered: list[int] = field(factory=list)  # unanswered requests at each lost connection
    _changed: threading.Condition = field(factory=threading.Condition, repr=False)
    _stopping: threading.Event = field(factory=threading.Event, repr=False)

    def run(self) -> None:
        labels = (f"{self.name}-{number}" for number in range(1_000_000))
        while not self._stopping.is_set():
            with suppress(ConnectionError), Wire(self.broker.port) as wire:
                self._produce(wire, labels)

    def stop(self) -> None:
        self._stopping.set()

    def wait_for_more(self, count: int) -> None:
        """Return once `count` more batches are acknowledged."""
        with self._changed:
            target = len(self.acknowledged) + count
            assert self._changed.wait_for(lambda: len(self.acknowledged) >= target, LIMIT_S)

    def _produce(self, wire: Wire, labels: Iterator[str]) -> None:
        in_flight: list[str] = []
        try:
            while not self._stopping.is_set():
                in_flight.append(next(labels))
                wire.send(frame_of(produce_request(self.topic, labelled_batch(in_flight[-1]))))
                if len(in_flight) == IN_FLIGHT:
                    self._answered(wire, in_flight)
            while in_flight:
                self._answered(wire, in_flight)
        finally:
            if in_flight:
                self.unanswered.append(len(in_flight))

    def _answered(self, wire: Wire, in_flight: list[str]) -> None:
        produced(wire.receive())
        with self._changed:
            self.acknowledged.add(in_flight.pop(0))
            self._changed.notify_all()


def labelled_batch(label: str) -> bytearray:
    """Return a batch whose records have the batch's label as key."""
    return build_batch([(index, 1, label.encode(), b"%d" % index, ()) for index in range(BATCH_RECORDS)])


@define
class Observer:
    """Reads a stream repeatedly as a plain Redis client, and counts each batch's records in each reading."""

    server: RedisServer
    key: str
    counts: Counter[str] = field(factory=Counter)
    readings: int = 0
    _stopping: threading.Event = field(factory=threading.Event, repr=False)

    def run(self) -> None:
        last = "-"
        with self.server.client() as client:
            while True:
                stopping = self._stopping.is_set()  # read first, so that the last reading sees everything
                entries = client.xrange(self.key, last, "+")
                if entries:
                    last = "(" + entries[-1][0].decode()
                    self._count(entries)
                elif stopping:
                    return

    def stop(self) -> None:
        self._stopping.set()

    def _count(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        seen = Counter(label for _, fields in entries for label in labels_of(fields))
        self.counts += seen
        self.readings += 1
        partial = {label: count for label, count in seen.items() if count != BATCH_RECORDS}
        assert not partial, partial


def labels_of(fields: dict[bytes, bytes]) -> Iterator[str]:
    """Yield the label of each record in an entry, which is one record or one batch."""
    if (batches := fields.get(b"$batch")) is None:
        yield fields[b"key"].decode()
        return
    for batch in parse_batches(batches):
        yield from (key.decode() for _, _, key, _, _ in decode_records(batch) if key is not None)


@EACH_LAYOUT
def test_batches_are_atomic_while_one_of_two_brokers_is_killed(
    durable_server: RedisServer, start_broker: StartBroker, topic: str, kept: Kept, report: Report
) -> None:
    brokers = [start_broker(durable_server.url, kept.settings) for _ in range(2)]
    create_topic(brokers[0].port, topic)
    killed, surviving = (Writer(broker, topic, name) for broker, name in zip(brokers, "ab", strict=True))
    observer = Observer(durable_server, f"korvet:{topic}:0")
    failures: list[threading.ExceptHookArgs] = []
    threading.excepthook, hook = failures.append, threading.excepthook
    # The observer is stopped last, so that it sees everything.
    all_three: list[Writer | Observer] = [killed, surviving, observer]
    threads = [threading.Thread(target=each.run) for each in all_three]
    for thread in threads:
        thread.start()
    try:
        for _ in range(KILLS):
            killed.wait_for_more(BATCHES_BETWEEN)
            brokers[0].kill()
            surviving.wait_for_more(BATCHES_BETWEEN)
            brokers[0].start()
        killed.wait_for_more(BATCHES_BETWEEN)
    finally:
        for each, thread in zip(all_three, threads, strict=True):
            each.stop()
            thread.join(LIMIT_S)
        threading.excepthook = hook
    report(
        f"killed {KILLS} times with signal 9, requests unanswered: {killed.unanswered};"
        f" {observer.readings} readings of {sum(observer.counts.values())} records"
    )

    assert not failures
    # Connecting to a broker that is being killed may succeed, and counts once more.
    assert len(killed.unanswered) >= KILLS
    assert not surviving.unanswered
    assert killed.acknowledged | surviving.acknowledged <= set(observer.counts)
    assert {BATCH_RECORDS} == set(observer.counts.values())
