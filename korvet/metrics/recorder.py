"""Count the events of a broker while they happen.

The hooks only change plain dicts and lists, because each of them runs once per request. Everything runs in one thread,
so nothing is locked. The number of label values that clients can cause is bounded: further topics and kinds of client
software are counted as `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Sequence
from struct import Struct
from typing import Any

from attrs import define, field

from korvet.broker.counters import Counters
from korvet.concurrency.histograms import SECONDS, new_histogram, observe
from korvet.concurrency.time_slices import TimeSlices
from korvet.metrics.samples import Labels, Samples, Value
from korvet.protocol.buffers import Buffer
from korvet.protocol.error_codes import Find, finder, name_of

OTHER = "other"
UNKNOWN = "unknown"
MOST_SOFTWARE = 100
# Batch length, and the number of records, in the header of a record batch.
LENGTH, RECORDS = Struct(">8xi"), Struct(">57xi")
BEFORE_LENGTH = 12  # bytes of a batch that its length does not include
BATCHES_BETWEEN_CHECKPOINTS = 500


@define(eq=False)
class ApiCounts:
    """The counts of one API. `received` and `queued` have only the requests that took any time in these phases."""

    versions: defaultdict[int, int] = field(factory=lambda: defaultdict(int))
    request_bytes: int = 0
    response_bytes: int = 0
    received: list[float] = field(factory=new_histogram)
    queued: list[float] = field(factory=new_histogram)
    handled: list[float] = field(factory=new_histogram)
    stored: list[float] = field(factory=new_histogram)
    sent: list[float] = field(factory=new_histogram)
    errors: defaultdict[int, int] = field(factory=lambda: defaultdict(int))


@define(eq=False)
class RecordCounts:
    """Counts of records in one direction, of one topic."""

    records: int = 0
    batches: int = 0
    size: int = 0


@define(eq=False)
class Recorder(Counters):
    """Counts the events of one process. `most_topics` limits the number of topics that are counted by name."""

    most_topics: int
    is_counting = True
    event_loop_delay: list[float] = field(factory=new_histogram)
    errors: defaultdict[str, int] = field(factory=lambda: defaultdict(int))  # of scrapes, by part
    _apis: dict[str, ApiCounts] = field(factory=dict)
    _finders: dict[type[object], Find | None] = field(factory=dict)  # by the class of a response
    _received: dict[str, RecordCounts] = field(factory=dict)
    _sent: dict[str, RecordCounts] = field(factory=dict)
    _connections: defaultdict[Labels, int] = field(factory=lambda: defaultdict(int))
    _software: set[tuple[str, str]] = field(factory=set)
    _opened: defaultdict[str, int] = field(factory=lambda: defaultdict(int))
    _aborted: defaultdict[str, int] = field(factory=lambda: defaultdict(int))

    # --- Requests ---------------------------------------------------------------------------------------

    def received(self, api: str, size: int) -> None:
        try:
            self._apis[api].request_bytes += size
        except KeyError:
            self._apis[api] = ApiCounts(request_bytes=size)

    def answered(self, api: str, version: int, response: object) -> None:
        counts = self._apis[api]
        counts.versions[version] += 1
        kind = response.__class__
        try:
            find = self._finders[kind]
        except KeyError:
            find = self._finders[kind] = None if response is None else finder(kind)
        if find is not None:
            codes: list[int] = []
            find(response, codes)
            for code in codes:
                counts.errors[code] += 1

    def sent(
        self,
        api: str,
        size: int,
        received_s: float,
        queued_s: float,
        handled_s: float,
        stored_s: float,
        sent_s: float,
    ) -> None:
        counts = self._apis[api]
        counts.response_bytes += size
        histogram = counts.handled
        histogram[bisect_left(SECONDS, handled_s)] += 1
        histogram[-1] += handled_s
        histogram = counts.sent
        histogram[bisect_left(SECONDS, sent_s)] += 1
        histogram[-1] += sent_s
        if stored_s:
            histogram = counts.stored
            histogram[bisect_left(SECONDS, stored_s)] += 1
            histogram[-1] += stored_s
        if received_s:
            observe(counts.received, received_s)
        if queued_s:
            observe(counts.queued, queued_s)

    # --- Records ----------------------------------------------------------------------------------------

    def stored(self, topic: str, records: int, size: int) -> None:
        counts = self._received.get(topic) or self._new_topic(self._received, topic)
        counts.records += records
        counts.batches += 1
        counts.size += size

    async def fetched(self, topic: str, batches: Sequence[Buffer]) -> None:
        counts = self._sent.get(topic) or self._new_topic(self._sent, topic)
        time_slices = TimeSlices()
        for buffer in batches:
            start, size = 0, len(buffer)
            counts.size += size
            while start < size:
                counts.batches += 1
                (records,) = RECORDS.unpack_from(buffer, start)
                counts.records += records
                (length,) = LENGTH.unpack_from(buffer, start)
                start += BEFORE_LENGTH + length
                if not counts.batches % BATCHES_BETWEEN_CHECKPOINTS:
                    await time_slices.next()

    def forget_topics(self, existing: Collection[str]) -> None:
        """Remove the counts of topics that do not exist any more, so that new topics are counted by name."""
        for counts in (self._received, self._sent):
            for topic in [topic for topic in counts if topic != OTHER and topic not in existing]:
                del counts[topic]

    def _new_topic(self, counts: dict[str, RecordCounts], topic: str) -> RecordCounts:
        name = topic if len(counts) < self.most_topics else OTHER
        return counts.setdefault(name, RecordCounts())

    # --- Connections ------------------------------------------------------------------------------------

    def opened(self, listener: str, connections: int) -> None:  # noqa: ARG002  counted by listener here
        self._opened[listener] += 1
        self._connections[listener, UNKNOWN, UNKNOWN] += 1

    def identified(self, listener: str, name: str, version: str) -> None:
        self._connections[listener, UNKNOWN, UNKNOWN] -= 1
        if len(self._software) < MOST_SOFTWARE:
            self._software.add((name, version))
        self._connections[listener, *self._label((name, version))] += 1

    def closed(self, listener: str, software: tuple[str, str] | None, connections: int) -> None:  # noqa: ARG002
        self._connections[listener, *self._label(software)] -= 1

    def aborted(self, reason: str) -> None:
        self._aborted[reason] += 1

    def _label(self, software: tuple[str, str] | None) -> tuple[str, str]:
        if software is None:
            return UNKNOWN, UNKNOWN
        return software if software in self._software else (OTHER, OTHER)

    # --- Reading ----------------------------------------------------------------------------------------

    def samples(self) -> Samples:
        """Return the present values of all metrics that this class counts."""
        samples: Samples = {
            "korvet_event_loop_delay_seconds": {(): [*self.event_loop_delay]},
            "korvet_connections": {labels: float(count) for labels, count in self._connections.items()},
            "korvet_connections_opened_total": _by_label(self._opened),
            "korvet_connections_aborted_total": _by_label(self._aborted),
            "korvet_scrape_errors_total": _by_label(self.errors),
        }
        self._add_requests(samples)
        for direction, topics in (("received", self._received), ("sent", self._sent)):
            for what, attribute in (("records", "records"), ("batches", "batches"), ("bytes", "size")):
                samples[f"korvet_topic_{direction}_{what}_total"] = {
                    (topic,): getattr(counts, attribute) for topic, counts in topics.items()
                }
        return samples

    def _add_requests(self, samples: Samples) -> None:
        apis = self._apis.items()
        samples["korvet_requests_total"] = {
            (api, str(version)): count for api, counts in apis for version, count in counts.versions.items()
        }
        samples["korvet_response_errors_total"] = {
            (api, name_of(code)): count for api, counts in apis for code, count in counts.errors.items()
        }
        samples["korvet_request_bytes_total"] = {(api,): counts.request_bytes for api, counts in apis}
        samples["korvet_response_bytes_total"] = {(api,): counts.response_bytes for api, counts in apis}
        phases: dict[Labels, Value] = {}
        for api, counts in apis:
            total = sum(counts.handled[:-1])
            phases[api, "received"] = _with_zeros(counts.received, total)
            phases[api, "queued"] = _with_zeros(counts.queued, total)
            phases[api, "handled"] = [*counts.handled]
            if any(counts.stored):
                phases[api, "stored"] = [*counts.stored]
            phases[api, "sent"] = [*counts.sent]
        samples["korvet_request_phase_seconds"] = phases


def _with_zeros(histogram: list[float], total: float) -> list[float]:
    """Return a histogram with `total` observations; those that were not counted took no time."""
    counted = sum(histogram[:-1])
    return [histogram[0] + total - counted, *histogram[1:]]


def _by_label(counts: dict[str, Any]) -> dict[Labels, Value]:
    return {(label,): float(count) for label, count in counts.items()}
