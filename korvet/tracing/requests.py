"""Spans for requests: from the beginning of the handler until the response is sent.

A span is the child of the span that produced its records, if all records of a Produce have the same one. Otherwise, and
for records that a Fetch returns, it has links to the spans that produced them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from attrs import define, field
from opentelemetry import trace
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, StatusCode, Tracer
from opentelemetry.util.types import AttributeValue

from korvet.broker.broker import Broker
from korvet.broker.context import Disconnect, PendingResponse, RequestContext, handled
from korvet.protocol.connection import PRODUCE, Api
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.response_errors import Find, finder, name_of
from korvet.security.session import ANONYMOUS
from korvet.tracing import names
from korvet.tracing.record_contexts import contexts_in

FETCH = 1
# Error codes that belong to the normal course of a group: the span has them, and no status.
EXPECTED = {ErrorCode.MEMBER_ID_REQUIRED, ErrorCode.REBALANCE_IN_PROGRESS}
UNANSWERED = "unanswered"


@define(eq=False)
class RequestSpans:
    """The handler of one API, with a span around each request."""

    tracer: Tracer
    api: Api
    _find: Find | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._find = finder(self.api.response)

    async def handle(self, broker: Broker, body: Any, context: RequestContext) -> Any:
        """Handle a request."""
        span = self._start(body, context)
        if not span.is_recording():
            return await handled(self.api.handle(broker, body, context))
        request = RequestSpan(span, self)
        context.ended = request.end
        with trace.use_span(request.span, record_exception=False, set_status_on_exception=False):
            try:
                response = await handled(self.api.handle(broker, body, context))
            except Disconnect as error:
                request.fail(type(error).__name__)
                raise
        if isinstance(response, PendingResponse):
            return TracedResponse(request, response)
        request.answer(response)
        return response

    def error_codes(self, response: object) -> list[int]:
        """Return the error codes other than 0 in a response."""
        codes: list[int] = []
        if self._find is not None and response is not None:
            self._find(response, codes)
        return codes

    def _start(self, body: Any, context: RequestContext) -> Span:
        produced = list(produced_records(body)) if self.api.key == PRODUCE else []
        contexts = contexts_in(produced)
        parent = trace.set_span_in_context(NonRecordingSpan(contexts[0])) if len(contexts) == 1 else None
        span = self.tracer.start_span(
            self.api.name, parent, SpanKind.SERVER, links=links_to(contexts) if parent is None else None
        )
        if span.is_recording():
            span.set_attributes(dict(attributes_of(self.api, body, context)))
            if produced:
                span.set_attribute(names.RECORDS, sum(map(record_count, produced)))
        return span


@define(eq=False)
class RequestSpan:
    """The span of one request."""

    span: Span
    spans: RequestSpans
    has_response: bool = True  # False for a Produce with acks=0, once it was handled

    def answer(self, response: Any) -> None:
        """Record the response, before it is sent."""
        self.has_response = response is not None
        if codes := self.spans.error_codes(response):
            self.span.set_attribute(names.ERROR, name_of(codes[0]))
            if not EXPECTED.issuperset(codes):
                self.span.set_status(StatusCode.ERROR, name_of(codes[0]))
        if self.spans.api.key == FETCH:
            for link in links_to(contexts_in(fetched_records(response))):
                self.span.add_link(link.context)

    def fail(self, error: str) -> None:
        """Record that the request has no response because of an error."""
        self.span.set_attribute(names.ERROR, error)
        self.span.set_status(StatusCode.ERROR, error)

    def end(self, sent: int) -> None:
        """End the span, after `sent` bytes, or without a response if that is -1."""
        if sent > 0:
            self.span.set_attribute(names.RESPONSE_BYTES, sent)
        elif sent < 0 and self.has_response:
            self.fail(UNANSWERED)
        self.span.end()


@define(eq=False)
class TracedResponse(PendingResponse):
    """A pending response, for which the storage works below the request's span."""

    request: RequestSpan
    pending: PendingResponse

    async def wait(self) -> object | None:
        with trace.use_span(self.request.span, record_exception=False, set_status_on_exception=False):
            response = await self.pending.wait()
        self.request.answer(response)
        return response

    def abandon(self) -> None:
        self.pending.abandon()


def attributes_of(api: Api, body: Any, context: RequestContext) -> Iterator[tuple[str, AttributeValue]]:
    """Yield the attributes that are known when a request begins."""
    host, _, port = context.peer.rpartition(":")
    yield names.SYSTEM, "kafka"
    yield names.OPERATION, api.name
    yield names.VERSION, context.version
    yield names.LISTENER, context.listener_name
    yield names.REQUEST_BYTES, context.request_bytes
    if context.client_id:
        yield names.CLIENT_ID, context.client_id
    if host:
        yield names.ADDRESS, host.strip("[]")
        yield names.PORT, int(port)
    if context.principal != ANONYMOUS:
        yield names.PRINCIPAL, context.principal
    if group := getattr(body, "group_id", None):
        yield names.GROUP, group
    if len(topics := topics_of(api, body)) == 1 and topics[0]:
        yield names.TOPIC, topics[0]


def topics_of(api: Api, body: Any) -> list[str]:
    """Return the names of the topics of a Produce or Fetch; they are empty if it has ids."""
    if api.key == PRODUCE:
        return [topic.name for topic in body.topic_data]
    return [topic.topic for topic in body.topics] if api.key == FETCH else []


def produced_records(body: Any) -> Iterator[EncodedBatches]:
    """Yield the records of each partition of a Produce."""
    for topic in body.topic_data:
        for partition in topic.partition_data:
            yield EncodedBatches(partition.records or ())


def fetched_records(response: Any) -> Iterator[EncodedBatches]:
    """Yield the records of each partition in the response to a Fetch."""
    for topic in response.responses:
        for partition in topic.partitions:
            yield EncodedBatches(partition.records or ())


def record_count(records: EncodedBatches) -> int:
    """Return the number of records that the headers of batches announce."""
    count = 0
    with suppress(KafkaError):
        for header in records.headers():
            count += max(0, header.records)
    return count


def links_to(contexts: Sequence[SpanContext]) -> list[Link]:
    return [Link(context) for context in contexts]
