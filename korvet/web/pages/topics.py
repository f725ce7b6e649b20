"""The list of topics, and the page of one topic: partitions, sizes and settings."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from starlette.requests import Request
from starlette.responses import Response

from korvet.client import EARLIEST, LATEST, Client, Topic, TopicPartition
from korvet.client.administration import TOPIC, Resource, describe_settings
from korvet.client.committed_offsets import clock_bits
from korvet.protocol.errors import KafkaError
from korvet.web import catalogue
from korvet.web.inputs import choice, number
from korvet.web.plots import heat_map, plot_of
from korvet.web.sessions import REFRESHED_AGE_S, TOPICS_AGE_S, Visitor
from korvet.web.site import NotHere, Site, as_json, explained

TOPICS_A_PAGE = 50
LONGEST_NAME = 249
# A page of one topic describes this number of partitions.
MAX_PARTITIONS = 1000


@frozen
class Listed:
    """A page of a sorted and filtered list."""

    items: list[Any]
    total: int
    page: int
    pages: int

    @classmethod
    def of(cls, items: list[Any], page: int, size: int) -> Listed:
        pages = max((len(items) + size - 1) // size, 1)
        page = min(max(page, 1), pages)
        return cls(items[(page - 1) * size : page * size], len(items), page, pages)


async def topics(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the list of topics."""
    values = await _listed(request, visitor)
    history = site.histories.of(visitor)
    values["plots"] = {each.name: plot_of(history.rate(each.name)) for each in values["listed"].items}
    return site.render(request, "topics.html", values)


async def topics_json(_site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the sizes of the topics of a page, from which the browser computes rates."""
    values = await _listed(request, visitor, age_s=REFRESHED_AGE_S)
    return as_json({"sizes": {topic.name: values["sizes"][topic.name] for topic in values["listed"].items}})


async def _listed(request: Request, visitor: Visitor, *, age_s: float = TOPICS_AGE_S) -> dict[str, Any]:
    query = request.query_params
    text = query.get("q", "").strip()
    sort = choice(query, "sort", ("name", "partitions", "size"))
    order = choice(query, "order", ("up", "down"))
    with_internal = choice(query, "internal", ("no", "yes")) == "yes"
    every = await visitor.topics(age_s=age_s)
    chosen = [
        topic
        for topic in every.values()
        if text.lower() in topic.name.lower() and (with_internal or not topic.is_internal)
    ]
    found: catalogue.Sizes | None = None
    if sort == "size":
        found = await catalogue.sizes(visitor.client, None)
        chosen.sort(key=lambda topic: catalogue.total(found, topic.name) or 0)
    elif sort == "partitions":
        chosen.sort(key=lambda topic: len(topic.partitions))
    if order == "down":
        chosen.reverse()
    listed = Listed.of(chosen, number(query, "page", 1), TOPICS_A_PAGE)
    if sort != "size" and listed.items:
        found = await catalogue.sizes(visitor.client, {topic.name: ids(topic) for topic in listed.items})
    return {
        "listed": listed,
        "every": len(every),
        "sizes": {topic.name: catalogue.total(found, topic.name) for topic in listed.items},
        "query": {"q": text, "sort": sort, "order": order, "internal": "yes" if with_internal else ""},
    }


async def topic(site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the page of a topic."""
    described = await find_topic(request, visitor.client)
    name = described.name
    shown = described.partitions[:MAX_PARTITIONS]
    found = await catalogue.sizes(visitor.client, {name: ids(described)})
    settings, fault = [], ""
    try:
        settings = await describe_settings(visitor.client, Resource(TOPIC, name))
    except KafkaError as error:
        fault = explained(error)
    history = site.histories.of(visitor)
    bytes_of = {} if found is None else found.get(name, {})
    maps = [
        heat_map("Size", {each.partition: bytes_of.get(each.partition, 0) for each in shown}, "B"),
        heat_map("Records written", history.partition_rates(name), "records/s"),
    ]
    values = {
        "topic": described,
        "plot": plot_of(history.rate(name)),
        "heat_maps": [each for each in maps if each is not None] if len(shown) > 1 else [],
        "rows": await partition_rows(visitor.client, described, found),
        "left_out": len(described.partitions) - len(shown),
        "size": catalogue.total(found, name),
        "settings": settings,
        "settings_fault": fault,
        "counts_records": name not in await clock_bits(visitor.client, [name]),
    }
    return site.render(request, "topic.html", values)


async def partition_rows(
    client: Client, described: Topic, found: catalogue.Sizes | None
) -> list[dict[str, Any]]:
    """Return a row for each partition: leader, replicas, offsets and size."""
    shown = described.partitions[:MAX_PARTITIONS]
    tps = [TopicPartition(described.name, each.partition) for each in shown if each.leader_id >= 0]
    starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
    sizes_ = {} if found is None else found.get(described.name, {})
    rows = []
    for each in shown:
        tp = TopicPartition(described.name, each.partition)
        rows.append(
            {
                "number": each.partition,
                "leader": each.leader_id,
                "replicas": each.replica_ids,
                "isr": each.isr_ids,
                "start": starts[tp].offset if tp in starts else None,
                "end": ends[tp].offset if tp in ends else None,
                "size": sizes_.get(each.partition),
            }
        )
    return rows


async def topic_json(_site: Site, request: Request, visitor: Visitor) -> Response:
    """Return the end offsets and sizes of a topic, from which the browser computes rates."""
    described = await find_topic(request, visitor.client)
    found = await catalogue.sizes(visitor.client, {described.name: ids(described)})
    rows = await partition_rows(visitor.client, described, found)
    return as_json(
        {
            "size": catalogue.total(found, described.name),
            "partitions": {row["number"]: {"end": row["end"], "size": row["size"]} for row in rows},
        }
    )


async def find_topic(request: Request, client: Client) -> Topic:
    """Return the topic that the path names. Raises NotHere, and KafkaError."""
    name = request.path_params["topic"]
    if not name or len(name) > LONGEST_NAME:
        raise NotHere("There is no such topic.")
    return await client.topic(name)


def ids(topic: Topic) -> list[int]:
    return [partition.partition for partition in topic.partitions]
