"""Committed offsets of groups: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from conformance.scenario import scenario
from conformance.scenarios.groups import joined
from conformance.scenarios.members import (
    FETCH_GROUPS,
    INSTANCE_COMMITS,
    LEAVE_TOGETHER,
    commit,
    committed,
    leave,
)
from conformance.talk import Talk
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestTopic
from korvet.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup


@scenario(OffsetCommitRequest)
def commits_without_a_member(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    group = talk.name("g")
    for label, request in {
        "one": commit(group, topic, 5, metadata="here", epoch=3),
        "backwards": commit(group, topic, 3),
        "metadata that is null": commit(group, topic, 4, metadata=None),
        "metadata of 64 bytes": commit(group, topic, 5, metadata="x" * 64),
        "metadata of 65 bytes": commit(group, topic, 6, metadata="x" * 65),
        "metadata of 33 letters of two bytes": commit(group, topic, 7, metadata="ä" * 33),
        "offset -1": commit(group, topic, -1),
        "offset -2": commit(group, topic, -2),
        "partition 1": commit(group, topic, 9, partition=1),
        "an unknown partition": commit(group, topic, 5, partition=2),
        "partition -1": commit(group, topic, 5, partition=-1),
        "an unknown topic": commit(group, talk.name("nowhere"), 5),
        "a topic of no name": commit(group, "", 5),
        "a member id": commit(group, topic, 5, member_id="nobody"),
        "a generation": commit(group, topic, 5, generation=0),
        "a member id and a generation": commit(group, topic, 5, member_id="nobody", generation=3),
        "a group of no name": commit("", topic, 5),
        "another group, with a generation": commit(talk.name("h"), topic, 5, generation=1),
    }.items():
        talk.ask(request, version, label)
        talk.ask(committed(8, group), 8, f"{label}, and then")
    talk.ask(OffsetCommitRequest(group_id=group, topics=[]), version, "nothing")
    no_partitions = [OffsetCommitRequestTopic(name=topic, partitions=[])]
    talk.ask(OffsetCommitRequest(group_id=group, topics=no_partitions), version, "no partitions")
    both = commit(group, topic, 1).topics + commit(group, topic, 2).topics
    talk.ask(OffsetCommitRequest(group_id=group, topics=both), version, "a topic named twice")
    talk.ask(committed(8, group), 8, "a topic named twice, and then")


@scenario(OffsetCommitRequest)
def commits_of_members(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    member = joined(talk, "g")
    group, who, generation = member.group, member.member_id, member.generation
    talk.ask(commit(group, topic, 5, member_id=who, generation=generation), version, "good")
    for wrong in (generation + 1, generation - 1, -1):
        talk.ask(commit(group, topic, 6, member_id=who, generation=wrong), version, f"generation {wrong}")
    talk.ask(commit(group, topic, 6, member_id="nobody", generation=generation), version, "another member")
    talk.ask(commit(group, topic, 6), version, "no member at all")
    if version >= INSTANCE_COMMITS:
        request = commit(group, topic, 6, member_id=who, generation=generation, instance="one")
        talk.ask(request, version, "an instance that there is not")
    talk.ask(committed(8, group), 8, "in the end")
    talk.tell(leave(LEAVE_TOGETHER, group, who))
    talk.ask(commit(group, topic, 7, member_id=who, generation=generation), version, "after it has left")
    talk.ask(commit(group, topic, 8), version, "no member, of an empty group")
    talk.ask(committed(8, group), 8, "at last")


@scenario(OffsetFetchRequest)
def committed_offsets(talk: Talk, version: int) -> None:
    topic, other = talk.topic("orders", partitions=2), talk.topic("other")
    group = talk.name("g")
    talk.tell(commit(group, topic, 5, metadata="here", epoch=0))
    talk.tell(commit(group, other, 6, metadata=None))
    talk.ask(committed(version, group, topic, partitions=(0, 1, 7)), version, "a topic")
    talk.ask(committed(version, group, topic, other), version, "two topics")
    talk.ask(committed(version, group), version, "all, or none")
    talk.ask(committed(version, group, talk.name("nowhere")), version, "an unknown topic")
    talk.ask(committed(version, talk.name("nobody"), topic), version, "an unknown group")
    talk.ask(committed(version, talk.name("nobody")), version, "all of an unknown group")
    talk.ask(committed(version, "", topic), version, "a group of no name")
    talk.ask(committed(version, group, topic, partitions=()), version, "no partitions")
    talk.ask(committed(version, group, topic, topic), version, "a topic named twice")
    talk.ask(committed(version, group, topic, partitions=(0, 0)), version, "a partition named twice")
    if version >= FETCH_GROUPS:
        groups = [
            OffsetFetchRequestGroup(group_id=name, topics=None) for name in (group, talk.name("nobody"))
        ]
        talk.ask(OffsetFetchRequest(groups=groups), version, "two groups")
        talk.ask(OffsetFetchRequest(groups=[]), version, "no groups")
        talk.ask(OffsetFetchRequest(groups=groups[:1] * 2), version, "a group named twice")
    if version >= 7:
        request = committed(version, group, topic)
        request.require_stable = True
        talk.ask(request, version, "only stable ones")
    if version >= 9:
        member = OffsetFetchRequestGroup(group_id=group, member_id="nobody", member_epoch=3, topics=None)
        talk.ask(OffsetFetchRequest(groups=[member]), version, "of a member that there is not")


@scenario()
def committed_offsets_of_a_deleted_topic(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    talk.tell(commit(talk.name("g"), topic, 5))
    talk.tell(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=10_000))
    talk.until_gone("orders")
    talk.wait_until(
        lambda: not talk.tell(committed(8, talk.name("g")), 8).groups[0].topics, "committed offsets go, too"
    )
    talk.ask(committed(8, talk.name("g")), 8, "deleted")
    talk.topic("orders")
    talk.ask(committed(8, talk.name("g"), topic), 8, "made anew")


def forget(group: str, *partitions: tuple[str, int]) -> OffsetDeleteRequest:
    """Return a request to delete committed offsets."""
    topics = [
        OffsetDeleteRequestTopic(name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index)])
        for name, index in partitions
    ]
    return OffsetDeleteRequest(group_id=group, topics=topics)


@scenario(OffsetDeleteRequest)
def deleting_offsets(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    group = talk.name("g")
    talk.tell(commit(group, topic, 5))
    talk.tell(commit(group, topic, 6, partition=1))
    talk.ask(forget(group, (topic, 0)), version, "one")
    talk.ask(committed(8, group), 8, "one is gone")
    talk.ask(forget(group, (topic, 0)), version, "one again")
    talk.ask(forget(group, (topic, 7)), version, "an unknown partition")
    talk.ask(forget(group, (talk.name("nowhere"), 0)), version, "an unknown topic")
    talk.ask(forget(talk.name("nobody"), (topic, 0)), version, "an unknown group")
    talk.ask(forget("", (topic, 0)), version, "a group of no name")
    talk.ask(forget(group), version, "none")
    talk.ask(forget(group, (topic, 0), (topic, 1)), version, "a topic named twice")
    talk.ask(committed(8, group), 8, "in the end")


@scenario(OffsetDeleteRequest)
def deleting_offsets_of_a_subscribed_group(talk: Talk, version: int) -> None:
    member = joined(talk, "g")
    talk.topic("orders")
    other = talk.topic("other")
    member.commit(other, 5)
    talk.ask(forget(member.group, (other, 0)), version, "a topic that it does not read")
    talk.ask(committed(8, member.group), 8, "what is left")
