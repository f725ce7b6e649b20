"""List, describe and delete groups, for the command line. `Client` has their committed offsets.

Requests go to the group's coordinator. Retriable errors are retried as everywhere in the client; others are KafkaErrors
that name the group.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from attrs import define, field, frozen

from korvet.client.client import Client
from korvet.client.cluster import raise_for
from korvet.client.model import TopicPartition
from korvet.protocol.errors import GroupIdNotFound, KafkaError, UnsupportedVersion
from korvet.protocol.messages import consumer_group_describe, share_group_describe
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from korvet.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from korvet.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

G = TypeVar("G", DescribedGroup, consumer_group_describe.DescribedGroup, share_group_describe.DescribedGroup)

CONSUMER = "consumer"
SHARE = "share"
DEAD = "Dead"
# The first versions of ListGroups that filter; an older broker would list everything.
FILTERS_STATES = 4
FILTERS_TYPES = 5


@frozen
class ListedGroup:
    """A group in a list. `state` and `kind` are empty if the broker's version does not return them."""

    group_id: str
    protocol_type: str
    state: str
    kind: str


@frozen
class GroupMember:
    """A member. `assignment` is also empty if its format is unknown (Kafka Connect).

    In a group whose broker assigns, the assignment has the partitions that the member owns now, and `epoch` is that of
    the last target that the member has reached.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...] | None = None  # None in classic and share groups
    epoch: int | None = None  # None in a classic group
    is_classic: bool = True  # it uses the classic protocol


@frozen
class Group:
    """A group as its coordinator describes it. `assignor` is the selected protocol while the group is Stable."""

    group_id: str
    state: str
    protocol_type: str
    assignor: str
    coordinator: str
    members: tuple[GroupMember, ...]


async def list_groups(
    client: Client,
    *,
    states: Collection[str] = (),
    kinds: Collection[str] = (),
    node_ids: Collection[int] | None = None,
) -> list[ListedGroup]:
    """Return the groups of all brokers, or of those with these ids, sorted by id.

    Raises UnsupportedVersion if a broker cannot filter.
    """
    request = ListGroupsRequest(states_filter=list(states), types_filter=list(kinds))
    min_version = FILTERS_TYPES if kinds else FILTERS_STATES if states else 0

    async def ask(node_id: int) -> ListGroupsResponse:
        answer = await client.request(request, ListGroupsResponse, node_id=node_id, min_version=min_version)
        raise_for(answer.error_code, f"the groups of broker {node_id}")
        return answer

    found = {}
    for node_id in list(client.brokers) if node_ids is None else node_ids:
        answer = await client.retrying(partial(ask, node_id))
        for group in answer.groups:
            found[group.group_id] = ListedGroup(
                group.group_id, group.protocol_type, group.group_state, group.group_type
            )
    return [found[group_id] for group_id in sorted(found)]


async def describe_group(client: Client, group_id: str) -> Group:
    """Return one group of any type. Raises GroupIdNotFound."""
    try:
        return await _describe_classic(client, group_id)
    except GroupIdNotFound as error:
        for describe in (_describe_consumer, _describe_share):
            with suppress(GroupIdNotFound, UnsupportedVersion):
                return await describe(client, group_id)
        raise error from None


async def _describe_consumer(client: Client, group_id: str) -> Group:
    """Return a group whose broker assigns partitions. Raises GroupIdNotFound, UnsupportedVersion."""
    request = consumer_group_describe.ConsumerGroupDescribeRequest(
        group_ids=[group_id], include_authorized_operations=False
    )
    response = consumer_group_describe.ConsumerGroupDescribeResponse

    async def ask() -> Sequence[consumer_group_describe.DescribedGroup]:
        return (await client.request(request, response, group_id=group_id)).groups

    described = await _only(client, group_id, ask)
    return Group(
        group_id,
        described.group_state,
        CONSUMER,
        described.assignor_name,
        str(await client.find_coordinator(group_id)),
        tuple(
            GroupMember(
                each.member_id,
                each.instance_id,
                each.client_id,
                each.client_host,
                _partitions(each.assignment),
                _partitions(each.target_assignment),
                each.member_epoch,
                each.member_type == consumer_group_describe.CLASSIC_MEMBER,
            )
            for each in described.members
        ),
    )


async def _describe_share(client: Client, group_id: str) -> Group:
    """Return a share group. Raises GroupIdNotFound, UnsupportedVersion."""
    request = share_group_describe.ShareGroupDescribeRequest(
        group_ids=[group_id], include_authorized_operations=False
    )
    response = share_group_describe.ShareGroupDescribeResponse

    async def ask() -> Sequence[share_group_describe.DescribedGroup]:
        return (await client.request(request, response, group_id=group_id)).groups

    described = await _only(client, group_id, ask)
    return Group(
        group_id,
        described.group_state,
        SHARE,
        described.assignor_name,
        str(await client.find_coordinator(group_id)),
        tuple(
            GroupMember(
                each.member_id,
                None,
                each.client_id,
                each.client_host,
                _partitions(each.assignment),
                epoch=each.member_epoch,
                is_classic=False,
            )
            for each in described.members
        ),
    )


async def _only(client: Client, group_id: str, ask: Callable[[], Awaitable[Sequence[G]]]) -> G:
    """Return the one group of a response. Retry as everywhere in the client; raise the group's error."""

    async def only() -> G:
        (described,) = await ask()
        raise_for(described.error_code, f"group {group_id}", described.error_message)
        return described

    return await client.retrying(only)


