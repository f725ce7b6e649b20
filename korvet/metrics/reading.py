"""Figures of a korvet broker that Kafka's protocol does not have, read from its metrics."""

from __future__ import annotations

import math
import time
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import trio
from attrs import field, frozen

from korvet.metrics import names
from korvet.protocol.text import size_text

LIMIT_S = 5.0
LARGEST_BYTES = 16 << 20

Labels = tuple[tuple[str, str], ...]


class FiguresUnavailable(Exception):  # noqa: N818  names the condition
    """The metrics cannot be read. The message is for the user."""


@frozen
class Figures:
    """The samples of all metrics: values by labels, by the sample's name. `taken_s` is on a monotonic clock."""

    taken_s: float
    samples: Mapping[str, Mapping[Labels, float]] = field(repr=False)

    def total(self, name: str) -> float | None:
        """Return the sum of a metric's samples, or None if it is missing."""
        found = self.samples.get(name)
        return None if found is None else sum(found.values())

    def by(self, name: str, label: str) -> dict[str, float]:
        """Return the sums of a metric's samples by the value of one label."""
        sums: defaultdict[str, float] = defaultdict(float)
        for labels, value in self.samples.get(name, {}).items():
            sums[dict(labels).get(label, "")] += value
        return dict(sums)


async def read_figures(url: str) -> Figures:
    """Return the figures of a broker whose metrics have this URL. Raises FiguresUnavailable."""
    return parse_figures(await trio.to_thread.run_sync(_read, url, abandon_on_cancel=True))


