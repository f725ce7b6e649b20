"""Sessions of clients: groups that rebalance, members that crash, come again and are fenced; producers; time."""

from __future__ import annotations

import time

from conformance.clock import HOUR_MS, T0
from conformance.scenario import scenario
from conformance.scenarios.asking import fetch
from conformance.scenarios.cluster import producer_id
from conformance.scenarios.members import Member, committed, form, heartbeat, join, join_together, share, sync
from conformance.scenarios.offsets import list_offsets
from conformance.scenarios.produce import produce
from conformance.scenarios.records import batch
from conformance.talk import Talk
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.record_batch import decode_records, parse_batches


def until_rebalancing(talk: Talk, member: Member) -> None:
    """Return once a member's heartbeat gets an error, because others want to join or were lost."""

    def has_error() -> bool:
        request = heartbeat(member.group, member.member_id, member.generation, instance=member.instance)
        return bool(talk.tell(request).error_code)

    talk.wait_until(has_error, f"{member.who} is in a rebalance")


def describe(talk: Talk, group: str, label: str) -> None:
    """Describe a group."""
    talk.ask(DescribeGroupsRequest(groups=[group]), label=label)


@scenario()
def two_members_share_a_group(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    one = Member(talk, "one", group)
    form(one)
    describe(talk, group, "one alone")
    two = Member(talk, "two", group)
    two.ask_to_join()
    until_rebalancing(talk, one)
    one.heartbeat("is told")
    describe(talk, group, "while they join")
    one.commit(talk.topic("orders"), 3, "commits while they join")
    one.ask_to_join()
    one.joined("joins again")
    two.joined()
    one.commit(talk.name("orders"), 4, "commits before it has its assignment")
    share(one, two)
    for member in (one, two):
        member.heartbeat("is alive at last")
    describe(talk, group, "both")


@scenario()
def a_member_leaves(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    one, two = Member(talk, "one", group), Member(talk, "two", group)
    form(one, two)
    stays, goes = (one, two) if one.leads else (two, one)
    stays.who, goes.who = "who stays", "who goes"
    goes.leave()
    stays.heartbeat("is told")
    stays.ask_to_join()
    stays.joined("joins again")
    share(stays)
    goes.heartbeat("that has left")
    goes.commit(talk.topic("orders"), 3, "that has left commits")
    describe(talk, group, "one is left")


@scenario()
def a_member_crashes(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    stays = Member(talk, "who stays", group, session_timeout_ms=30_000, join_version=3)
    form(stays)
    crashes = Member(talk, "who crashes", group, session_timeout_ms=1000, join_version=3)
    crashes.ask_to_join()
    until_rebalancing(talk, stays)
    stays.ask_to_join()
    stays.joined("joins again")
    crashes.joined()
    share(stays, crashes)
    crashes.client.close()
    began = time.monotonic()
    until_rebalancing(talk, stays)
    talk.note("whether its session was waited for", time.monotonic() - began > 0.5)
    stays.ask_to_join()
    stays.joined("joins a third time")
    share(stays)
    describe(talk, group, "one is left")
    late = heartbeat(group, crashes.member_id, crashes.generation)
    talk.ask(late, label="who crashed is alive after all")


@scenario()
def leader_crashes_before_its_sync(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    one = Member(talk, "one", group, session_timeout_ms=1000, join_version=3)
    two = Member(talk, "two", group, session_timeout_ms=1000, join_version=3)
    join_together(one, two)
    leader, follower = (one, two) if one.leads else (two, one)
    follower.who = "the follower"
    leader.client.close()
    describe(talk, group, "waiting for the leader")
    follower.ask_to_sync()
    follower.synced("is told")


@scenario()
def static_member_restarts(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    one, two = Member(talk, "one", group, instance="a"), Member(talk, "two", group, instance="b")
    form(one, two)
    leader, other = (one, two) if one.leads else (two, one)
    leader.who, other.who = "the leader", "the other"
    again = Member(talk, "the other, again", group, instance=other.instance)
    again.ask_to_join()
    again.joined()
    again.ask_to_sync()
    again.synced()
    leader.heartbeat("is not disturbed")
    other.heartbeat("is fenced")
    other.commit(talk.topic("orders"), 5, "that is fenced commits")
    again.commit(talk.name("orders"), 6)
    talk.ask(sync(group, other.member_id, other.generation, instance=other.instance), label="the other syncs")


@scenario()
def protocols_are_voted_for(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    one = Member(talk, "one", group, protocols=("cooperative-sticky", "range", "roundrobin"))
    two = Member(talk, "two", group, protocols=("range", "roundrobin"))
    three = Member(talk, "three", group, protocols=("roundrobin", "range"))
    form(one, two, three)
    talk.ask(join(group, protocols=("sticky",)), 3, "one who knows none of them")


@scenario()
def member_that_does_not_rejoin(talk: Talk, _version: int) -> None:
    group = talk.name("g")
    one = Member(talk, "one", group, join_version=3)
    one_join = join(group, session_timeout_ms=30_000, rebalance_timeout_ms=1000)
    answer = talk.ask(one_join, 3, "one joins", on=one.client)
    one.member_id, one.generation, one.leads = answer.member_id, answer.generation_id, True
    share(one)
    two = Member(talk, "two", group, join_version=3, rebalance_timeout_ms=1000)
    began = time.monotonic()
    two.ask_to_join()
    two.joined("joins without it")
    talk.note("whether it was waited for", time.monotonic() - began > 0.8)
    one.heartbeat("comes too late")
    share(two)


@scenario()
def committed_offsets_survive_the_members(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    talk.fill("orders", batch(b"0", b"1", b"2"))
    one = Member(talk, "one", talk.name("g"))
    form(one)
    one.commit(topic, talk.offset("orders", 2))
    one.leave()
    two = Member(talk, "two", talk.name("g"))
    form(two)
    talk.ask(committed(8, two.group, topic), 8, "what one has committed")
    talk.ask(fetch(talk, "orders", 2), label="and what follows")


@scenario()
def idempotent_producers_by_their_own_ids(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    given = talk.ask(producer_id(None)).producer_id
    talk.ask(produce(topic, batch(b"0", producer=(given, 0, 0))), label="the first")
    talk.ask(produce(topic, batch(b"0", producer=(given, 0, 0))), label="the first again")
    talk.ask(produce(topic, batch(b"1", b"2", producer=(given, 0, 1))), label="the second")
    talk.ask(produce(topic, batch(b"5", producer=(given, 0, 5))), label="a gap")
    talk.ask(producer_id(None, producer_id=given, epoch=0), label="another epoch, or another id")
    talk.ask(fetch(talk, "orders", 0))


@scenario()
def consumer_resumes_from_a_time(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    for number in range(10):
        talk.fill("orders", batch(b"%d" % number, timestamps=(T0 + 1000 * number,)))
    found = talk.ask(list_offsets(topic, T0 + 4500), label="the time")
    offset = found.topics[0].partitions[0].offset
    request = fetch(talk, "orders", 0)
    request.topics[0].partitions[0].fetch_offset = offset
    talk.ask(request, label="from there")


@scenario()
def retention_by_time(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders", retention_ms=str(HOUR_MS // 2), segment_ms="1000")
    talk.fill("orders", batch(b"old"), batch(b"old, too"))

    def trimmed() -> bool:
        answer = talk.tell(list_offsets(topic, -2))
        return bool(answer.topics[0].partitions[0].offset == talk.offset("orders", 2))

    talk.wait_until(trimmed, "old records go")
    talk.ask(list_offsets(topic, -2), label="earliest")
    talk.ask(list_offsets(topic, -1), label="latest")
    talk.ask(list_offsets(topic, T0), label="by time")
    talk.ask(fetch(talk, "orders", 0), label="what is gone")
    now = int(time.time() * 1000)
    talk.fill("orders", batch(b"new", timestamps=(now,)))
    answer = talk.tell(fetch(talk, "orders", 2))
    partition = answer.responses[0].partitions[0]
    talk.note("what is new", ErrorCode(partition.error_code).name)
    talk.note("where it is", len(b"".join(partition.records)) > 0)


def everything(talk: Talk, topic: str) -> list[str]:
    """Return the numbers of all records of a topic's first partition, with as many fetches as necessary."""
    found: list[str] = []
    offset = talk.offset(topic, 0)
    end = offset + 1
    while offset < end:
        request = fetch(talk, topic, 0)
        request.topics[0].partitions[0].fetch_offset = offset
        partition = talk.tell(request).responses[0].partitions[0]
        end = partition.high_watermark
        for each in parse_batches(b"".join(partition.records or ())):
            for delta, _timestamp, key, value, _headers in decode_records(each):
                if each.base_offset + delta >= offset:
                    number = talk.offsets[talk.name(topic), 0].index(each.base_offset + delta)
                    found.append(f"{number}: {key!r} {value!r}")
            offset = max(offset, each.last_offset + 1)
    return found


@scenario()
def compaction(talk: Talk, _version: int) -> None:
    # Kafka does not compact the active segment; a record of a later time rolls a new one.
    topic = talk.topic(
        "orders", cleanup_policy="compact", segment_ms="1000", min_cleanable_dirty_ratio="0.01"
    )
    written = (
        (b"a", b"1"),
        (b"b", b"1"),
        (b"c", b"1"),
        (b"a", b"2"),
        (b"b", None),
        (b"d", b"1"),
        (b"e", b"1"),
    )
    for number, (key, value) in enumerate(written):
        talk.fill("orders", batch(value, keys=(key,), timestamps=(T0 + 2000 * number,)))
    talk.wait_until(lambda: len(everything(talk, "orders")) == 5, "all but the last records of each key go")
    talk.note("what is left", everything(talk, "orders"))
    talk.ask(list_offsets(topic, -2), label="earliest")
    talk.ask(list_offsets(topic, -1), label="latest")
    talk.ask(list_offsets(topic, T0 + 1), label="by time")
    talk.ask(produce(topic, batch(b"x")), label="a record without key")
    talk.ask(
        produce(topic, batch(b"x", b"y", keys=(b"k", None))), label="two records, of which one has no key"
    )