def _partitions(
    assignment: consumer_group_describe.Assignment | share_group_describe.Assignment,
) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, number)
            for topic in assignment.topic_partitions
            for number in topic.partitions
        )
    )


async def _describe_classic(client: Client, group_id: str) -> Group:
    """Return a classic group. Raises GroupIdNotFound, also if the broker describes a missing group as Dead."""
    request = DescribeGroupsRequest(groups=[group_id])

    async def ask() -> Sequence[DescribedGroup]:
        return (await client.request(request, DescribeGroupsResponse, group_id=group_id)).groups

    described = await _only(client, group_id, ask)
    if described.group_state == DEAD:
        raise GroupIdNotFound(f"group {group_id}: there is no such group.")
    is_consumer = described.protocol_type == CONSUMER
    return Group(
        group_id,
        described.group_state,
        described.protocol_type,
        described.protocol_data,
        str(await client.find_coordinator(group_id)),
        tuple(_member(each, is_consumer=is_consumer) for each in described.members),
    )


async def delete_group(client: Client, group_id: str) -> None:
    """Delete a group without members, and its committed offsets. Raises GroupIdNotFound, NonEmptyGroup."""

    async def ask() -> None:
        answer = await client.request(
            DeleteGroupsRequest(groups_names=[group_id]), DeleteGroupsResponse, group_id=group_id
        )
        (result,) = answer.results
        raise_for(result.error_code, f"group {group_id}")

    await client.retrying(ask)


async def delete_groups(client: Client, group_ids: Sequence[str]) -> dict[str, KafkaError | None]:
    """Delete groups, each separately. Return the error of each, or None."""
    outcomes: dict[str, KafkaError | None] = {}
    for group_id in group_ids:
        try:
            await delete_group(client, group_id)
            outcomes[group_id] = None
        except KafkaError as error:
            outcomes[group_id] = error
    return outcomes


def _member(described: DescribedGroupMember, *, is_consumer: bool) -> GroupMember:
    assignment: tuple[TopicPartition, ...] = ()
    if is_consumer:
        with suppress(
            ValueError
        ):  # some consumers use another format; the rest of the member is still described
            assignment = assigned_partitions(described.member_assignment)
    return GroupMember(
        described.member_id,
        described.group_instance_id,
        described.client_id,
        described.client_host,
        assignment,
    )


def assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return a consumer's partitions, sorted. An empty assignment, as during a rebalance, has none.

    The format is an int16 version, an array of topic and array of int32, then user data. Raises ValueError.
    """
    if not assignment:
        return ()
    reader = Reader(assignment, 2)
    found = []
    try:
        for _ in range(reader.number(">i")):
            topic = reader.text(reader.number(">h"))
            found += [TopicPartition(topic, reader.number(">i")) for _ in range(reader.number(">i"))]
    except struct.error as error:
        raise ValueError(str(error)) from None
    return tuple(sorted(found))


@define
class Reader:
    """Reads the numbers and texts of a consumer's metadata or assignment."""

    data: bytes
    position: int = field(default=0)

    def number(self, form: str) -> int:
        (number,) = struct.unpack_from(form, self.data, self.position)
        self.position += struct.calcsize(form)
        return int(number)

    def text(self, size: int) -> str:
        text = self.data[self.position : self.position + size]
        if size < 0 or len(text) != size:
            raise ValueError("a topic's name is longer than the assignment")
        self.position += size
        return text.decode()