def parse_figures(text: str) -> Figures:
    """Return the figures in a text of Prometheus' exposition format. Raises FiguresUnavailable."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  an extra

    samples: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    except ValueError as error:
        raise FiguresUnavailable(f"the answer is not in Prometheus' text format: {error}") from None
    return Figures(time.monotonic(), dict(samples))


def _read(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise FiguresUnavailable(f"{url!r} is no URL; accepted: http://HOST:PORT/metrics")
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as response:  # noqa: S310  checked above
            return str(response.read(LARGEST_BYTES).decode())
    except (OSError, ValueError, urllib.error.URLError) as error:
        reason = getattr(error, "reason", error)
        raise FiguresUnavailable(f"{url}: {getattr(reason, 'strerror', None) or reason}") from None


# --- Facts ---------------------------------------------------------------------------------------------------


@frozen
class Fact:
    """A line about a broker: a metric in words.

    `unit` selects how `value_text` writes it. A rate is the growth per second between two readings. With `label`, there
    is a line for each value of this label.
    """

    words: str
    metric: str
    unit: str = ""
    is_rate: bool = False
    quantile: float | None = None
    label: str = ""


REDIS = (
    Fact("connected processes", names.REDIS_CONNECTED),
    Fact("commands", names.REDIS_COMMANDS_TOTAL, is_rate=True),
    Fact("round trip, median", names.REDIS_ROUND_TRIP_SECONDS, "s", quantile=0.5),
    Fact("round trip, 99 %", names.REDIS_ROUND_TRIP_SECONDS, "s", quantile=0.99),
    Fact("lost connections", names.REDIS_RECONNECTS_TOTAL),
    Fact("script calls", names.REDIS_SCRIPT_CALLS_TOTAL, is_rate=True),
    Fact("time in scripts", names.REDIS_SCRIPT_SECONDS_TOTAL, "s", is_rate=True),
    Fact("memory used", names.REDIS_MEMORY_USED_BYTES, "B"),
    Fact("memory limit", names.REDIS_MEMORY_LIMIT_BYTES, "limit"),
    Fact("evicted keys", names.REDIS_EVICTED_KEYS_TOTAL),
    Fact("connected replicas", names.REDIS_REPLICAS),
    Fact("replica behind by", names.REDIS_REPLICA_LAG_BYTES, "B", label="replica"),
    Fact("last write succeeded", names.REDIS_PERSISTENCE_OK, "yes", label="kind"),
)
TASKS = (
    Fact("last run of retention", names.RETENTION_LAST_RUN_TIMESTAMP_SECONDS, "time"),
    Fact("partitions trimmed by retention", names.RETENTION_TRIMS_TOTAL),
    Fact("errors of retention", names.RETENTION_ERRORS_TOTAL),
    Fact("compactions", names.COMPACTIONS_TOTAL),
    Fact("errors of compactions", names.COMPACTION_ERRORS_TOTAL),
    Fact("removed by compaction", names.COMPACTION_REMOVED_BYTES_TOTAL, "B"),
    Fact("time in compactions", names.COMPACTION_SECONDS_TOTAL, "s"),
    Fact("records not archived", names.ARCHIVE_LAG_RECORDS, label="topic"),
    Fact("archive behind by", names.ARCHIVE_LAG_SECONDS, "s", label="topic"),
    Fact("requests for archived records", names.REMOTE_REQUESTS_TOTAL),
    Fact("errors of these requests", names.REMOTE_ERRORS_TOTAL),
)
PROCESS = (
    Fact("processes", names.PROCESSES),
    Fact("requests", names.REQUESTS_TOTAL, is_rate=True),
    Fact("errors in responses", names.RESPONSE_ERRORS_TOTAL, is_rate=True),
    Fact("connections", names.CONNECTIONS, label="software"),
    Fact("delay of the event loop, 99 %", names.EVENT_LOOP_DELAY_SECONDS, "s", quantile=0.99),
    Fact("processor time", names.PROCESS_CPU_SECONDS_TOTAL, "s", is_rate=True),
    Fact("resident memory", names.PROCESS_RESIDENT_MEMORY_BYTES, "B"),
    Fact("memory in use", names.MEMORY_BUDGET_USED_BYTES, "B", label="budget"),
    Fact("open files", names.PROCESS_OPEN_FDS),
)
SECTIONS: Mapping[str, Sequence[Fact]] = {"Broker": PROCESS, "Redis": REDIS, "Background tasks": TASKS}


def stated(facts: Iterable[Fact], now: Figures, before: Figures | None) -> list[tuple[str, str]]:
    """Return lines, each in words and a value, of the facts whose metrics exist. Rates need two readings."""
    lines = []
    for fact in facts:
        if fact.label:
            values = now.by(fact.metric, fact.label)
            lines += [
                (f"{fact.words}, {label or 'unknown'}", value_text(value, fact.unit))
                for label, value in sorted(values.items())
            ]
        elif fact.quantile is not None:
            if f"{fact.metric}_bucket" in now.samples:
                lines.append((fact.words, _quantile_text(fact, now, before)))
        elif (total := now.total(fact.metric)) is not None:
            if fact.is_rate:
                grown = rate(fact.metric, now, before)
                text = "–" if grown is None else f"{value_text(grown, fact.unit)}/s"
            else:
                text = value_text(total, fact.unit)
            lines.append((fact.words, text))
    return lines


def rate(name: str, now: Figures, before: Figures | None) -> float | None:
    """Return the growth of a metric per second between two readings, or None if it is unknown."""
    total = now.total(name)
    if before is None or total is None or now.taken_s <= before.taken_s:
        return None
    # A broker that was started again counts from 0.
    return max(0.0, total - (before.total(name) or 0.0)) / (now.taken_s - before.taken_s)


def _quantile_text(fact: Fact, now: Figures, before: Figures | None) -> str:
    """Return a quantile of what was measured between two readings, or since the start; a dash if nothing was."""
    assert fact.quantile is not None  # noqa: S101
    buckets = now.by(f"{fact.metric}_bucket", "le")
    if before is not None:
        earlier = before.by(f"{fact.metric}_bucket", "le")
        grown = {le: count - earlier.get(le, 0.0) for le, count in buckets.items()}
        if min(grown.values(), default=0.0) >= 0 and max(grown.values(), default=0.0) > 0:
            buckets = grown
    bounds = sorted((float(le), count) for le, count in buckets.items())
    if not bounds or not bounds[-1][1]:
        return "–"
    wanted = bounds[-1][1] * fact.quantile
    bound = next(bound for bound, count in bounds if count >= wanted)
    return (
        f"over {value_text(bounds[-2][0], 's')}" if math.isinf(bound) else f"at most {value_text(bound, 's')}"
    )


def value_text(value: float, unit: str) -> str:
    """Return a value with its unit.

    The unit is "" (a number), "B", "limit" (in bytes, 0 for none), "s", "yes" (1 is yes), or "time" (Unix time).
    """
    if unit == "yes":
        return "yes" if value else "no"
    if unit == "limit" and not value:
        return "none"
    if unit == "time":
        return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(value)) if value > 0 else "–"
    if unit in ("B", "limit"):
        return size_text(value)
    if unit == "s":
        if value == 0:
            return "0 s"
        return f"{value:,.2f} s" if value >= 1 else _short(value)
    return f"{value:,.0f}" if value == int(value) or value >= 10 else f"{value:,.1f}"


def _short(seconds: float) -> str:
    """Return a time below a second."""
    return f"{seconds * 1e3:.3g} ms" if seconds >= 0.001 else f"{seconds * 1e6:.3g} µs"
