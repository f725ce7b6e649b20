"""The trace contexts in headers of records: W3C's `traceparent` and `tracestate`, which producers write.

Looking for them decodes batches, so only batches of up to LARGEST_BYTES are searched, and uncompressed ones only if
they contain the name of the header.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from opentelemetry.trace import SpanContext, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from korvet.protocol.compression import Codec
from korvet.protocol.encoded_batches import EncodedBatches
from korvet.protocol.errors import KafkaError
from korvet.protocol.record import Headers
from korvet.protocol.record_batch import RecordBatch, decode_records, parse_batches

HEADER = "traceparent"
HEADER_BYTES = HEADER.encode()
LARGEST_BYTES = 64 * 1024
# No further batches are searched after so many bytes of a request.
SEARCHED_BYTES = 16 * LARGEST_BYTES
# Further contexts of a request are left out.
MOST_CONTEXTS = 32

_PROPAGATOR = TraceContextTextMapPropagator()


def contexts_in(records: Iterable[EncodedBatches]) -> list[SpanContext]:
    """Return the distinct contexts of records, the first MOST_CONTEXTS of them."""
    found: dict[tuple[int, int], SpanContext] = {}
    searched = 0
    for each in records:
        for data in _small_batches(each):
            searched += len(data)
            for context in _contexts(data):
                if len(found) == MOST_CONTEXTS:
                    return [*found.values()]
                found.setdefault((context.trace_id, context.span_id), context)
            if searched >= SEARCHED_BYTES:
                return [*found.values()]
    return [*found.values()]


def _small_batches(records: EncodedBatches) -> Iterator[bytes]:
    """Yield the batches that are searched. The handler refuses bytes that are not batches."""
    with suppress(KafkaError):
        yield from records.batches(LARGEST_BYTES)


def _contexts(data: bytes) -> Iterator[SpanContext]:
    """Yield the contexts in a batch. A batch that cannot be read has none; its handler refuses it."""
    with suppress(KafkaError):
        for batch in parse_batches(data):
            if batch.compression is not Codec.NONE or HEADER_BYTES in data:
                yield from _of_batch(batch)


def _of_batch(batch: RecordBatch) -> Iterator[SpanContext]:
    for *_, headers in decode_records(batch, max_bytes=16 * LARGEST_BYTES):
        if headers and (context := _of_record(headers)).is_valid:
            yield context


def _of_record(headers: Headers) -> SpanContext:
    carrier = {name: value.decode("latin-1") for name, value in headers if value is not None}
    return get_current_span(_PROPAGATOR.extract(carrier)).get_span_context()
