"""Read the start offsets, lags and records in flight of a share group, for `korvet groups` and the web page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import frozen

from korvet.client.client import Client
from korvet.client.cluster import error_about, raise_for, raise_worst
from korvet.client.connection import Address
from korvet.client.groups import Group, GroupMember
from korvet.client.model import TopicPartition, by_topic
from korvet.protocol.errors import KafkaError, NotCoordinator, NotLeaderOrFollower, UnsupportedVersion
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    RecordsInFlight,
)


@frozen
class ShareOffset:
    """Offset of the first record that is not finished, and the lag. None if the broker does not return them."""

    tp: TopicPartition
    start: int | None
    lag: int | None
    error: KafkaError | None = None


@frozen
class PartitionInFlight:
    """The records of a partition that are acquired, or available again: how many, and the first ones of them.

    A partition whose state the broker cannot read has an error.
    """

    tp: TopicPartition
    count: int
    records: Sequence[RecordsInFlight]
    error: KafkaError | None = None


async def share_offsets(client: Client, group_id: str) -> list[ShareOffset]:
    """Return the offsets of a share group in each partition with a state, sorted. Raises UnsupportedVersion, …

    A partition whose state the broker cannot read has an error.
    """

    async def ask() -> DescribeShareGroupOffsetsResponseGroup:
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)
        request = DescribeShareGroupOffsetsRequest(groups=[asked])
        answer = await client.request(request, DescribeShareGroupOffsetsResponse, group_id=group_id)
        (described,) = answer.groups
        raise_for(described.error_code, f"group {group_id}", described.error_message)
        return described

    described = await client.retrying(ask)
    found = []
    for topic in described.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.topic_name, each.partition_index)
            error = error_about(each.error_code, tp, each.error_message) if each.error_code else None
            found.append(ShareOffset(tp, known(each.start_offset), known(each.lag), error))
    return sorted(found, key=lambda each: each.tp)


async def records_in_flight(
    client: Client, group_id: str, tps: Iterable[TopicPartition], most: int
) -> list[PartitionInFlight]:
    """Return what is in flight of each partition that has something in flight, sorted, from the partitions' leaders.

    At most `most` elements describe the records of a partition with the lowest offsets.

    Raises UnsupportedVersion if a leader does not report them, as brokers other than korvet.
    """
    found: dict[TopicPartition, PartitionInFlight] = {}
    missing = set(tps)

    async def ask(leader: Address, led: list[TopicPartition]) -> None:
        topics = [
            DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in by_topic(led).items()
        ]
        asked = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=topics)
        request = DescribeShareGroupOffsetsRequest(groups=[asked], max_in_flight=most)
        answer = await client.request(request, DescribeShareGroupOffsetsResponse, address=leader)
        (described,) = answer.groups
        # A broker other than korvet passes over the field of the request.
        unsupported = UnsupportedVersion(
            f"{leader} does not report the records in flight; korvet's brokers do."
        )
        if described.error_code == NotCoordinator.error_code:
            raise unsupported
        raise_for(described.error_code, f"group {group_id}", described.error_message)
        errors: list[KafkaError] = []
        for topic in described.topics:
            for each in topic.partitions:
                tp = TopicPartition(topic.topic_name, each.partition_index)
                error = error_about(each.error_code, tp, each.error_message) if each.error_code else None
                if isinstance(error, NotLeaderOrFollower):  # the leader has changed
                    errors.append(error)
                elif error is None and each.in_flight_count < 0:
                    errors.append(unsupported)
                else:
                    missing.discard(tp)
                    found[tp] = PartitionInFlight(tp, each.in_flight_count, each.in_flight, error)
        raise_worst(errors)

    await client.retrying(lambda: client.each_leader(missing, ask))
    return [found[tp] for tp in sorted(found) if found[tp].count or found[tp].error]


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
