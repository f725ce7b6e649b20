"""Share groups (KIP-932): their members, the acquisition and acknowledgement of records, and their offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from conformance.scenario import scenario
from conformance.scenarios.members import commit, join
from conformance.scenarios.records import batch
from conformance.talk import Talk
from korvet.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from korvet.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from korvet.protocol.messages.delete_groups import DeleteGroupsRequest
from korvet.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from korvet.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from korvet.protocol.messages.share_acknowledge import (
    AcknowledgePartition,
    AcknowledgeTopic,
    ShareAcknowledgeRequest,
)
from korvet.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
)
from korvet.protocol.messages.share_group_describe import ShareGroupDescribeRequest
from korvet.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

GROUP_RESOURCE = 32
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
# Kafka initializes the state of a group's partitions after its first member has joined.
PATIENCE_MS = 5000
# Within this time Kafka has read the state of a partition, which it begins with the first fetch.
READ_MS = 3000

# The numbers of the first and the last record of a batch, and its types.
Ack = tuple[int, int, Sequence[int]]


def begin_earliest(talk: Talk, group: str, **settings: str) -> None:
    """Let a group begin with the earliest records, and give it other settings."""
    given = {"share.auto.offset.reset": "earliest", **settings}
    configs = [AlterableConfig(name=name, config_operation=0, value=value) for name, value in given.items()]
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=configs)
    talk.tell(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False))


@define
class Member:
    """A member of a share group with one connection; its answers have its name as labels."""

    talk: Talk
    group: str
    topic: str
    member_id: str = "a"
    epoch: int = 0
    session_epoch: int = 0
    version: int = 2
    partitions: list[int] = field(factory=lambda: [0])

    def beat(self, label: str, **fields: Any) -> Any:
        """Send a heartbeat, and keep its answer for the comparison."""
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": self.epoch,
        }
        answer = self.talk.ask(
            ShareGroupHeartbeatRequest(**(given | fields)), 1, f"{self.member_id or 'nobody'} {label}"
        )
        if not answer.error_code:
            self.epoch = answer.member_epoch
        return answer

    def join(self) -> None:
        """Join the group."""
        self.beat("joins", subscribed_topic_names=[self.talk.name(self.topic)])

    def fetch(self, label: str, *acks: Ack, keep: bool = True, **fields: Any) -> Any:
        """Fetch, and acknowledge records of the first partition."""
        topic_id = self.talk.topic_id(self.topic)
        partitions = [
            FetchPartition(
                partition_index=number, acknowledgement_batches=self._batches(acks) if not number else []
            )
            for number in self.partitions
        ]
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.session_epoch,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 1_000_000,
            "max_records": 500,
            "batch_size": 500,
            "topics": [FetchTopic(topic_id=topic_id, partitions=partitions)],
            "forgotten_topics_data": [],
        }
        request = ShareFetchRequest(**(given | fields))
        label = f"{self.member_id} {label}"
        answer = (
            self.talk.ask(request, self.version, label) if keep else self.talk.tell(request, self.version)
        )
        if not answer.error_code:
            self.session_epoch = request.share_session_epoch + 1
        return answer

    def open(self) -> None:
        """Begin a session, and wait until the group delivers records. There are none yet that it may acquire."""

        # Kafka reads the state of the partition beside the fetch, whose answer names the partition once that has ended.
        def is_ready() -> bool:
            answer = self.fetch("begins", keep=False, max_wait_ms=200, share_session_epoch=0)
            found = [each for topic in answer.responses for each in topic.partitions]
            return bool(found) and not any(each.error_code for each in found)

        self.talk.wait_until(is_ready, "the state of the share partition is initialized")

    def open_again(self) -> None:
        """Begin a session of a partition that the group delivers already, and acquire nothing."""
        self.fetch("begins", keep=False, max_records=0, share_session_epoch=0)

    def acquire(self, label: str, *acks: Ack, **fields: Any) -> Any:
        """Fetch, and wait for records."""
        return self.fetch(label, *acks, **({"max_wait_ms": PATIENCE_MS} | fields))

    def acknowledge(self, label: str, *acks: Ack, **fields: Any) -> Any:
        """Send ShareAcknowledge for the first partition."""
        topic = AcknowledgeTopic(
            topic_id=self.talk.topic_id(self.topic),
            partitions=[AcknowledgePartition(partition_index=0, acknowledgement_batches=self._batches(acks))],
        )
        given: dict[str, Any] = {
            "group_id": self.group,
            "member_id": self.member_id,
            "share_session_epoch": self.session_epoch,
            "topics": [topic] if acks else [],
        }
        request = ShareAcknowledgeRequest(**(given | fields))
        answer = self.talk.ask(request, self.version, f"{self.member_id} {label}")
        if not answer.error_code:
            self.session_epoch = request.share_session_epoch + 1
        return answer

    def _batches(self, acks: Sequence[Ack]) -> list[AcknowledgementBatch]:
        return [
            AcknowledgementBatch(
                first_offset=self.talk.offset(self.topic, first),
                last_offset=self.talk.offset(self.topic, last),
                acknowledge_types=list(types),
            )
            for first, last, types in acks
        ]


# --- Members -----------------------------------------------------------------------------------------------------


@scenario(ShareGroupHeartbeatRequest)
def members_of_a_share_group(talk: Talk, _version: int) -> None:
    name, group = talk.topic("jobs", partitions=2), talk.name("g")
    one, two = Member(talk, group, "jobs"), Member(talk, group, "jobs", "b")
    one.beat("of a group that does not exist", member_epoch=1)
    one.beat("leaves a group that does not exist", member_epoch=-1)
    one.join()
    one.beat("stays")
    one.beat("repeats its first epoch", member_epoch=0, subscribed_topic_names=[name])
    two.beat("is no member", member_epoch=1)
    two.beat("cannot leave", member_epoch=-1)
    two.join()
    one.beat("of the past", member_epoch=1)
    one.beat("of the future", member_epoch=99)
    one.beat("follows")
    one.beat("subscribes to another topic", subscribed_topic_names=[talk.name("missing")])
    two.beat("leaves", member_epoch=-1)
    one.beat("stays alone")
    one.beat("leaves", member_epoch=-1)


@scenario(ShareGroupHeartbeatRequest)
def bad_heartbeats_of_share_groups(talk: Talk, _version: int) -> None:
    name, group = talk.topic("jobs"), talk.name("g")
    cases: tuple[tuple[str, dict[str, Any]], ...] = (
        ("without a group", {"group_id": ""}),
        ("without an id", {"member_id": ""}),
        ("with a blank id", {"member_id": " "}),
        ("with an empty rack", {"rack_id": ""}),
        ("with epoch -2", {"member_epoch": -2}),
        ("without topics", {"subscribed_topic_names": None}),
        ("with no topic", {"subscribed_topic_names": []}),
    )
    for label, fields in cases:
        Member(talk, group, "jobs").beat(label, **({"subscribed_topic_names": [name]} | fields))


@scenario(ShareGroupDescribeRequest)
def describing_share_groups(talk: Talk, _version: int) -> None:
    talk.topic("jobs", partitions=2)
    group = talk.name("g")

    def describe(label: str) -> None:
        request = ShareGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
        talk.ask(request, 1, label)

    describe("before")
    one = Member(talk, group, "jobs")
    one.join()
    describe("with a member")
    talk.ask(DescribeGroupsRequest(groups=[group]), 6, "as a classic group")
    consumer = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
    talk.ask(consumer, 1, "as a consumer group")
    talk.ask(join(group), 9, "a classic member joins")
    talk.ask(commit(group, talk.name("jobs"), 1), 9, "a commit")
    talk.ask(DeleteGroupsRequest(groups_names=[group]), 2, "delete it")
    one.beat("leaves", member_epoch=-1)
    describe("empty")
    talk.ask(DeleteGroupsRequest(groups_names=[group]), 2, "delete it when it is empty")
    describe("deleted")


# --- Records -----------------------------------------------------------------------------------------------------


@scenario(ShareFetchRequest)
def acquiring_records(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    group = talk.name("g")
    begin_earliest(talk, group)
    one, two = Member(talk, group, "jobs", version=version), Member(talk, group, "jobs", "b", version=version)
    one.join()
    two.join()
    one.open()
    two.open()
    talk.fill("jobs", batch(b"0", b"1", b"2", b"3"))
    one.acquire("acquires all")
    two.fetch("finds nothing")
    two.acknowledge("accepts another member's", (1, 1, [ACCEPT]))
    one.acknowledge("accepts, releases and rejects", (0, 2, [ACCEPT, RELEASE, REJECT]))
    two.acquire("acquires what is released")
    one.acknowledge("accepts what it has released", (1, 1, [ACCEPT]))
    one.acknowledge("accepts the last one", (3, 3, [ACCEPT]))
    one.acknowledge("accepts it again", (3, 3, [ACCEPT]))
    two.fetch("accepts and finds nothing", (1, 1, [ACCEPT]))


@scenario(ShareAcknowledgeRequest)
def bad_acknowledgements(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    group = talk.name("g")
    begin_earliest(talk, group)
    one = Member(talk, group, "jobs", version=version)
    one.join()
    one.open()
    talk.fill("jobs", batch(b"0", b"1", b"2", b"3"))
    one.acquire("acquires all")
    for label, acks in (
        ("reversed", [(1, 0, [ACCEPT])]),
        ("descending", [(1, 1, [ACCEPT]), (0, 0, [ACCEPT])]),
        ("overlapping", [(0, 1, [ACCEPT]), (1, 1, [ACCEPT])]),
        ("too many types", [(0, 1, [ACCEPT] * 3)]),
        ("too few types", [(0, 2, [ACCEPT] * 2)]),
        ("no type", [(0, 1, [])]),
        ("an unknown type", [(0, 0, [9])]),
        ("a negative type", [(0, 0, [-1])]),
        ("a renewal that is not marked", [(0, 0, [RENEW])]),
        ("beyond what was acquired", [(0, 9, [ACCEPT])]),
        ("what does not exist", [(8, 9, [ACCEPT])]),
        ("all at last", [(0, 3, [ACCEPT])]),
    ):
        one.acknowledge(label, *acks)


@scenario(ShareFetchRequest)
def share_sessions(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    group = talk.name("g")
    begin_earliest(talk, group)
    one = Member(talk, group, "jobs", version=version)
    one.join()
    one.fetch("without a session", share_session_epoch=5)
    one.acknowledge("without a session", (0, 0, [ACCEPT]), share_session_epoch=5)
    one.fetch("acknowledges at first", (0, 0, [ACCEPT]), share_session_epoch=0)
    one.open()
    one.fetch("has an epoch of the future", share_session_epoch=9)
    one.acknowledge("begins by acknowledging", (0, 0, [ACCEPT]), share_session_epoch=0)
    one.fetch("without a group", group_id=None)
    one.fetch("without a member", member_id=None)
    one.fetch("with an empty id", member_id="")
    one.fetch("with a long id", member_id="x" * 37)
    one.fetch("ends the session", share_session_epoch=-1, topics=[])
    one.fetch("after its end", share_session_epoch=3)


@scenario(ShareFetchRequest, 2)
def renewing_locks(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    group = talk.name("g")
    begin_earliest(talk, group)
    one = Member(talk, group, "jobs", version=version)
    one.join()
    one.open()
    talk.fill("jobs", batch(b"0", b"1"))
    one.acquire("acquires all")
    one.fetch("renews with limits", (0, 0, [RENEW]), is_renew_ack=True)
    none: dict[str, Any] = {"max_records": 0, "max_bytes": 0, "min_bytes": 0, "max_wait_ms": 0}
    one.fetch("renews", (0, 0, [RENEW]), is_renew_ack=True, **none)
    one.acknowledge("renews and accepts", (0, 1, [RENEW, ACCEPT]), is_renew_ack=True)
    one.acknowledge("accepts", (0, 0, [ACCEPT]))
    one.fetch("has an unknown mode", share_acquire_mode=2)


@scenario(ShareFetchRequest)
def deliveries_up_to_the_limit(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    group = talk.name("g")
    begin_earliest(talk, group, **{"share.delivery.count.limit": "2"})
    one = Member(talk, group, "jobs", version=version)
    one.join()
    one.open()
    talk.fill("jobs", batch(b"poison"))
    one.acquire("first")
    one.acknowledge("releases", (0, 0, [RELEASE]))
    one.acquire("second")
    one.acknowledge("releases again", (0, 0, [RELEASE]))
    one.fetch("finds nothing")
    one.fetch("ends the session", share_session_epoch=-1, topics=[])


@scenario(ShareFetchRequest)
def fetches_of_members_that_have_nothing_assigned(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    other = talk.topic("other")
    group = talk.name("g")
    begin_earliest(talk, group)
    stranger = Member(talk, group, "jobs", "stranger", version=version)
    stranger.fetch("of a group that does not exist", share_session_epoch=0, max_wait_ms=READ_MS)
    one, two = Member(talk, group, "jobs", version=version), Member(talk, group, "jobs", "b", version=version)
    one.join()
    two.beat("joins for another topic", subscribed_topic_names=[other])
    one.open()
    talk.fill("jobs", batch(b"0", b"1"))
    stranger.open_again()
    stranger.acquire("who is no member")
    two.open_again()
    talk.fill("jobs", batch(b"2"))
    two.acquire("what is not assigned to it")


@scenario(ShareFetchRequest)
def records_before_the_first_fetch(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    one = Member(talk, talk.name("g"), "jobs", version=version)
    talk.fill("jobs", batch(b"0"))
    one.join()
    talk.fill("jobs", batch(b"1"))
    one.open()
    one.fetch("begins again", share_session_epoch=0, max_wait_ms=READ_MS)
    talk.fill("jobs", batch(b"2"))
    one.acquire("acquires the record after its first fetch")
    one.fetch("finds nothing else")


@scenario(ShareFetchRequest)
def the_name_of_a_deleted_group(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    group = talk.name("g")
    begin_earliest(talk, group)
    one, two = Member(talk, group, "jobs", version=version), Member(talk, group, "jobs", "b", version=version)
    one.join()
    one.open()
    talk.fill("jobs", batch(b"0", b"1", b"2", b"3"))
    one.acquire("acquires all")
    one.acknowledge("accepts two", (0, 1, [ACCEPT]))
    one.fetch("ends the session", share_session_epoch=-1, topics=[])
    one.beat("leaves", member_epoch=-1)
    talk.ask(DeleteGroupsRequest(groups_names=[group]), 2, "delete it")
    describe(talk, 1, "deleted")
    two.join()
    two.open_again()
    two.acquire("acquires in a group of the same name")


@scenario(ShareFetchRequest)
def a_limit_of_deliveries_is_lowered(talk: Talk, version: int) -> None:
    talk.topic("jobs")
    group = talk.name("g")
    begin_earliest(talk, group, **{"share.delivery.count.limit": "5"})
    one = Member(talk, group, "jobs", version=version)
    one.join()
    one.open()
    talk.fill("jobs", batch(b"0", b"1"))
    for count in ("first", "second", "third"):
        one.acquire(f"{count} delivery")
        one.acknowledge(f"releases after the {count}", (0, 1, [RELEASE]))
    begin_earliest(talk, group, **{"share.delivery.count.limit": "2"})
    one.fetch("above the limit", max_wait_ms=500)
    talk.fill("jobs", batch(b"2"))
    one.acquire("acquires the next record")


# --- Offsets -----------------------------------------------------------------------------------------------------


def describe(talk: Talk, version: int, label: str, *topics: str) -> None:
    """Ask for offsets of the group `g`: of these topics, or all."""
    asked = [DescribeShareGroupOffsetsRequestTopic(topic_name=each, partitions=[0]) for each in topics]
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=talk.name("g"), topics=asked or None)
    talk.ask(DescribeShareGroupOffsetsRequest(groups=[wanted]), version, label)


def alter(talk: Talk, version: int, label: str, topic: str, number: int, partition: int = 0) -> None:
    """Let the group `g` begin with record `number`."""
    offset = talk.offset("jobs", number)
    wanted = AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
    topics = [AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[wanted])]
    talk.ask(AlterShareGroupOffsetsRequest(group_id=talk.name("g"), topics=topics), version, label)


def delete(talk: Talk, version: int, label: str, topic: str) -> None:
    """Delete the offsets of a topic of the group `g`."""
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
    talk.ask(DeleteShareGroupOffsetsRequest(group_id=talk.name("g"), topics=topics), version, label)


@scenario(DescribeShareGroupOffsetsRequest)
def offsets_of_share_groups(talk: Talk, version: int) -> None:
    name = talk.topic("jobs")
    talk.fill("jobs", batch(b"0", b"1", b"2", b"3"))
    describe(talk, version, "before")
    describe(talk, version, "a topic, before", name)
    alter(talk, 0, "alter", name, 1)
    describe(talk, version, "altered")
    describe(talk, version, "a missing topic", talk.name("missing"))
    delete(talk, 0, "delete", name)
    describe(talk, version, "deleted")


@scenario(AlterShareGroupOffsetsRequest)
def altering_offsets_of_share_groups(talk: Talk, version: int) -> None:
    name = talk.topic("jobs")
    talk.fill("jobs", batch(b"0", b"1", b"2", b"3"))
    alter(talk, version, "alter", name, 1)
    alter(talk, version, "alter a missing topic", talk.name("missing"), 1)
    alter(talk, version, "alter a missing partition", name, 1, partition=7)
    one = Member(talk, talk.name("g"), "jobs")
    one.join()
    alter(talk, version, "alter with a member", name, 0)
    one.beat("leaves", member_epoch=-1)


@scenario(DeleteShareGroupOffsetsRequest)
def deleting_offsets_of_share_groups(talk: Talk, version: int) -> None:
    name = talk.topic("jobs")
    talk.fill("jobs", batch(b"0", b"1", b"2", b"3"))
    delete(talk, version, "delete before", name)
    alter(talk, 0, "alter", name, 1)
    one = Member(talk, talk.name("g"), "jobs")
    one.join()
    delete(talk, version, "delete with a member", name)
    one.beat("leaves", member_epoch=-1)
    delete(talk, version, "delete a missing topic", talk.name("missing"))
    delete(talk, version, "delete", name)
