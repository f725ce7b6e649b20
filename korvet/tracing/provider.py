"""The SDK of OpenTelemetry for one process: where spans go, and which are sampled.

The SDK reads its standard environment variables, such as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_TRACES_SAMPLER.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio
from attrs import define
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.trace import Tracer

import korvet
from korvet.protocol.connection import Api
from korvet.protocol.wrapped_apis import WrappedApis
from korvet.storage.interface import Storage
from korvet.tracing.requests import RequestSpans
from korvet.tracing.storage import TracedStorage

# Limit of the time to export the last spans when the broker ends.
FLUSH_LIMIT_S = 5.0


@define(eq=False)
class Tracing:
    """Adds spans to a broker's storage and APIs."""

    tracer: Tracer

    def storage(self, storage: Storage) -> Storage:
        """Return the storage with a span for each call."""
        return TracedStorage(storage, self.tracer)

    def apis(self, apis: Mapping[int, Api]) -> Mapping[int, Api]:
        """Return the APIs with a span for each request."""
        return WrappedApis(apis, lambda api: RequestSpans(self.tracer, api).handle)


@asynccontextmanager
async def open_tracing(exporter: str) -> AsyncIterator[Tracing]:
    """Export spans until the block ends: `otlp` in batches from a thread, `console` to standard output."""
    async with provided(
        BatchSpanProcessor(OTLPSpanExporter())
        if exporter == "otlp"
        else SimpleSpanProcessor(ConsoleSpanExporter())
    ) as tracing:
        yield tracing


@asynccontextmanager
async def provided(processor: SpanProcessor) -> AsyncIterator[Tracing]:
    """Pass spans to a processor until the block ends, and then export the last ones within FLUSH_LIMIT_S."""
    provider = TracerProvider(resource=resource(), shutdown_on_exit=False)
    provider.add_span_processor(processor)
    try:
        yield Tracing(provider.get_tracer("korvet", korvet.__version__))
    finally:
        with trio.move_on_after(FLUSH_LIMIT_S, shield=True):
            await trio.to_thread.run_sync(provider.shutdown, abandon_on_cancel=True)


def resource() -> Resource:
    """Return the resource of this process: OTEL_RESOURCE_ATTRIBUTES, and `korvet` unless they name a service."""
    found = Resource.create()
    is_named = "OTEL_SERVICE_NAME" in os.environ or f"{SERVICE_NAME}=" in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    return found if is_named else found.merge(Resource({SERVICE_NAME: "korvet"}))
