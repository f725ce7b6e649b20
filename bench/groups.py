"""The cost of groups on Redis: `python -m bench.groups` prints one line per goal, in about a minute.

Members are connections of one process that send requests without a client library, so that the broker is the
bottleneck. Times are wall clock at the socket: responses are received but not decoded. Each line also has the processor
time of the broker and its private server, which is more reliable if the machine is busy.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from attrs import define, field

from bench.processes import Broker, broker, cpu_s, temporary_folder
from korvet.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from korvet.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from korvet.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from korvet.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from korvet.protocol.messages.metadata import MetadataRequest, MetadataResponse
from korvet.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from korvet.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from korvet.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from korvet.protocol.requests import decode_response, encode_request
from tests.support.wire import Wire, create_topic

MEMBERS = 100
PARTITIONS = 100
REBALANCES = 5
IDLE_GROUPS, IDLE_MEMBERS = 10, 100
HEARTBEAT_INTERVAL_S = 3.0
IDLE_S = 9.0
POSITIONS, POSITION_PARTITIONS = 100_000, 1_000
COMMITS = 300
TOPICS = 1_000
ROUNDS = 3

# Versions as of Kafka's 3.x clients.
SPOKEN: dict[type, tuple[int, type]] = {
    JoinGroupRequest: (9, JoinGroupResponse),
    SyncGroupRequest: (5, SyncGroupResponse),
    HeartbeatRequest: (4, HeartbeatResponse),
    OffsetCommitRequest: (8, OffsetCommitResponse),
    OffsetFetchRequest: (7, OffsetFetchResponse),
    MetadataRequest: (12, MetadataResponse),
    DescribeConfigsRequest: (4, DescribeConfigsResponse),
    DescribeTopicPartitionsRequest: (0, DescribeTopicPartitionsResponse),
}


class Member(Wire):
    """A connection of a group member, with its member id and generation."""

    def __init__(self, port: int, group_id: str) -> None:
        super().__init__(port)
        self.group_id = group_id
        self.member_id = ""
        self.generation_id = -1
        self.leads: Sequence[str] = ()

    def ask(self, request: object) -> None:
        version, _ = SPOKEN[type(request)]
        self.send(b"".join(encode_request(request, version, 1, "bench")))

    def answer(self, request_type: type) -> Any:
        version, response_type = SPOKEN[request_type]
        return decode_response(response_type, version, self.receive())[1]

    def ask_to_join(self) -> None:
        protocol = JoinGroupRequestProtocol(name="range", metadata=b"\0\3\0\0\0\1\0\1t\xff\xff\xff\xff")
        self.ask(
            JoinGroupRequest(
                group_id=self.group_id,
                session_timeout_ms=45_000,
                rebalance_timeout_ms=60_000,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            )
        )

    def introduce(self) -> None:
        """Get a member id."""
        self.ask_to_join()
        self.member_id = self.answer(JoinGroupRequest).member_id

    def take_generation(self) -> None:
        joined = self.answer(JoinGroupRequest)
        check(joined.error_code)
        self.generation_id = joined.generation_id
        self.leads = [member.member_id for member in joined.members]

    def ask_for_assignment(self) -> None:
        share = b"\0\3\0\0\0\1\0\1t\0\0\0\1%b\xff\xff\xff\xff"
        self.ask(
            SyncGroupRequest(
                group_id=self.group_id,
                generation_id=self.generation_id,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    SyncGroupRequestAssignment(
                        member_id=member_id, assignment=share % (number % PARTITIONS).to_bytes(4, "big")
                    )
                    for number, member_id in enumerate(self.leads)
                ],
            )
        )

    def ask_heartbeat(self) -> None:
        self.ask(
            HeartbeatRequest(
                group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id
            )
        )

    def is_called(self) -> bool:
        """Return True if the group has begun to rebalance."""
        self.ask_heartbeat()
        return bool(self.answer(HeartbeatRequest).error_code)


def check(error_code: int) -> None:
    if error_code:
        message = f"error {error_code}"
        raise RuntimeError(message)


@define
class Measured:
    """Wall time and processor time of repeated blocks."""

    broker: Broker
    wall_s: list[float] = field(factory=list)
    used_s: list[float] = field(factory=list)

    @contextmanager
    def once(self) -> Iterator[None]:
        used_s, began_s = self.broker.cpu_s(), time.perf_counter()
        yield
        self.wall_s.append(time.perf_counter() - began_s)
        self.used_s.append(self.broker.cpu_s() - used_s)

    def print_times(self, what: str, goal: str) -> None:
        walls = ", ".join(f"{wall_s:.3f}" for wall_s in self.wall_s)
        used_s = sum(self.used_s) / len(self.used_s)
        print(f"{what}: {walls} s (processor {used_s:.3f} s each); goal {goal}", flush=True)


def rebalance(members: Sequence[Member]) -> None:
    """Complete a rebalance in which all members have sent JoinGroup."""
    for member in members:
        member.take_generation()
        member.ask_for_assignment()
    for member in members:
        check(member.answer(SyncGroupRequest).error_code)


def measure_rebalances(at: Broker) -> None:
    measured = Measured(at)
    with ExitStack() as stack:
        members = [stack.enter_context(Member(at.port, "large")) for _ in range(MEMBERS)]
        for member in members:
            member.introduce()
        for member in members:
            member.ask_to_join()
        rebalance(members)
        for _ in range(REBALANCES):
            leader = next(member for member in members if member.leads)
            leader.ask_to_join()
            followers = [member for member in members if member is not leader]
            while not followers[0].is_called():
                pass
            for member in followers:
                member.ask_to_join()
            with measured.once():
                rebalance(members)
    measured.print_times(f"{MEMBERS} members over {PARTITIONS} partitions, from the last join on", "< 1 s")


def measure_heartbeats(at: Broker) -> None:
    with ExitStack() as stack:
        groups = [
            [stack.enter_context(Member(at.port, f"idle-{number}")) for _ in range(IDLE_MEMBERS)]
            for number in range(IDLE_GROUPS)
        ]
        members = [member for group in groups for member in group]
        for member in members:
            member.introduce()
        for member in members:
            member.ask_to_join()
        for group in groups:
            rebalance(group)
        used_s, began_s = cpu_s(at.pid), time.perf_counter()
        redis_s = at.cpu_s() - used_s
        beats = 0
        while (now_s := time.perf_counter()) < began_s + IDLE_S:
            # Spread over the interval, as heartbeats of independent members are.
            due = int((now_s - began_s) / HEARTBEAT_INTERVAL_S * len(members))
            for number in range(beats, due):
                members[number % len(members)].ask_heartbeat()
            for number in range(beats, due):
                check(members[number % len(members)].answer(HeartbeatRequest).error_code)
            beats = due
            time.sleep(0.01)
        took_s = time.perf_counter() - began_s
        used_s = cpu_s(at.pid) - used_s
        redis_s = at.cpu_s() - cpu_s(at.pid) - redis_s
    share, rest = 100 * used_s / took_s, 100 * redis_s / took_s
    print(
        f"heartbeats of {len(members)} members, {beats / took_s:.0f} a second:"
        f" {share:.1f} % of a core, Redis {rest:.1f} %; goal < 5 %",
        flush=True,
    )


def commit_request(
    group_id: str, topic: str, partitions: Sequence[int], offset: int = 1
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=number, committed_offset=offset, committed_metadata=""
                    )
                    for number in partitions
                ],
            )
        ],
    )


def measure_positions(at: Broker) -> None:
    topics = [f"p{number}" for number in range(POSITIONS // POSITION_PARTITIONS)]
    for topic in topics:
        create_topic(at.port, topic, partitions=POSITION_PARTITIONS)
    with Member(at.port, "many") as wire:
        measure_commits(at, wire, "few", topics[0], "one commit into an empty group")
        for topic in topics:
            wire.ask(commit_request("many", topic, range(POSITION_PARTITIONS)))
            for partition in wire.answer(OffsetCommitRequest).topics[0].partitions:
                check(partition.error_code)
        measured = Measured(at)
        for _ in range(ROUNDS):
            with measured.once():
                wire.ask(OffsetFetchRequest(group_id="many", topics=None))
                frame = wire.receive()
            found = decode_response(OffsetFetchResponse, 7, frame)[1]
            count = sum(len(topic.partitions) for topic in found.topics)
            if count != POSITIONS:
                message = f"{count} positions instead of {POSITIONS}"
                raise RuntimeError(message)
        measured.print_times(f"{POSITIONS} committed offsets fetched", "< 0.5 s")
        measure_commits(at, wire, "many", topics[0], f"one commit into a group of {POSITIONS}")


def measure_commits(at: Broker, wire: Member, group_id: str, topic: str, what: str) -> None:
    used_s, began_s = at.cpu_s(), time.perf_counter()
    for number in range(COMMITS):
        wire.ask(commit_request(group_id, topic, [number % 10], offset=number))
        check(wire.answer(OffsetCommitRequest).topics[0].partitions[0].error_code)
    took_s, used_s = time.perf_counter() - began_s, at.cpu_s() - used_s
    print(
        f"{what}: {took_s / COMMITS * 1000:.2f} ms (processor {used_s / COMMITS * 1000:.2f} ms); goal the same",
        flush=True,
    )


def measure_topics(at: Broker) -> None:
    names = [f"t{number:04}" for number in range(TOPICS)]
    for name in names:
        create_topic(at.port, name, partitions=1)
    asked = {
        "Metadata": MetadataRequest(topics=None),
        "DescribeTopicPartitions": DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names]
        ),
        "DescribeConfigs, all settings": DescribeConfigsRequest(
            resources=[
                DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
                for name in names
            ]
        ),
    }
    with Member(at.port, "") as wire:
        for what, request in asked.items():
            measured = Measured(at)
            for _ in range(ROUNDS):
                with measured.once():
                    wire.ask(request)
                    wire.receive()
            measured.print_times(f"{TOPICS} topics described, {what}", "< 0.5 s")


def main() -> None:
    """Run each measurement once, on a private server."""
    for measure in (measure_rebalances, measure_heartbeats, measure_topics, measure_positions):
        with temporary_folder() as folder:
            settings = ("group.initial.rebalance.delay.ms=6000", "max.connections=5000")
            with broker(f"embedded:{folder / 'data'}", *settings) as at:
                create_topic(at.port, "t", partitions=PARTITIONS)
                measure(at)


if __name__ == "__main__":
    main()
