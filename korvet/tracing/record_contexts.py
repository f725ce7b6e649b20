"""The trace contexts in headers of records: W3C's `traceparent` and `tracestate`, which producers write.

Looking for them decodes batches, so only batches of up to LARGEST_BYTES are searched, and uncompressed ones only if
they contain the name of the header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from korvet.protocol.buffers import Buffer
from korvet.protocol.compression import Codec
from korvet.protocol.errors import KafkaError
from korvet.protocol.record import Headers
from korvet.protocol.record_batch import RecordBatch, decode_records, parse_batches

HEADER = "traceparent"
HEADER_BYTES = HEADER.encode()
LARGEST_BYTES = 64 * 1024
# Further contexts of a request are left out.
MOST_CONTEXTS = 32

_PROPAGATOR = TraceContextTextMapPropagator()


def contexts_in(buffers: Iterable[Buffer]) -> list[SpanContext]:
    """Return the distinct contexts of the records in batches, the first MOST_CONTEXTS of them."""
    found: dict[tuple[int, int], SpanContext] = {}
    for buffer in buffers:
        for context in _contexts(bytes(buffer)) if len(buffer) <= LARGEST_BYTES else ():
            if len(found) == MOST_CONTEXTS:
                return [*found.values()]
            found.setdefault((context.trace_id, context.span_id), context)
    return [*found.values()]


def _contexts(data: bytes) -> Iterator[SpanContext]:
    """Yield the contexts in batches. Batches that cannot be read have none; their handler refuses them."""
    has_header = HEADER_BYTES in data
    try:
        for batch in parse_batches(data, truncated_end_ok=True):
            if has_header or batch.compression is not Codec.NONE:
                yield from _of_batch(batch)
    except KafkaError:
        return


def _of_batch(batch: RecordBatch) -> Iterator[SpanContext]:
    for *_, headers in decode_records(batch, max_bytes=16 * LARGEST_BYTES):
        if headers and (context := _of_record(headers)).is_valid:
            yield context


def _of_record(headers: Headers) -> SpanContext:
    carrier = {name: value.decode("latin-1") for name, value in headers if value is not None}
    return get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
