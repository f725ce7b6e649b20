"""Spans for calls of the storage, below the span of the request that makes them.

Calls of background tasks have no span, nor those of a request whose span is not sampled. Topics are cached, so that
looking them up has none either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import define
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from korvet.protocol.errors import KafkaError
from korvet.protocol.response_errors import name_of
from korvet.storage.interface import AppendResults, PendingAppend
from korvet.storage.proxy import StorageProxy
from korvet.tracing import names

CACHED = {"topics", "topic", "topic_by_id"}


@define(eq=False)
class TracedStorage(StorageProxy):
    """A storage with a span for each call."""

    tracer: Tracer

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
        call = super().call(name, args, kwargs)
        if name in CACHED or not trace.get_current_span().is_recording():
            return call
        return self._traced(name, call)

    async def _traced(self, name: str, call: Awaitable[Any]) -> Any:
        """Await a call in a span."""
        with self._span(name) as span:
            result = await call
            record(span, result)
        return TracedAppend(self, result) if isinstance(result, PendingAppend) else result

    @contextmanager
    def _span(self, name: str) -> Iterator[Span]:
        """Run a block in a span, which gets the block's KafkaError."""
        kind = SpanKind.CLIENT if self.storage.is_elsewhere else SpanKind.INTERNAL
        with self.tracer.start_as_current_span(
            f"storage {name}", kind=kind, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except KafkaError as error:
                fail(span, error)
                raise


@define(eq=False)
class TracedAppend(PendingAppend):
    """An append whose answer the caller waits for, in a second span: `storage append`."""

    traced: TracedStorage
    pending: PendingAppend

    async def wait(self) -> AppendResults:
        with self.traced._span("append") as span:  # noqa: SLF001  of the same module
            results = await self.pending.wait()
            record(span, results)
        return results

    def abandon(self) -> None:
        self.pending.abandon()


def record(span: Span, result: object) -> None:
    """Record the number of partitions and the first error in a result by partition."""
    if not isinstance(result, Mapping):
        return
    span.set_attribute(names.PARTITIONS, len(result))
    for each in result.values():
        if isinstance(each, KafkaError):
            fail(span, each)
            return


def fail(span: Span, error: KafkaError) -> None:
    span.set_attribute(names.ERROR, name_of(error.error_code))
    span.set_status(StatusCode.ERROR, error.message)
