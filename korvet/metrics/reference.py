"""The page docs/metrics.md: `python -m korvet.metrics.reference > docs/metrics.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from korvet.metrics.definitions import GROUPS, Metric, Scope

HEAD = """\
# Metrics

For operators who watch brokers. `python -m korvet.metrics.reference` prints this page.

`korvet serve --metrics localhost:9404` (or the setting `metrics.listener`; `pip install 'korvet[metrics]'`) serves
three paths over HTTP:

| path | answer |
|---|---|
| `/metrics` | all metrics, in Prometheus' text format or OpenMetrics |
| `/livez` | 200 while the process answers |
| `/readyz` | 200 while the broker serves clients and its store answers, otherwise 503 |

The port has no authentication, and its metrics contain names of topics and groups. Beyond loopback, let only Prometheus
reach it.

- Without the setting nothing is counted. The number of names that clients can cause is bounded: `metrics.max.topics`,
  `metrics.max.groups`, and 100 kinds of client software.
- Metrics add about 1.1 microseconds of processor time to each of the smallest requests (a produce of one record,
  pipelined, storage in memory), which take 41: 2.4 % to 3.1 %, the medians of five runs on 2026-11-24 that switched
  them on and off in one process.
- With `--processes N` the parent process serves the port, and returns the values of the whole broker. Counters do not
  decrease if a process ends.
- Metrics of the scope *store* are read from the store, so every broker on that store returns the same values: use
  `max by (…)` for several brokers. Add all others: `sum by (…)`.
- A scrape waits at most a few seconds for the store. Metrics that could not be read are missing, and
  `korvet_scrape_errors_total` counts them.

[`deploy/prometheus/`](../deploy/prometheus/) has a configuration of Prometheus and alert rules,
[`deploy/grafana/korvet.json`](../deploy/grafana/korvet.json) is a dashboard.
"""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD
    for title, metrics in GROUPS.items():
        yield f"## {title}\n\n| metric | kind | labels | scope | meaning |\n|---|---|---|---|---|"
        yield from map(_row, metrics)
        yield ""


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    scope = "store" if metric.scope is Scope.STORE else ""
    return f"| `{metric.name}` | {metric.kind.value} | {labels} | {scope} | {metric.help} |"


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()))
