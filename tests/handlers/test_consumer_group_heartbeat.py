from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import trio
from trio.testing import MockClock

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.consumer_group_heartbeat import TopicPartitions
from tests.handlers.consumer_groups import ConsumerMember, settle
from tests.handlers.support import create, new_broker


@pytest.mark.parametrize("version", [0, 1])
async def test_first_response_has_the_whole_assignment(broker: Broker, version: int) -> None:
    topic = await create(broker, partitions=3)
    member = ConsumerMember(broker)
    response = await member.join("t", version=version)

    assert (ErrorCode.NONE, 2, 5000) == (
        response.error_code,
        response.member_epoch,
        response.heartbeat_interval_ms,
    )
    assert {topic.topic_id: [0, 1, 2]} == member.owned
    steady = await member.send()
    assert (2, None) == (steady.member_epoch, steady.assignment)


async def test_broker_makes_the_id_of_a_member_in_v0(broker: Broker) -> None:
    await create(broker)
    response = await ConsumerMember(broker, member_id="").join("t", version=0)

    assert ErrorCode.NONE == response.error_code
    assert response.member_id


async def test_second_member_gets_partitions_once_the_first_has_revoked_them(
    broker: Broker, autojump_clock: MockClock
) -> None:
    topic = await create(broker, partitions=4)
    one, two = ConsumerMember(broker), ConsumerMember(broker)
    await one.join("t")
    autojump_clock.jump(2)
    await two.join("t")
    early = dict(two.owned)
    await one.send()
    kept = list(one.owned[topic.topic_id])
    await settle([one, two])

    assert {} == early
    assert 2 == len(kept)
    assert sorted(one.owned[topic.topic_id] + two.owned[topic.topic_id]) == [0, 1, 2, 3]
    assert kept == one.owned[topic.topic_id]
    assert one.epoch == two.epoch == 3


async def test_member_that_leaves_frees_its_partitions(broker: Broker, autojump_clock: MockClock) -> None:
    topic = await create(broker, partitions=2)
    one, two = ConsumerMember(broker), ConsumerMember(broker)
    await one.join("t")
    autojump_clock.jump(2)
    await two.join("t")
    await settle([one, two])
    autojump_clock.jump(2)
    left = await one.leave()
    await two.send()

    assert (ErrorCode.NONE, -1) == (left.error_code, left.member_epoch)
    assert {topic.topic_id: [0, 1]} == two.owned


async def test_expression_leads_to_the_topics_that_match(broker: Broker, autojump_clock: MockClock) -> None:
    one = await create(broker, "logs-1")
    await create(broker, "other")
    member = ConsumerMember(broker)
    await member.join(regex="logs-.*")
    first = dict(member.owned)
    two = await create(broker, "logs-2")
    for _ in range(4):
        autojump_clock.jump(11)
        await member.send()

    assert {one.topic_id: [0]} == first
    assert {one.topic_id: [0], two.topic_id: [0]} == member.owned


async def test_expression_that_does_not_compile_is_refused_after_other_errors(broker: Broker) -> None:
    refused = await ConsumerMember(broker).join(regex="(")
    unknown = await ConsumerMember(broker, epoch=3).send(subscribed_topic_regex="(")

    assert ErrorCode.INVALID_REGULAR_EXPRESSION == refused.error_code
    assert ErrorCode.GROUP_ID_NOT_FOUND == unknown.error_code
    assert [] == await broker.groups.groups()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"member_id": ""}, "MemberId can't be empty."),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"instance_id": ""}, "InstanceId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"topic_partitions": None}, "TopicPartitions must be empty when (re-)joining."),
        (
            {"topic_partitions": [TopicPartitions(topic_id=uuid4(), partitions=[0])]},
            "TopicPartitions must be empty when (re-)joining.",
        ),
        (
            {"subscribed_topic_names": None},
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -2}, "InstanceId can't be null."),
        ({"member_epoch": -3}, "MemberEpoch is invalid."),
    ],
)
async def test_requests_that_contradict_themselves(
    broker: Broker, fields: dict[str, Any], message: str
) -> None:
    response = await ConsumerMember(broker).join("t", **fields)

    assert (ErrorCode.INVALID_REQUEST, message) == (response.error_code, response.error_message)
    assert [] == await broker.groups.groups()


async def test_errors_of_members_that_the_group_does_not_have(broker: Broker) -> None:
    await create(broker)
    member = ConsumerMember(broker)
    assert ErrorCode.GROUP_ID_NOT_FOUND == (await member.send(member_epoch=1)).error_code
    await member.join("t")

    stranger = ConsumerMember(broker)
    assert ErrorCode.UNKNOWN_MEMBER_ID == (await stranger.send(member_epoch=1)).error_code
    assert ErrorCode.UNKNOWN_MEMBER_ID == (await stranger.leave()).error_code
    assert ErrorCode.FENCED_MEMBER_EPOCH == (await member.send(member_epoch=9)).error_code
    assert ErrorCode.UNSUPPORTED_ASSIGNOR == (await stranger.join("t", server_assignor="x")).error_code


async def test_static_member_returns_to_its_partitions(broker: Broker) -> None:
    topic = await create(broker, partitions=2)
    first, second = ConsumerMember(broker, instance_id="i"), ConsumerMember(broker, instance_id="i")
    await first.join("t")
    taken = await second.join("t")
    await first.send(member_epoch=-2, instance_id="i")
    returned = await second.join("t")
    fenced = await first.send(member_epoch=2, instance_id="i")

    assert ErrorCode.UNRELEASED_INSTANCE_ID == taken.error_code
    assert (ErrorCode.NONE, 2) == (returned.error_code, returned.member_epoch)
    assert {topic.topic_id: [0, 1]} == second.owned
    assert ErrorCode.FENCED_INSTANCE_ID == fenced.error_code


async def test_session_that_ends_removes_the_member(
    broker: Broker, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    assert autojump_clock.autojump_threshold == 0
    nursery.start_soon(broker.groups.run)
    await create(broker)
    member = ConsumerMember(broker)
    await member.join("t")
    await trio.sleep(44.9)
    await member.send()
    await trio.sleep(45.1)

    assert ErrorCode.UNKNOWN_MEMBER_ID == (await member.send()).error_code


async def test_group_is_full() -> None:
    broker = await new_broker(group_consumer_max_size=1)
    await create(broker)
    await ConsumerMember(broker).join("t")

    assert ErrorCode.GROUP_MAX_SIZE_REACHED == (await ConsumerMember(broker).join("t")).error_code


async def test_settings_of_the_group_apply_to_its_members(broker: Broker) -> None:
    await create(broker)
    broker.groups.settings = {"g": {"consumer.heartbeat.interval.ms": "9000"}}

    assert 9000 == (await ConsumerMember(broker).join("t")).heartbeat_interval_ms
    assert 5000 == (await ConsumerMember(broker, "other").join("t")).heartbeat_interval_ms
