"""The tables of `korvet lake run`, as the run reports them."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from korvet.client import EARLIEST, LATEST, Client, Topic, TopicPartition
from korvet.client.committed_offsets import clock_bits
from korvet.client.lake_tables import ShownTable, lake_tables, reporting_groups, reports_in
from korvet.protocol.errors import KafkaError
from korvet.web.inputs import number
from korvet.web.pages.topics import Listed
from korvet.web.sessions import Visitor
from korvet.web.site import Site

TABLES_A_PAGE = 50
Bounds = dict[str, dict[int, tuple[int, int]]]


async def lake(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of tables of the topics that the visitor may see."""
    text = request.query_params.get("q", "").strip()
    tables = [each for each in await _tables(visitor) if text.lower() in each.topic.lower()]
    listed = Listed.of(tables, number(request.query_params, "page", 1), TABLES_A_PAGE)
    return site.render(request, "lake.html", {"listed": listed, "query": {"q": text}})


async def _tables(visitor: Visitor) -> list[ShownTable]:
    groups = await reporting_groups(visitor.client)
    topics = await visitor.topics()
    named = {topic for committed in groups for topic in reports_in(committed) if topic in topics}
    bounds = await _bounds(visitor.client, [topics[name] for name in sorted(named)])
    clocked = await clock_bits(visitor.client, sorted(named))
    now_ms = time.time() * 1000
    found = [table for committed in groups for table in lake_tables(committed, bounds, clocked, now_ms)]
    return sorted(found, key=lambda table: (table.topic, table.kind, table.path))


async def _bounds(client: Client, topics: list[Topic]) -> Bounds:
    """Return the start and end offset of each partition, by topic. Topics that were deleted meanwhile have none."""
    found: Bounds = {}
    for topic in topics:
        tps = [TopicPartition(topic.name, each.partition) for each in topic.partitions if each.leader_id >= 0]
        try:
            starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
            ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
        except KafkaError:
            continue
        found[topic.name] = {tp.partition: (starts[tp].offset, ends[tp].offset) for tp in tps}
    return found
