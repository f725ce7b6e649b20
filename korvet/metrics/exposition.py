"""Samples in the formats that Prometheus reads: the text format, and OpenMetrics if the scraper accepts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector, CollectorRegistry

from korvet.metrics.definitions import METRICS, Kind, Metric
from korvet.metrics.samples import Labels, Samples, Value


@frozen(eq=False)
class SamplesCollector(Collector):
    """Gives samples to prometheus-client."""

    samples: Samples
    metrics: Mapping[str, Metric] = METRICS

    def collect(self) -> Iterator[Family]:
        """Yield the families that have any value, in the order of their definitions."""
        for name, metric in self.metrics.items():
            if values := self.samples.get(name):
                yield family(metric, values)


def family(metric: Metric, values: dict[Labels, Value]) -> Family:
    """Return a metric with its values."""
    if metric.kind is Kind.HISTOGRAM:
        return _histogram(metric, values)
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    made = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(values.items()):
        assert not isinstance(value, list)  # noqa: S101  only histograms have lists
        made.add_metric(labels, value)
    return made


def _histogram(metric: Metric, values: dict[Labels, Value]) -> HistogramMetricFamily:
    made = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(values.items()):
        assert isinstance(value, list)  # noqa: S101  see `samples`
        total, buckets = 0.0, []
        for bound, count in zip((*metric.buckets, float("inf")), value[:-1], strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", total))
        made.add_metric(labels, buckets, value[-1])
    return made


def exposed(samples: Samples, accept: str, metrics: Mapping[str, Metric] = METRICS) -> tuple[bytes, str]:
    """Return the samples in the format that an Accept header requests, and its content type."""
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SamplesCollector(samples, metrics))
    return encode(registry), content_type
