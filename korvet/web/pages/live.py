"""The live view of a topic: a sample of the records as they arrive, as server-sent events.

Each event has a few records at most, twice a second. If more arrive, the view skips to the end of the log, so that its
work does not depend on the rate of the topic.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import trio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from korvet.client import LATEST, Client, ConsumedRecord, TopicPartition
from korvet.protocol.errors import KafkaError, OffsetOutOfRange
from korvet.web.formats import time_text
from korvet.web.pages.records import Question
from korvet.web.pages.topics import find_topic
from korvet.web.sessions import Visitor
from korvet.web.site import Refused, Site, explained, url

INTERVAL_S = 0.5
WAIT_MS = 1000
RECORDS_AN_EVENT = 20
FETCH_BYTES = 64 * 1024
PARTITION_BYTES = 16 * 1024
MAX_PARTITIONS = 200
# The browser reconnects after the end of a stream; the visitor's session is checked again then.
STREAM_LIMIT_S = 300.0
HEADERS = {"x-accel-buffering": "no"}


async def live(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the page of the live view."""
    topic = await find_topic(request, visitor.client)
    question = Question.of(topic, request.query_params)
    return site.render(request, "live.html", {"topic": topic, "question": question})


async def events(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the stream of events."""
    topic = await find_topic(request, visitor.client)
    question = Question.of(topic, request.query_params)
    if site.live_views.available_tokens < 1:
        raise Refused(f"There are {site.live_views.total_tokens:g} live views already; close one of them.")
    return StreamingResponse(
        _stream(site, visitor.client, question), media_type="text/event-stream", headers=HEADERS
    )


async def _stream(site: Site, client: Client, question: Question) -> AsyncIterator[bytes]:
    view = object()
    try:
        site.live_views.acquire_on_behalf_of_nowait(view)
    except trio.WouldBlock:
        return
    try:
        ends_at = trio.current_time() + STREAM_LIMIT_S
        tps = question.tps[:MAX_PARTITIONS]
        positions = await _ends(client, tps)
        yield b"retry: 2000\n\n"
        while trio.current_time() < ends_at:
            began = trio.current_time()
            found, positions, skipped = await _sample(client, positions, question)
            rows = [await _row(site, record, question) for record in found]
            yield event("records", {"records": rows, "skipped": skipped})
            await trio.sleep(max(INTERVAL_S - (trio.current_time() - began), 0.05))
    except KafkaError as error:
        yield event("fault", {"message": explained(error)})
    finally:
        site.live_views.release_on_behalf_of(view)


def event(name: str, data: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n".encode()


async def _ends(client: Client, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
    return {tp: at.offset for tp, at in (await client.list_offsets(dict.fromkeys(tps, LATEST))).items()}


async def _sample(
    client: Client, positions: dict[TopicPartition, int], question: Question
) -> tuple[list[ConsumedRecord], dict[TopicPartition, int], bool]:
    """Return new records, the next positions, and whether records were skipped."""
    if not positions:
        await trio.sleep(INTERVAL_S)
        return [], positions, False
    consumer = client.consume(positions, max_wait_ms=WAIT_MS)
    consumer.max_bytes, consumer.max_partition_bytes = FETCH_BYTES, PARTITION_BYTES
    try:
        polled = await consumer.poll()
    except OffsetOutOfRange:
        return [], await _ends(client, list(positions)), True
    matching = [record for record in polled if question.match(record)]
    behind = any(end > consumer.positions[tp] for tp, end in consumer.high_watermarks.items())
    if behind:
        # More arrive than a view shows: continue at the end.
        return matching[-RECORDS_AN_EVENT:], await _ends(client, list(positions)), True
    return matching[-RECORDS_AN_EVENT:], consumer.positions, len(matching) > RECORDS_AN_EVENT


async def _row(site: Site, record: ConsumedRecord, question: Question) -> dict[str, Any]:
    key = await site.shown(record.key, question.key_format)
    value = await site.shown(record.value, question.value_format)
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": time_text(record.timestamp),
        "key": key.preview,
        "key_kind": key.kind,
        "value": value.preview,
        "value_kind": value.kind,
        "url": url(f"/topics/{record.topic}/records/{record.partition}/{record.offset}"),
    }
