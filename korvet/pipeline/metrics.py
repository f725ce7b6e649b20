"""Metrics of streams that Spark's Kafka source reports, computed from a query's progress.

Spark does not request `sources[].metrics` from sources in Python, so the metrics are empty there. The progress contains
the offsets from which this module computes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryProgress

from korvet.pipeline.offsets import from_json


def source_metrics(progress: StreamingQueryProgress) -> list[dict[str, str]]:
    """Return the metrics of Spark's Kafka source for each source of a progress.

    The metrics are `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and `avgOffsetsBehindLatest`: numbers as text,
    computed from the partitions whose latest offsets are known. A source of another format has an empty dict.
    """
    return [_metrics(source) for source in json.loads(progress.json)["sources"]]


def _metrics(source: Mapping[str, Any]) -> dict[str, str]:
    try:
        consumed, _ = from_json(source["endOffset"])
        latest, _ = from_json(source["latestOffset"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
    behind = [max(end - consumed[tp], 0) for tp, end in latest.items() if tp in consumed]
    if not behind:
        return {}
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }
