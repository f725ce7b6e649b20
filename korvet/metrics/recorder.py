"""Count the events of a broker while they happen.

The hooks only change plain dicts and lists, because each of them runs once per request. Everything runs in one thread,
so nothing is locked. The number of label values that clients can cause is bounded: further topics and kinds of client
software are counted as `other`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import Any

from attrs import define, field

from korvet.broker.counters import Counters, TimedExchange
from korvet.concurrency.histograms import new_histogram, observe
from korvet.metrics import names
from korvet.metrics.samples import Labels, Samples, Value
from korvet.protocol.connection import Api
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.response_errors import Find, finder, name_of
from korvet.protocol.steps import Steps

OTHER = "other"
UNKNOWN = "unknown"
MOST_SOFTWARE = 100
# The metrics of a topic, and the attribute that has the count.
RECEIVED = {
    names.TOPIC_RECEIVED_RECORDS_TOTAL: "records",
    names.TOPIC_RECEIVED_BATCHES_TOTAL: "batches",
    names.TOPIC_RECEIVED_BYTES_TOTAL: "size",
}
SENT = {
    names.TOPIC_SENT_RECORDS_TOTAL: "records",
    names.TOPIC_SENT_BATCHES_TOTAL: "batches",
    names.TOPIC_SENT_BYTES_TOTAL: "size",
}
SLOW_S = 0.001  # the times of all requests that take as long are observed
BATCHES_A_STEP = 500


@define(eq=False)
class Phases:
    """The times of the requests of one API in each phase.

    All slow requests are observed, and a sample of the others: a quick request represents itself and the ones up to the
    next one of the sample, so it is added as often to the histograms.
    """

    received: list[float] = field(factory=new_histogram)  # only of requests that took any time in this phase
    queued: list[float] = field(factory=new_histogram)  # likewise
    handled: list[float] = field(factory=new_histogram)
    stored: list[float] = field(factory=new_histogram)
    sent: list[float] = field(factory=new_histogram)
    repeats: int = 0  # the number of quick requests that the last one of the sample represents
    _handled_s: float = 0.0  # the times of that one
    _stored_s: float = 0.0
    _sent_s: float = 0.0

    def observe(self, exchange: TimedExchange, sent_at: float) -> None:
        """Add a slow request to the histograms, or a quick one to the sample."""
        if exchange.received_s:
            observe(self.received, exchange.received_s)
        if exchange.queued_s:
            observe(self.queued, exchange.queued_s)
        handled_s = exchange.handled_at - exchange.began - exchange.queued_s
        stored_s = exchange.context.stored_s
        if not exchange.context.is_timed:
            # The handler did not measure this part of its time. The last one of the sample did.
            stored_s = min(self._stored_s, handled_s)
        handled_s -= stored_s
        if exchange.pending is not None:
            stored_s += exchange.answered_at - exchange.handled_at
        sent_s = max(sent_at - exchange.answered_at, 0.0)
        if sent_at - exchange.began < SLOW_S:
            self.flush()
            self.repeats, self._handled_s, self._stored_s, self._sent_s = 1, handled_s, stored_s, sent_s
        else:
            self._add(1, handled_s, stored_s, sent_s)
            if not self._handled_s:
                # No quick request was timed yet. Until one is, the proportions of this request apply to quick ones.
                scale = SLOW_S / (sent_at - exchange.began)
                self._handled_s, self._stored_s, self._sent_s = (
                    scale * each for each in (handled_s, stored_s, sent_s)
                )

    def flush(self) -> None:
        """Add the quick requests since the last one of the sample, and itself, to the histograms."""
        if self.repeats:
            self._add(self.repeats, self._handled_s, self._stored_s, self._sent_s)
            self.repeats = 0

    def _add(self, count: int, handled_s: float, stored_s: float, sent_s: float) -> None:
        observe(self.handled, handled_s, count)
        observe(self.sent, sent_s, count)
        if stored_s:
            observe(self.stored, stored_s, count)


@define(eq=False)
class RequestCounts:
    """The counts of one version of an API."""

    api: Api | None
    version: int
    phases: Phases  # of all versions
    requests: int = 0
    request_bytes: int = 0
    response_bytes: int = 0


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
    _requests: dict[tuple[str, str], RequestCounts] = field(factory=dict)  # by API and version
    _last: RequestCounts = field(factory=lambda: RequestCounts(None, 0, Phases()))  # of the last request
    _phases: dict[str, Phases] = field(factory=dict)  # by API
    _codes: defaultdict[tuple[str, int], int] = field(factory=lambda: defaultdict(int))
    _finders: dict[type[object], Find | None] = field(factory=dict)  # by the class of a response
    _received: dict[str, RecordCounts] = field(factory=dict)
    _sent: dict[str, RecordCounts] = field(factory=dict)
    _connections: defaultdict[Labels, int] = field(factory=lambda: defaultdict(int))
    _software: set[tuple[str, str]] = field(factory=set)
    _opened: defaultdict[str, int] = field(factory=lambda: defaultdict(int))
    _aborted: defaultdict[str, int] = field(factory=lambda: defaultdict(int))
    _left_over: defaultdict[str, int] = field(factory=lambda: defaultdict(int))

    # --- Requests ---------------------------------------------------------------------------------------

    def left_over(self, api: str) -> None:
        self._left_over[api] += 1

    def failed(self, api: str, response: object) -> None:
        kind = response.__class__
        try:
            find = self._finders[kind]
        except KeyError:
            find = self._finders[kind] = None if response is None else finder(kind)
        if find is not None:
            codes: list[int] = []
            find(response, codes)
            for code in codes:
                self._codes[api, code] += 1

    def answered(self, exchange: TimedExchange, size: int, sent_at: float) -> None:
        request = exchange.request
        counts = self._last
        if request.api is not counts.api or request.version != counts.version:
            counts = self._last = self._counts_of(request.api, request.version)
        counts.requests += 1
        counts.request_bytes += request.frame_size
        # Without the length before the frame, as for requests; 0 bytes if no response was sent.
        counts.response_bytes += size - 4 if size else 0
        if exchange.context.is_timed or sent_at - exchange.began >= SLOW_S:
            counts.phases.observe(exchange, sent_at)
        else:
            counts.phases.repeats += 1

    def _counts_of(self, api: Api, version: int) -> RequestCounts:
        """Return the counts of a version, or of all that do not exist."""
        label = str(version) if api.advertised_min_version <= version <= api.max_version else OTHER
        try:
            return self._requests[api.name, label]
        except KeyError:
            phases = self._phases.setdefault(api.name, Phases())
            counts = self._requests[api.name, label] = RequestCounts(api, version, phases)
            return counts

    # --- Records ----------------------------------------------------------------------------------------

    def stored(self, topic: str, records: int, size: int) -> None:
        counts = self._received.get(topic) or self._new_topic(self._received, topic)
        counts.records += records
        counts.batches += 1
        counts.size += size

    def fetched(self, topic: str, batches: EncodedBatches) -> Steps[None]:
        counts = self._sent.get(topic) or self._new_topic(self._sent, topic)
        counts.size += batches.size
        for number, header in enumerate(batches.headers(), 1):
            counts.batches += 1
            counts.records += header.records
            if not number % BATCHES_A_STEP:
                yield None

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
            names.EVENT_LOOP_DELAY_SECONDS: {(): [*self.event_loop_delay]},
            names.CONNECTIONS: {labels: float(count) for labels, count in self._connections.items()},
            names.CONNECTIONS_OPENED_TOTAL: _by_label(self._opened),
            names.CONNECTIONS_ABORTED_TOTAL: _by_label(self._aborted),
            names.REQUESTS_WITH_BYTES_LEFT_OVER_TOTAL: _by_label(self._left_over),
            names.SCRAPE_ERRORS_TOTAL: _by_label(self.errors),
        }
        self._add_requests(samples)
        for topics, names_of in ((self._received, RECEIVED), (self._sent, SENT)):
            for name, attribute in names_of.items():
                samples[name] = {(topic,): getattr(counts, attribute) for topic, counts in topics.items()}
        return samples

    def _add_requests(self, samples: Samples) -> None:
        samples[names.REQUESTS_TOTAL] = {key: counts.requests for key, counts in self._requests.items()}
        samples[names.RESPONSE_ERRORS_TOTAL] = {
            (api, name_of(code)): count for (api, code), count in self._codes.items()
        }
        received: Counter[Labels] = Counter()
        sent: Counter[Labels] = Counter()
        for (api, _), counts in self._requests.items():
            received[api,] += counts.request_bytes
            sent[api,] += counts.response_bytes
        samples[names.REQUEST_BYTES_TOTAL] = dict(received)
        samples[names.RESPONSE_BYTES_TOTAL] = dict(sent)
        times: dict[Labels, Value] = {}
        for api, phases in self._phases.items():
            phases.flush()
            total = sum(phases.handled[:-1])
            times[api, "received"] = _with_zeros(phases.received, total)
            times[api, "queued"] = _with_zeros(phases.queued, total)
            times[api, "handled"] = [*phases.handled]
            if any(phases.stored):
                times[api, "stored"] = [*phases.stored]
            times[api, "sent"] = [*phases.sent]
        samples[names.REQUEST_PHASE_SECONDS] = times


def _with_zeros(histogram: list[float], total: float) -> list[float]:
    """Return a histogram with `total` observations; those that were not counted took no time."""
    counted = sum(histogram[:-1])
    return [histogram[0] + total - counted, *histogram[1:]]


def _by_label(counts: dict[str, Any]) -> dict[Labels, Value]:
    return {(label,): float(count) for label, count in counts.items()}
