"""Traces by OpenTelemetry: a span for each request, and below it one for each call of the storage.

Nothing imports this package unless `tracing.exporter` is set. It wraps the table of APIs and the storage, so that
without it no request does anything for traces.
"""
