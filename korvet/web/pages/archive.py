"""The archive: the tables of a lake, and how far they are behind the topics."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from korvet.client import EARLIEST, LATEST, Client, Topic, TopicPartition
from korvet.client.committed_offsets import clock_bits
from korvet.protocol.errors import KafkaError
from korvet.web.inputs import number
from korvet.web.lake import LakeAway, Table
from korvet.web.pages.topics import Listed
from korvet.web.sessions import Visitor
from korvet.web.site import NotHere, Site

TABLES_A_PAGE = 20


async def archive(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of tables of the topics that the visitor may see."""
    if site.lake is None:
        raise NotHere("This page shows no archive; korvet web --lake URL names its location.")
    text = request.query_params.get("q", "").strip()
    tables: list[Table] = []
    fault = ""
    try:
        tables = await site.lake.tables()
    except LakeAway as error:
        fault = str(error)
    topics = await visitor.topics()
    chosen = [table for table in tables if table.topic in topics and text.lower() in table.topic.lower()]
    listed = Listed.of(chosen, number(request.query_params, "page", 1), TABLES_A_PAGE)
    clocks = await clock_bits(visitor.client, [table.topic for table in listed.items])
    rows = [
        await _row(visitor.client, table, topics[table.topic], counts=table.topic not in clocks)
        for table in listed.items
    ]
    values = {
        "location": site.lake.location,
        "listed": listed,
        "rows": rows,
        "fault": fault,
        "query": {"q": text},
    }
    return site.render(request, "archive.html", values)


async def _row(client: Client, table: Table, topic: Topic, *, counts: bool) -> dict[str, Any]:
    """Return a table with its partitions: archived offset, log, and the records that are not archived yet."""
    tps = [TopicPartition(topic.name, each.partition) for each in topic.partitions if each.leader_id >= 0]
    try:
        starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
        ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
    except KafkaError as error:
        return {"table": table, "partitions": [], "fault": str(error)}
    partitions = []
    for tp in tps:
        archived = table.archived_up_to.get(tp.partition)
        start, end = starts[tp].offset, ends[tp].offset
        behind = max(end - max(start, archived or 0), 0)
        partitions.append(
            {
                "number": tp.partition,
                "start": start,
                "archived": archived,
                "end": end,
                "behind": behind if counts or not behind else None,
            }
        )
    is_older = bool(table.topic_id) and table.topic_id != str(topic.topic_id)
    fault = table.fault or ("This table is of an earlier topic of the same name." if is_older else "")
    return {"table": table, "partitions": partitions, "fault": fault}
