"""Groups whose broker assigns partitions: ConsumerGroupHeartbeat, ConsumerGroupDescribe, member epochs in offsets."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from attrs import define, field

from conformance.scenario import scenario
from conformance.scenarios.members import commit, join
from conformance.talk import Talk
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.offset_commit import OffsetCommitRequest
from korvet.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

REBALANCE_MS = 30_000
# More than `group.consumer.assignment.interval.ms`.
NEXT_TARGET_S = 1.1
NEVER_ASSIGNED = UUID(int=7)


@define
class Consumer:
    """A client in a group; its answers have its name as labels."""

    talk: Talk
    group: str
    member_id: str
    version: int = 1
    instance: str | None = None
    epoch: int = 0
    owned: list[TopicPartitions] = field(factory=list)

    def send(self, label: str, **fields: Any) -> Any:
        """Send a heartbeat, and keep its answer for the comparison."""
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
        }
        request = ConsumerGroupHeartbeatRequest(**(given | fields))
        answer = self.talk.ask(request, self.version, f"{self.member_id or 'a new one'} {label}")
        if not answer.error_code:
            self.member_id, self.epoch = answer.member_id, answer.member_epoch
            if answer.assignment is not None:
                self.owned = answer.assignment.topic_partitions
        return answer

    def join(self, *topics: str, label: str = "joins", **fields: Any) -> Any:
        """Join, or join again."""
        joining: dict[str, Any] = {
            "member_epoch": 0,
            "instance_id": self.instance,
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": list(topics),
            "topic_partitions": [],
        }
        return self.send(label, **(joining | fields))

    def acknowledge(self, label: str = "acknowledges") -> Any:
        """Report the owned partitions."""
        return self.send(label, topic_partitions=self.owned)


def describe(talk: Talk, group: str, label: str, version: int = 1) -> None:
    talk.ask(
        ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False), version, label
    )


@scenario(ConsumerGroupHeartbeatRequest)
def one_member(talk: Talk, version: int) -> None:
    topic, group = talk.topic("orders", partitions=3), talk.name("g")
    member = Consumer(talk, group, "a", version)
    member.join(topic)
    member.acknowledge()
    member.send("is steady")
    member.send(
        "reports a partition that was never assigned",
        topic_partitions=[TopicPartitions(topic_id=NEVER_ASSIGNED, partitions=[0])],
    )
    member.join(topic, label="joins again")
    member.send("with an epoch of the future", member_epoch=9)
    member.send("leaves", member_epoch=-1)
    member.send("leaves again", member_epoch=-1)
    describe(talk, group, "in the end")


@scenario(ConsumerGroupHeartbeatRequest)
def invalid_heartbeats(talk: Talk, version: int) -> None:
    topic, group = talk.topic("orders"), talk.name("g")
    member = Consumer(talk, group, "a", version)
    invalid: dict[str, dict[str, Any]] = {
        "without a group": {"group_id": ""},
        "with an instance id of no length": {"instance_id": ""},
        "with a rack of no length": {"rack_id": ""},
        "without a rebalance timeout": {"rebalance_timeout_ms": -1},
        "without partitions": {"topic_partitions": None},
        "with partitions": {"topic_partitions": [TopicPartitions(topic_id=NEVER_ASSIGNED, partitions=[0])]},
        "without a subscription": {"subscribed_topic_names": None},
        "with an unknown assignor": {"server_assignor": "nobody"},
        "for a while without an instance id": {"member_epoch": -2},
        "with epoch -3": {"member_epoch": -3},
        "in a group that there is not, with epoch 1": {"member_epoch": 1},
        "in a group that there is not, and leaves": {"member_epoch": -1},
    }
    for label, fields in invalid.items():
        member.join(topic, label=label, **fields)
    if version >= 1:
        member.join(topic, label="without a member id", member_id="")
        member.join(topic, label="with a malformed expression", subscribed_topic_regex="(")
    Consumer(talk, group, "", version).send("with epoch 1", member_epoch=1)
    member.join(topic)
    Consumer(talk, group, "b", version).send("that there is not, with epoch 1", member_epoch=1)
    Consumer(talk, group, "b", version).send("that there is not, leaves", member_epoch=-1)


@scenario(ConsumerGroupHeartbeatRequest)
def static_members(talk: Talk, version: int) -> None:
    topic, group = talk.topic("orders", partitions=2), talk.name("g")
    one = Consumer(talk, group, "a", version, instance="i")
    other = Consumer(talk, group, "b", version, instance="i")
    one.join(topic)
    other.join(topic, label="wants its place")
    one.send("leaves for a while", member_epoch=-2, instance_id="i")
    describe(talk, group, "while it is away")
    other.join(topic, label="takes its place")
    one.send("comes back", member_epoch=1, instance_id="i")
    other.acknowledge()
    describe(talk, group, "in the end")


@scenario(ConsumerGroupDescribeRequest)
def descriptions(talk: Talk, version: int) -> None:
    topic, group = talk.topic("orders", partitions=2), talk.name("g")
    describe(talk, group, "before", version)
    Consumer(talk, group, "a").join(topic, rack_id="r", server_assignor="range")
    describe(talk, group, "a member", version)
    for old in (5, 6):
        talk.ask(DescribeGroupsRequest(groups=[group]), old, f"as a classic group, v{old}")
    talk.ask(DeleteGroupsRequest(groups_names=[group]), 2, "delete it")
    classic = talk.name("classic")
    talk.tell(commit(classic, topic, 1))
    describe(talk, classic, "a group with offsets only", version)


@scenario()
def as_many_members_name_one_assignor_as_the_other(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    for first, second in (("uniform", "range"), ("range", "uniform")):
        group = talk.name(first)
        Consumer(talk, group, "a").join(topic, server_assignor=first)
        Consumer(talk, group, "b").join(topic, server_assignor=second)
        request = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
        answer = talk.tell(request, 1)
        talk.note(f"{first} was first", answer.groups[0].assignor_name)


@scenario()
def a_subscribed_topic_is_deleted(talk: Talk, _version: int) -> None:
    topic, other, group = talk.topic("orders", partitions=2), talk.topic("more"), talk.name("g")
    member = Consumer(talk, group, "a")
    member.join(topic, other)
    member.acknowledge()
    talk.tell(DeleteTopicsRequest(topics=[DeleteTopicState(name=other)], timeout_ms=10_000), 6)
    talk.until_gone("more")
    time.sleep(NEXT_TARGET_S)
    member.send("heartbeats")
    member.acknowledge()
    member.send("heartbeats again")
    describe(talk, group, "then")


@scenario(OffsetCommitRequest, 8)
def commits_with_epochs(talk: Talk, version: int) -> None:
    topic, group = talk.topic("orders", partitions=2), talk.name("g")
    member = Consumer(talk, group, "a")
    member.join(topic)
    for label, member_id, epoch in (
        ("the member's epoch", "a", member.epoch),
        ("an older epoch", "a", member.epoch - 1),
        ("an epoch of the future", "a", member.epoch + 1),
        ("no epoch", "a", -1),
        ("another member", "b", member.epoch),
        ("no member", "", -1),
    ):
        talk.ask(commit(group, topic, 5, member_id=member_id, generation=epoch), version, label)
    member.send("leaves", member_epoch=-1)
    talk.ask(commit(group, topic, 6), version, "no member, of an empty group")


@scenario(OffsetFetchRequest, 9)
def fetches_with_epochs(talk: Talk, version: int) -> None:
    topic, group = talk.topic("orders"), talk.name("g")
    member = Consumer(talk, group, "a")
    member.join(topic)
    for label, member_id, epoch in (
        ("the member's epoch", "a", member.epoch),
        ("an older epoch", "a", member.epoch - 1),
        ("an epoch of the future", "a", member.epoch + 1),
        ("another member", "b", member.epoch),
        ("no member", None, -1),
        ("no member, with an epoch", None, 1),
    ):
        asked = [OffsetFetchRequestTopics(name=topic, partition_indexes=[0])]
        groups = [
            OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=epoch, topics=asked)
        ]
        talk.ask(OffsetFetchRequest(groups=groups), version, label)


@scenario()
def classic_members_of_an_empty_group(talk: Talk, _version: int) -> None:
    topic, group = talk.topic("orders"), talk.name("g")
    member = Consumer(talk, group, "a")
    member.join(topic)
    heartbeat = HeartbeatRequest(group_id=group, generation_id=1, member_id="b")
    talk.ask(heartbeat, 4, "a classic heartbeat")
    member.send("leaves", member_epoch=-1)
    # Whether the group is a classic one right after this depends on when Kafka commits its log.
    talk.ask(join(group), 9, "a classic member joins")
