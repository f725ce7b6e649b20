from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest
from korvet.protocol.messages.share_group_describe import DescribedGroup, ShareGroupDescribeRequest
from tests.handlers.consumer_groups import ConsumerMember
from tests.handlers.share_groups import ShareMember
from tests.handlers.support import ask, create


async def described(broker: Broker, *names: str, **fields: bool) -> list[DescribedGroup]:
    given = {"include_authorized_operations": False} | fields
    response = await ask(broker, 77, 1, ShareGroupDescribeRequest(group_ids=list(names), **given))
    return list(response.groups)


async def listed(broker: Broker) -> list[tuple[str, str, str, str]]:
    response = await ask(broker, 16, 5, ListGroupsRequest(types_filter=["Share"]))
    return [
        (each.group_id, each.protocol_type, each.group_state, each.group_type) for each in response.groups
    ]


async def test_a_group_and_its_members_are_described(broker: Broker) -> None:
    alice = ShareMember(broker, (await create(broker, partitions=2)).topic_id)
    await alice.beat(subscribed_topic_names=["t"], rack_id="r")

    (group,) = await described(broker, "g", include_authorized_operations=True)

    assert ("g", "Stable", "simple") == (group.group_id, group.group_state, group.assignor_name)
    assert group.group_epoch == group.assignment_epoch > 0
    assert group.authorized_operations > 0
    (member,) = group.members
    assert (alice.member_id, "r", "test", "/127.0.0.1", ["t"]) == (
        member.member_id,
        member.rack_id,
        member.client_id,
        member.client_host,
        member.subscribed_topic_names,
    )
    assert [(alice.topic_id, "t", [0, 1])] == [
        (each.topic_id, each.topic_name, each.partitions) for each in member.assignment.topic_partitions
    ]


async def test_other_groups_are_not_found(broker: Broker) -> None:
    await create(broker)
    await ConsumerMember(broker, "consumers").join("t")

    codes = [group.error_code for group in await described(broker, "consumers", "missing")]

    assert [ErrorCode.GROUP_ID_NOT_FOUND] * 2 == codes


async def test_a_group_is_listed_by_its_type_and_deleted_when_it_is_empty(broker: Broker) -> None:
    alice = ShareMember(broker, (await create(broker)).topic_id)
    await alice.beat(subscribed_topic_names=["t"])

    async def delete() -> int:
        return int((await ask(broker, 42, 2, DeleteGroupsRequest(groups_names=["g"]))).results[0].error_code)

    assert [("g", "share", "Stable", "share")] == await listed(broker)
    assert ErrorCode.NON_EMPTY_GROUP == await delete()
    await alice.beat(member_epoch=-1)
    assert [("g", "share", "Empty", "share")] == await listed(broker)
    assert ErrorCode.NONE == await delete()
    assert [] == await listed(broker)
