"""Read the start offsets and lags of a share group, for `korvet groups` and the web page."""

from __future__ import annotations

from attrs import frozen

from korvet.client.client import Client
from korvet.client.cluster import raise_for
from korvet.client.groups import Group, GroupMember
from korvet.client.model import TopicPartition
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
)


@frozen
class ShareOffset:
    """Offset of the first record that is not finished, and the lag. None if the broker does not return them."""

    tp: TopicPartition
    start: int | None
    lag: int | None


async def share_offsets(client: Client, group_id: str) -> list[ShareOffset]:
    """Return the offsets of a share group in each partition with a state, sorted. Raises UnsupportedVersion, …"""

    async def ask() -> DescribeShareGroupOffsetsResponseGroup:
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
        request = DescribeShareGroupOffsetsRequest(groups=[asked])
        answer = await client.request(request, DescribeShareGroupOffsetsResponse, group_id=group_id)
        (described,) = answer.groups
        raise_for(described.error_code, f"group {group_id}", described.error_message)
        for topic in described.topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.topic_name, each.partition_index)
                raise_for(each.error_code, str(tp), each.error_message)
        return described

    described = await client.retrying(ask)
    found = [
        ShareOffset(
            TopicPartition(topic.topic_name, each.partition_index), known(each.start_offset), known(each.lag)
        )
        for topic in described.topics
        for each in topic.partitions
    ]
    return sorted(found, key=lambda each: each.tp)


async def share_partitions(
    client: Client, group: Group
) -> list[tuple[TopicPartition, ShareOffset, list[GroupMember]]]:
    """Return the partitions that are assigned or have a state, with the members that each is assigned to."""
    found = {each.tp: each for each in await share_offsets(client, group.group_id)}
    assigned = {tp for member in group.members for tp in member.assignment}
    return [
        (
            tp,
            found.get(tp, ShareOffset(tp, None, None)),
            [member for member in group.members if tp in member.assignment],
        )
        for tp in sorted(assigned | found.keys())
    ]


def known(number: int) -> int | None:
    return None if number < 0 else number
