"""Create, alter and delete topics, delete records, and delete groups."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request

from korvet.client import EARLIEST, LATEST, Client, Topic, TopicPartition
from korvet.client.administration import (
    DELETE,
    SET,
    TOPIC,
    Resource,
    add_partitions,
    alter_settings,
    describe_settings,
)
from korvet.client.committed_offsets import clock_bits, committed_offsets
from korvet.client.groups import delete_group, describe_group
from korvet.protocol.errors import KafkaError, NonEmptyGroup
from korvet.web import catalogue
from korvet.web.formats import data_size
from korvet.web.inputs import BadInput, number, shortened
from korvet.web.pages.actions import Form, Input, Plan
from korvet.web.pages.groups import id_of
from korvet.web.pages.topics import find_topic, ids
from korvet.web.sessions import Visitor
from korvet.web.site import url

MAX_PARTITIONS = 100_000
#: Settings that let the broker delete records, or more of them than before.
DELETING = (
    "retention.ms",
    "retention.bytes",
    "cleanup.policy",
    "local.retention.ms",
    "local.retention.bytes",
)


def topic_url(name: str, page: str = "") -> str:
    return url(f"/topics/{name}{page}")


# --- Create -----------------------------------------------------------------------------------------------


def create_form(_request: Request) -> Form:
    inputs = (
        Input("name", "Name"),
        Input("partitions", "Partitions", placeholder="the broker's default", is_number=True),
        Input("replicas", "Replicas", placeholder="the broker's default", is_number=True),
        Input("settings", "Settings", rows=4, placeholder="retention.ms=86400000, one a line"),
    )
    return Form("Create a topic", inputs, "Preview", "/topics")


async def create(visitor: Visitor, _request: Request, fields: Mapping[str, str]) -> Plan:
    name = fields.get("name", "").strip()
    if not name:
        raise BadInput("the name is missing; accepted: letters, digits, . _ and -.", "name")
    partitions = number(fields, "partitions", -1, least=1, most=MAX_PARTITIONS)
    replicas = number(fields, "replicas", -1, least=1, most=1000)
    settings = {name: value for name, value in lines_of(fields, "settings").items() if value}

    async def execute(*, validate_only: bool = False) -> None:
        await visitor.client.create_topic(
            name,
            partitions=partitions,
            replication_factor=replicas,
            settings=settings,
            validate_only=validate_only,
        )

    await execute(validate_only=True)
    count = "the default number of" if partitions < 0 else f"{partitions:,}"
    done = [f"topic {name} is created with {count} partitions", *(f"{n} = {v}" for n, v in settings.items())]
    return Plan(f"Create topic {name}", "Create the topic", topic_url(name), done, (), execute)


def lines_of(fields: Mapping[str, str], name: str) -> dict[str, str]:
    """Parse lines of SETTING=VALUE. Raises BadInput."""
    found = {}
    for line in fields.get(name, "").splitlines():
        if not line.strip():
            continue
        setting, equals, value = line.partition("=")
        if not equals or not setting.strip():
            raise BadInput(f"the line {shortened(line)} has no name and =; accepted: SETTING=VALUE.", name)
        found[setting.strip()] = value.strip()
    return found


# --- Alter ------------------------------------------------------------------------------------------------


def alter_form(request: Request) -> Form:
    name = request.path_params["topic"]
    inputs = (
        Input("partitions", "Partitions", placeholder="unchanged", is_number=True),
        Input("settings", "Settings", rows=5, placeholder="retention.ms=86400000, one a line"),
    )
    note = "A setting without a value gets its default again. Partitions can only be added."
    return Form(f"Alter {name}", inputs, "Preview", topic_url(name), note)


async def alter(visitor: Visitor, request: Request, fields: Mapping[str, str]) -> Plan:
    topic = await find_topic(request, visitor.client)
    client, name, before = visitor.client, topic.name, len(topic.partitions)
    partitions = number(fields, "partitions", None, least=before + 1, most=MAX_PARTITIONS)
    settings = lines_of(fields, "settings")
    if partitions is None and not settings:
        raise BadInput("nothing would be altered; accepted: a number of partitions, or settings.")
    known = {each.name: each for each in await describe_settings(client, Resource(TOPIC, name))}
    changes = {each: (SET, value) if value else (DELETE, None) for each, value in settings.items()}

    async def execute(*, validate_only: bool = False) -> None:
        if changes:
            await alter_settings(client, Resource(TOPIC, name), changes, validate_only=validate_only)
        if partitions is not None:
            await add_partitions(client, name, partitions, validate_only=validate_only)

    await execute(validate_only=True)
    done, lost = [], []
    for setting, value in settings.items():
        old = known[setting].value if setting in known else None
        done.append(f"{setting}: from {old} to {value or 'its default'}")
        if setting in DELETING:
            lost.append(f"records that {setting} = {value or 'its default'} does not keep any more")
    if partitions is not None:
        done.append(f"{partitions - before:,} partitions are added to {before:,}")
        lost.append("the order of records with the same key: keys go to other partitions from then on")
    return Plan(f"Alter topic {name}", "Alter the topic", topic_url(name), done, lost, execute)


# --- Delete -----------------------------------------------------------------------------------------------


async def delete_topic(visitor: Visitor, request: Request, _fields: Mapping[str, str]) -> Plan:
    topic = await find_topic(request, visitor.client)
    lost = [
        f"{len(topic.partitions):,} partitions of topic {topic.name}, its settings and its committed offsets"
    ]
    lost += await _records(visitor.client, topic)

    async def execute() -> None:
        await visitor.client.delete_topic(topic.name)

    done = [f"topic {topic.name} is deleted"]
    return Plan(f"Delete topic {topic.name}", "Delete the topic", "/topics", done, lost, execute)


async def _records(client: Client, topic: Topic) -> list[str]:
    """Return lines about the records that a topic has."""
    tps = [TopicPartition(topic.name, each.partition) for each in topic.partitions if each.leader_id >= 0]
    starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
    sizes = await catalogue.sizes(client, {topic.name: ids(topic)})
    size = data_size(catalogue.total(sizes, topic.name))
    if topic.name in await clock_bits(client, [topic.name]):
        count = sum(ends[tp].offset > starts[tp].offset for tp in tps)
        return [f"the records of {count:,} partitions, {size}"] if count else []
    total = sum(ends[tp].offset - starts[tp].offset for tp in tps)
    return [f"{total:,} records, {size}"] if total else []


def delete_records_form(request: Request) -> Form:
    name = request.path_params["topic"]
    inputs = (
        Input("partition", "Partition", placeholder="all", is_number=True),
        Input("before", "Before offset", placeholder="all records", is_number=True),
    )
    return Form(f"Delete records of {name}", inputs, "Preview", topic_url(name))


async def delete_records(visitor: Visitor, request: Request, fields: Mapping[str, str]) -> Plan:
    topic = await find_topic(request, visitor.client)
    client, name = visitor.client, topic.name
    partition = number(fields, "partition", None)
    if partition is not None and partition >= len(topic.partitions):
        raise BadInput(
            f"partition is {partition}; accepted: 0 to {len(topic.partitions) - 1}, or nothing.", "partition"
        )
    tps = [TopicPartition(name, each) for each in ids(topic) if partition in (None, each)]
    starts = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
    ends = await client.list_offsets(dict.fromkeys(tps, LATEST))
    before = number(fields, "before", None)
    if before is not None and partition is not None and before > ends[tps[0]].offset:
        raise BadInput(
            f"before is {before}; accepted: up to {ends[tps[0]].offset}, the end of the log.", "before"
        )
    offsets = {tp: ends[tp].offset if before is None else min(before, ends[tp].offset) for tp in tps}
    chosen = {tp: offset for tp, offset in offsets.items() if offset > starts[tp].offset}

    async def execute() -> None:
        if chosen:
            await client.delete_records(chosen)

    done = [f"{tp} begins at offset {offset}" for tp, offset in chosen.items()] or ["nothing is deleted"]
    lost = [
        f"the records of {tp} from offset {starts[tp].offset} to {offset - 1}"
        for tp, offset in chosen.items()
    ]
    return Plan(f"Delete records of {name}", "Delete the records", topic_url(name), done, lost, execute)


async def delete_a_group(visitor: Visitor, _request: Request, fields: Mapping[str, str]) -> Plan:
    group_id = id_of(fields)
    client = visitor.client
    described = await describe_group(client, group_id)
    if described.members:
        raise NonEmptyGroup(
            f"{group_id} has {len(described.members)} members; only a group without can be deleted"
        )

    async def execute() -> None:
        await delete_group(client, group_id)

    try:
        found = await committed_offsets(client, group_id, ())
    except KafkaError:
        found = []
    lost = [f"the committed offset {each.offset} of {each.tp}" for each in found if each.offset is not None]
    title, done = f"Delete group {group_id}", [f"group {group_id} is deleted"]
    return Plan(title, "Delete the group", "/groups", done, lost, execute)
