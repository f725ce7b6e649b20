"""Rows of the tables of `korvet top`, computed from two samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from attrs import frozen

from korvet.client.model import TopicPartition
from korvet.client.open_transactions import ShownTransaction
from korvet.metrics import names
from korvet.metrics.reading import SECTIONS, Figures, rate, stated
from korvet.protocol.text import duration_text, size_text, time_text
from korvet.top.sampling import GroupState, Lag, Sample, TopicState, lag_of

UNKNOWN = "-"


@frozen
class Row:
    """A row. `key` names what it is about; `sort` has a value for each cell by which the cells are sorted."""

    key: str
    cells: tuple[str, ...]
    sort: tuple[float | str, ...]


def row(key: str, *cells: float | str | tuple[str, float] | None) -> Row:
    """Return a row of texts, numbers (None if unknown), and texts with the number by which they are sorted."""
    shown: list[str] = []
    sort: list[float | str] = []
    for cell in cells:
        if isinstance(cell, tuple):
            shown.append(cell[0])
            sort.append(cell[1])
        elif isinstance(cell, str):
            shown.append(cell)
            sort.append(cell)
        else:
            shown.append(UNKNOWN if cell is None else f"{cell:,.0f}")
            sort.append(-1.0 if cell is None else float(cell))
    return Row(key, tuple(shown), tuple(sort))


TOPICS = ("topic", "partitions", "records", "in/s", "out/s", "offsets")
GROUPS = ("group", "state", "members", "partitions", "lag", "slowest partition")
BROKERS = ("broker", "address", "leads", "role")
PARTITIONS = ("partition", "leader", "start", "end", "records", "in/s")
CONNECTIONS = ("client software", "version", "listener", "connections")
INSIDE = ("area", "what", "value")
LAKE = ("topic", "table", "state", "fresh until", "lag", "lag/s", "files", "size", "report", "path", "error")
TRANSACTIONS = ("partition", "state", "waiting", "idle", "transactional id", "offset", "producer")
COMMITTED = ("topic", "partition", "committed", "end", "lag", "client")
#: The columns whose cells are right-aligned numbers.
NUMBERS = {
    "partitions",
    "records",
    "in/s",
    "out/s",
    "members",
    "lag",
    "leads",
    "start",
    "end",
    "committed",
    "connections",
    "lag/s",
    "files",
    "size",
    "report",
    "offset",
    "waiting",
    "producer",
    "idle",
}
RECEIVED, SENT = names.TOPIC_RECEIVED_RECORDS_TOTAL, names.TOPIC_SENT_RECORDS_TOTAL


@frozen
class Tables:
    """Two samples; `before` is None after the first one."""

    now: Sample
    before: Sample | None = None

    @property
    def elapsed_s(self) -> float:
        return self.now.taken_s - self.before.taken_s if self.before is not None else 0.0

    def topics(self) -> list[Row]:
        rows = []
        for name, topic in self.now.topics.items():
            offsets = "records" if topic.bits is None else "time"
            size = records_in(topic)
            rows.append(
                row(name, name, len(topic.partitions), size, self.rate_in(name), self.rate_out(name), offsets)
            )
        return rows

    def groups(self) -> list[Row]:
        return [self._group(group_id, group) for group_id, group in self.now.groups.items()]

    def _group(self, group_id: str, group: GroupState) -> Row:
        lags = group.lags
        if not lags:
            return row(
                group_id, group_id, group.state, group.members, 0 if lags is not None else None, None, UNKNOWN
            )
        slowest = max(lags, key=lambda tp: lag_key(lags[tp]))
        lag = total(lags)
        return row(
            group_id,
            group_id,
            group.state,
            group.members,
            len(lags),
            lag,
            f"{slowest} {lag_text(lags[slowest])}",
        )

    def brokers(self) -> list[Row]:
        leads = dict.fromkeys(self.now.brokers, 0)
        for topic in self.now.topics.values():
            for partition in topic.partitions.values():
                leads[partition.leader_id] = leads.get(partition.leader_id, 0) + 1
        return [
            row(
                str(node_id),
                (str(node_id), float(node_id)),
                address,
                leads[node_id],
                "controller" if node_id == self.now.controller_id else "",
            )
            for node_id, address in self.now.brokers.items()
        ]

    def partitions(self, topic: str) -> list[Row]:
        """Return the partitions of one topic."""
        state = self.now.topics.get(topic)
        if state is None:
            return []
        is_counted = state.bits is None
        return [
            row(
                str(number),
                (str(number), float(number)),
                (str(each.leader_id), float(each.leader_id)),
                (str(each.start), float(each.start)),
                (str(each.end), float(each.end)),
                each.end - each.start if is_counted else None,
                self._partition_rate(topic, number) if is_counted else None,
            )
            for number, each in state.partitions.items()
        ]

    def committed_offsets(self, group_id: str) -> list[Row]:
        """Return the committed offsets of one group."""
        group = self.now.groups.get(group_id)
        if group is None or group.lags is None:
            return []
        return [
            row(
                str(tp),
                tp.topic,
                (str(tp.partition), float(tp.partition)),
                (str(lag.committed), float(lag.committed)),
                (str(lag.end), float(lag.end)),
                (lag_text(lag), float(lag_key(lag))),
                lag.client_id,
            )
            for tp, lag in group.lags.items()
        ]

    def lake(self) -> list[Row]:
        """Return the tables that `korvet lake run` reports: lag in records and in seconds, age of the report."""
        return [
            row(
                f"{each.topic} {each.kind} {each.path}",
                each.topic,
                each.kind,
                each.state,
                (
                    UNKNOWN if each.fresh_until_ms is None else time_text(each.fresh_until_ms),
                    each.fresh_until_ms or -1,
                ),
                each.lag_records,
                each.lag_s,
                each.files,
                (
                    UNKNOWN if each.bytes is None else size_text(each.bytes),
                    -1 if each.bytes is None else each.bytes,
                ),
                (f"{duration_text(round(each.age_s) * 1000)} ago", each.age_s),
                each.path,
                each.error or "",
            )
            for each in self.now.lake
        ]

    def transactions(self) -> list[Row]:
        """Return the open transactions: what waits behind each of them in records or in time, and its state."""
        return [self._transaction(each) for each in self.now.transactions]

    def _transaction(self, each: ShownTransaction) -> Row:
        topic = self.now.topics[each.tp.topic]
        waiting = lag_of(each.offset, topic.partitions[each.tp.partition], topic.bits)
        return row(
            f"{each.tp} {each.transactional_id} {each.producer_id}",
            str(each.tp),
            each.state,
            (lag_text(waiting), float(lag_key(waiting))),
            (duration_text(each.idle_ms), float(each.idle_ms)),
            each.transactional_id or UNKNOWN,
            (str(each.offset), float(each.offset)),
            (str(each.producer_id), float(each.producer_id)),
        )

    # --- Rates ------------------------------------------------------------------------------------------

    def rate_in(self, topic: str) -> float | None:
        """Return the records appended per second: by the metrics, or by the offsets if they count records."""
        if (rate := self._figure(topic, is_sent=False)) is not None:
            return rate
        state = self.now.topics[topic]
        if state.bits is not None or self.before is None:
            return None
        rates = [self._partition_rate(topic, number) for number in state.partitions]
        return sum(rate for rate in rates if rate is not None)

    def rate_out(self, topic: str) -> float | None:
        """Return the records sent to consumers per second, which only the metrics have."""
        return self._figure(topic, is_sent=True)

    def total_in(self) -> float | None:
        rates = [rate for name in self.now.topics if (rate := self.rate_in(name)) is not None]
        return sum(rates) if rates else None

    def requests(self) -> float | None:
        """Return the requests per second, by the metrics."""
        now, before = self._figures
        return None if now is None or before is None else rate(names.REQUESTS_TOTAL, now, before)

    def connections(self) -> float | None:
        return None if self.now.figures is None else self.now.figures.total(names.CONNECTIONS)

    def connection_rows(self) -> list[Row]:
        """Return the connections by listener and by the software that clients name, by the metrics."""
        samples = self.now.figures.samples if self.now.figures is not None else {}
        rows = []
        for labels, number in samples.get(names.CONNECTIONS, {}).items():
            if number:
                values = dict(labels)
                named = [
                    values.get(label) or "unknown" for label in ("software", "software_version", "listener")
                ]
                rows.append(row(" ".join(named), *named, number))
        return rows

    def inside(self) -> list[Row]:
        """Return what the metrics say of the broker, its Redis and its background tasks."""
        now, before = self._figures
        if now is None:
            return []
        return [
            row(f"{area} {words}", area, words, value)
            for area, facts in SECTIONS.items()
            for words, value in stated(facts, now, before)
        ]

    @property
    def _figures(self) -> tuple[Figures | None, Figures | None]:
        return self.now.figures, self.before.figures if self.before is not None else None

    def _figure(self, topic: str, *, is_sent: bool) -> float | None:
        rates = self._sent if is_sent else self._received
        return None if rates is None else rates.get(topic, 0.0)

    @cached_property
    def _received(self) -> Mapping[str, float] | None:
        return self._rates(RECEIVED)

    @cached_property
    def _sent(self) -> Mapping[str, float] | None:
        return self._rates(SENT)

    def _rates(self, name: str) -> Mapping[str, float] | None:
        """Return the records per second by topic, or None without two readings of the metrics."""
        now, before = self._figures
        if now is None or before is None or not self.elapsed_s:
            return None
        earlier = before.by(name, "topic")
        return {
            topic: max(0.0, value - earlier.get(topic, 0.0)) / self.elapsed_s
            for topic, value in now.by(name, "topic").items()
        }

    def _partition_rate(self, topic: str, number: int) -> float | None:
        if self.before is None or not self.elapsed_s or topic not in self.before.topics:
            return None
        before = self.before.topics[topic].partitions.get(number)
        if before is None:
            return None
        return max(0, self.now.topics[topic].partitions[number].end - before.end) / self.elapsed_s


def records_in(topic: TopicState) -> int | None:
    """Return the offsets between start and end of all partitions, or None if they do not count records."""
    if topic.bits is not None:
        return None
    return sum(each.end - each.start for each in topic.partitions.values())


def lag_key(lag: Lag) -> int:
    return lag.records if lag.records is not None else lag.ms or 0


def lag_text(lag: Lag) -> str:
    return f"{lag.records:,}" if lag.records is not None else duration_text(lag.ms or 0)


def total(lags: Mapping[TopicPartition, Lag]) -> tuple[str, float]:
    """Return a group's lag in records, and in time over the topics whose offsets follow the clock."""
    counted = [lag.records for lag in lags.values() if lag.records is not None]
    timed = [lag.ms for lag in lags.values() if lag.ms is not None]
    parts = [f"{sum(counted):,}"] if counted else []
    parts += [duration_text(max(timed))] if timed else []
    return " and ".join(parts), float(sum(counted) + max(timed, default=0))


def arranged(rows: Sequence[Row], *, column: int, is_descending: bool, words: str = "") -> list[Row]:
    """Return the rows whose keys contain `words`, sorted by a column and then by key."""
    chosen = sorted((each for each in rows if words.lower() in each.key.lower()), key=lambda each: each.key)
    return sorted(
        chosen,
        key=lambda each: (isinstance(value := each.sort[column], str), value),
        reverse=is_descending,
    )


#: The tables of `korvet top` by name: headings and rows.
ALL: Mapping[str, tuple[Sequence[str], Callable[[Tables], list[Row]]]] = {
    "topics": (TOPICS, Tables.topics),
    "groups": (GROUPS, Tables.groups),
    "brokers": (BROKERS, Tables.brokers),
    "connections": (CONNECTIONS, Tables.connection_rows),
    "inside": (INSIDE, Tables.inside),
    "lake": (LAKE, Tables.lake),
    "transactions": (TRANSACTIONS, Tables.transactions),
}
#: The names of the tables that only metrics fill.
BY_METRICS = ("connections", "inside")
#: The names of the tables that only `korvet lake run` fills.
BY_REPORTS = ("lake",)
#: The names of the tables that only open transactions fill.
BY_TRANSACTIONS = ("transactions",)
