"""Metrics for Prometheus: count the events of a broker, and serve the counts over HTTP.

    names             the names of the metrics
    definitions       every metric: name, kind, labels, meaning
    recorder          counts events while they happen
    samples           the values of metrics, and how those of several processes are merged
    gather            read everything else when a scrape requests it: groups, lag, Redis
    exposition        samples in Prometheus' text formats
    page              the HTTP port: /metrics, /livez, /readyz
    reading           read the metrics of a broker, for `korvet top` and the web page
    reference         docs/metrics.md

Nothing is counted, and prometheus-client is not imported, unless `metrics.listener` is set.
"""
