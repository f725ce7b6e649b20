"""A broker whose spans are kept in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from attrs import define, field
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id

from korvet.config import Config, Listener
from korvet.handlers import APIS
from korvet.server.assembly import open_server
from korvet.server.server import Server
from korvet.storage.interface import Storage
from korvet.storage.memory import MemoryStorage
from korvet.tracing.names import REQUEST_ATTRIBUTES, STORAGE_ATTRIBUTES
from korvet.tracing.provider import provided

CONFIG = Config(listeners=(Listener("PLAINTEXT", "localhost", 0),), group_initial_rebalance_delay_ms=0)
TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


@define
class Traced:
    """A broker, and its finished spans."""

    server: Server
    _exporter: InMemorySpanExporter = field(repr=False)

    def spans(self, name: str) -> list[ReadableSpan]:
        """Return the finished spans of that name. All attributes of all spans have to be documented."""
        found = list(self._exporter.get_finished_spans())
        for span in found:
            known = STORAGE_ATTRIBUTES if span.name.startswith("storage ") else REQUEST_ATTRIBUTES
            assert {*attributes(span)} <= {*known}, span.name
        return [span for span in found if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        """Return the only finished span of that name."""
        (span,) = self.spans(name)
        return span


@asynccontextmanager
async def traced(storage: Storage | None = None, config: Config = CONFIG) -> AsyncIterator[Traced]:
    """Run a broker with traces."""
    exporter = InMemorySpanExporter()
    async with (
        provided(SimpleSpanProcessor(exporter)) as tracing,
        open_server(
            config, storage=tracing.storage(storage or MemoryStorage()), apis=tracing.apis(APIS)
        ) as server,
    ):
        yield Traced(server, exporter)


def context_header(span_id: str, *, is_sampled: bool = True) -> tuple[str, bytes]:
    """Return the header of a record that a span with this id produced."""
    return "traceparent", f"00-{TRACE_ID}-{span_id}-{int(is_sampled):02}".encode()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span."""
    return dict(span.attributes or {})


def ids(span: ReadableSpan) -> tuple[str, str]:
    """Return the trace id and the parent's span id."""
    assert span.context
    return format_trace_id(span.context.trace_id), format_span_id(span.parent.span_id) if span.parent else ""


def links(span: ReadableSpan) -> list[str]:
    """Return the span ids that a span has links to."""
    return [format_span_id(link.context.span_id) for link in span.links]
