from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest, DescribedGroup
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest
from tests.handlers.consumer_groups import ConsumerMember
from tests.handlers.members import take_part
from tests.handlers.support import ask, create, new_broker


async def describe(broker: Broker, *ids: str, version: int = 1) -> list[DescribedGroup]:
    request = ConsumerGroupDescribeRequest(group_ids=list(ids), include_authorized_operations=False)
    response = await ask(broker, 69, version, request)
    return list(response.groups)


async def test_group_is_described_with_its_members(broker: Broker) -> None:
    topic = await create(broker, partitions=2)
    member = ConsumerMember(broker, instance_id="i")
    await member.join("t", regex="u.*", rack_id="r", server_assignor="range")
    (group,) = await describe(broker, "g")

    assert (ErrorCode.NONE, "Stable", 2, 2, "range") == (
        group.error_code,
        group.group_state,
        group.group_epoch,
        group.assignment_epoch,
        group.assignor_name,
    )
    (described,) = group.members
    assert (member.member_id, "i", "r", 2, ["t"], "u.*", 1) == (
        described.member_id,
        described.instance_id,
        described.rack_id,
        described.member_epoch,
        described.subscribed_topic_names,
        described.subscribed_topic_regex,
        described.member_type,
    )
    for assignment in (described.assignment, described.target_assignment):
        (given,) = assignment.topic_partitions
        assert (topic.topic_id, "t", [0, 1]) == (given.topic_id, given.topic_name, given.partitions)


async def test_each_api_describes_groups_of_its_own_type() -> None:
    broker = await new_broker(group_initial_rebalance_delay_ms=0)
    await create(broker)
    await take_part(broker)
    await ConsumerMember(broker, "c").join("t")
    consumer = await describe(broker, "g", "missing")
    old = await ask(broker, 15, 5, DescribeGroupsRequest(groups=["c"]))
    new = await ask(broker, 15, 6, DescribeGroupsRequest(groups=["c"]))

    assert [
        (ErrorCode.GROUP_ID_NOT_FOUND, "Group g is not a consumer group."),
        (ErrorCode.GROUP_ID_NOT_FOUND, "Group missing not found."),
    ] == [(each.error_code, each.error_message) for each in consumer]
    assert [(ErrorCode.NONE, "Dead")] == [(each.error_code, each.group_state) for each in old.groups]
    assert [(ErrorCode.GROUP_ID_NOT_FOUND, "Group c is not a classic group.")] == [
        (each.error_code, each.error_message) for each in new.groups
    ]


async def test_groups_are_listed_with_their_types() -> None:
    broker = await new_broker(group_initial_rebalance_delay_ms=0)
    await create(broker)
    await take_part(broker)
    await ConsumerMember(broker, "c").join("t")

    async def listed(*types: str) -> list[tuple[str, str, str, str]]:
        response = await ask(broker, 16, 5, ListGroupsRequest(types_filter=list(types)))
        return [
            (each.group_id, each.group_type, each.protocol_type, each.group_state) for each in response.groups
        ]

    classic, consumer = ("g", "classic", "consumer", "Stable"), ("c", "consumer", "consumer", "Stable")
    assert [consumer, classic] == await listed()
    assert [consumer] == await listed("Consumer")
    assert [classic] == await listed("classic")
