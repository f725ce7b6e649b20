"""Figures from korvet's metrics, which Kafka's protocol does not have."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping

import trio
from attrs import frozen

LIMIT_S = 5.0
LARGEST_BYTES = 16 << 20
RECEIVED, SENT = "korvet_topic_received_records_total", "korvet_topic_sent_records_total"


class FiguresUnavailable(Exception):  # noqa: N818  names the condition
    """The metrics cannot be read. The message is for the user."""


@frozen
class Figures:
    """Totals since the broker's start, and its connections."""

    received: Mapping[str, float]  # records by topic
    sent: Mapping[str, float]
    requests: Mapping[str, float]  # by API
    connections: Mapping[str, float]  # by the software of the client


async def read_figures(url: str) -> Figures:
    """Return the figures of a broker whose metrics have this URL. Raises FiguresUnavailable."""
    return parse_figures(await trio.to_thread.run_sync(_read, url, abandon_on_cancel=True))


def parse_figures(text: str) -> Figures:
    """Return the figures in a text of Prometheus' exposition format. Raises FiguresUnavailable."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  an extra

    labels = {
        RECEIVED: "topic",
        SENT: "topic",
        "korvet_requests_total": "api",
        "korvet_connections": "software",
    }
    found: dict[str, defaultdict[str, float]] = {name: defaultdict(float) for name in labels}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in found:
                    found[sample.name][sample.labels.get(labels[sample.name], "")] += sample.value
    except ValueError as error:
        raise FiguresUnavailable(f"the answer is not in Prometheus' text format: {error}") from None
    return Figures(*found.values())


def _read(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise FiguresUnavailable(f"{url!r} is no URL; accepted: http://HOST:PORT/metrics")
    try:
        with urllib.request.urlopen(url, timeout=LIMIT_S) as response:  # noqa: S310  checked above
            return str(response.read(LARGEST_BYTES).decode())
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise FiguresUnavailable(str(getattr(error, "reason", error))) from None
