"""The page docs/tracing.md: `python -m korvet.tracing.reference > docs/tracing.md`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from korvet.tracing.names import REQUEST_ATTRIBUTES, STORAGE_ATTRIBUTES

HEAD = """\
# Traces

For operators who follow requests through their systems. `python -m korvet.tracing.reference` prints this page.

    pip install 'korvet[otel]'
    OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318 korvet serve --set tracing.exporter=otlp

The broker then has a span for each request, and below it one for each call of its storage, by
[OpenTelemetry](https://opentelemetry.io/). `tracing.exporter` is `none`, `otlp` (OTLP over HTTP, in batches) or
`console` (JSON on standard output, for trying). The SDK reads its
[standard environment variables](https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/):

| variable | meaning |
|---|---|
| `OTEL_EXPORTER_OTLP_ENDPOINT`, `…_HEADERS`, `…_TIMEOUT`, `…_CERTIFICATE` | where and how `otlp` sends spans |
| `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG` | which spans are sampled; without them, all are |
| `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | the resource; the service is `korvet` unless they name it |
| `OTEL_BSP_MAX_QUEUE_SIZE`, `OTEL_BSP_SCHEDULE_DELAY`, … | the batches; spans beyond the queue are dropped |
| `OTEL_SDK_DISABLED=true` | no spans |

A span for each request is too much for a busy broker: sample one of a hundred, and all requests of traces that a
producer has sampled, with `OTEL_TRACES_SAMPLER=parentbased_traceidratio` and `OTEL_TRACES_SAMPLER_ARG=0.01`.

A request takes about 0.02 ms more processor time if it is not sampled, and 0.1 ms if it is.
Without `tracing.exporter` the broker does not import OpenTelemetry, and requests do nothing for traces. With
`--processes N` each process sends its own spans.

## Producers and consumers

Libraries for OpenTelemetry in Kafka clients write the context of a producer's span into the headers `traceparent` and
`tracestate` of each record ([W3C](https://www.w3.org/TR/trace-context/)). If all records of a Produce have the same
context, its span is the parent of the broker's. Otherwise the broker's span has links to these contexts, as has the
span of a Fetch to those of the records that it returns. A span has at most 32 links. The broker looks into batches of
up to 64 kB only.

A span of a request begins with its handler and ends when the response is sent. So a Fetch that waits for records, or a
JoinGroup that waits for other members, has a long one. Its status is an error if the response has an error code, except
MEMBER_ID_REQUIRED and REBALANCE_IN_PROGRESS. Requests in a version that the broker does not serve have no span.
"""

STORAGE = """\
## Spans of the storage

The name is `storage` and the operation, such as `storage append`; the kind is CLIENT for Redis, and INTERNAL in memory.
An append whose answer arrives later has two spans: `storage begin_append`, and `storage append` until the answer is
there. Calls of background tasks have no span, and neither has the look-up of a topic.
"""


def page() -> Iterator[str]:
    """Yield the lines of the page."""
    yield HEAD
    yield "## Spans of requests\n\nThe name is that of the API, such as `Produce`; the kind is SERVER.\n"
    yield from _table(REQUEST_ATTRIBUTES)
    yield STORAGE
    yield from _table(STORAGE_ATTRIBUTES)


def _table(attributes: Mapping[str, str]) -> Iterator[str]:
    yield "| attribute | meaning |\n|---|---|"
    yield from (f"| `{name}` | {meaning} |" for name, meaning in attributes.items())
    yield ""


if __name__ == "__main__":
    sys.stdout.write("\n".join(page()))
