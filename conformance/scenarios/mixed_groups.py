"""Groups that classic members and members of the consumer protocol (KIP-848) share, and their conversions."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field

from conformance.scenario import scenario
from conformance.scenarios.consumer_groups import NEXT_TARGET_S, Consumer, describe
from conformance.scenarios.members import commit, heartbeat, join, leave, sync
from conformance.talk import Connection, Talk
from korvet.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from korvet.protocol.messages.describe_groups import DescribeGroupsRequest
from korvet.protocol.messages.list_groups import ListGroupsRequest

REBALANCE_MS = 30_000


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _partitions(topics: Mapping[str, Sequence[int]]) -> bytes:
    return struct.pack(">i", len(topics)) + b"".join(
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in topics.items()
    )


def subscription(*topics: str, owned: Mapping[str, Sequence[int]] | None = None, version: int = 1) -> bytes:
    """Return a consumer's metadata in the classic protocol."""
    names = struct.pack(">hi", version, len(topics)) + b"".join(map(_text, topics))
    return names + b"\xff\xff\xff\xff" + (_partitions(owned or {}) if version else b"")


def assignment(topics: Mapping[str, Sequence[int]], user_data: bytes | None = None) -> bytes:
    """Return a consumer's assignment in the classic protocol."""
    data = b"\xff\xff\xff\xff" if user_data is None else struct.pack(">i", len(user_data)) + user_data
    return b"\0\1" + _partitions(topics) + data


def assigned(answer: Any) -> dict[str, list[int]]:
    """Return the partitions in the answer to a sync."""
    data = bytes(answer.assignment)
    if not data:
        return {}
    _, count = struct.unpack_from(">hi", data)
    position, topics = 6, {}
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, position)
        name = data[position + 2 : position + 2 + size].decode()
        (partitions,) = struct.unpack_from(">i", data, position + 2 + size)
        position += 6 + size
        topics[name] = sorted(struct.unpack_from(f">{partitions}i", data, position))
        position += 4 * partitions
    return topics


@define
class Classic:
    """A client of the classic protocol; its steps have its name."""

    talk: Talk
    who: str
    group: str
    topics: tuple[str, ...]
    instance: str | None = None
    version: int = 9
    protocols: tuple[str, ...] = ("range",)
    session_timeout_ms: int = 30_000
    member_id: str = ""
    generation: int = -1
    owned: dict[str, list[int]] = field(factory=dict)
    client: Connection = field(init=False)
    _asked: Any = None

    def __attrs_post_init__(self) -> None:
        self.client = self.talk.client(f"client-{self.who}")

    def request(self, **fields: Any) -> Any:
        """Return the request to join."""
        given: dict[str, Any] = {
            "instance": self.instance,
            "protocols": self.protocols,
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": REBALANCE_MS,
            "metadata": subscription(*self.topics, owned=self.owned),
        }
        return join(self.group, self.member_id, **(given | fields))

    def ask_to_join(self, **fields: Any) -> None:
        if not self.member_id and self.instance is None:
            knocked = self.talk.ask(
                self.request(**fields), self.version, f"{self.who} knocks", on=self.client
            )
            self.member_id = knocked.member_id
        self._asked = self.request(**fields)
        self.talk.send(self._asked, self.version, on=self.client)

    def joined(self, label: str = "joins") -> Any:
        answer = self.talk.receive(self._asked, self.version, f"{self.who} {label}", on=self.client)
        if not answer.error_code:
            self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self, label: str = "joins", **fields: Any) -> Any:
        self.ask_to_join(**fields)
        return self.joined(label)

    def sync(self, label: str = "syncs", assignments: dict[str, bytes] | None = None, **fields: Any) -> Any:
        given: dict[str, Any] = {"instance": self.instance, "protocol_name": self.protocols[0]}
        request = sync(self.group, self.member_id, self.generation, assignments, **(given | fields))
        answer = self.talk.ask(request, 5, f"{self.who} {label}", on=self.client)
        if not answer.error_code:
            self.owned = assigned(answer)
        return answer

    def join_and_sync(self, label: str) -> None:
        self.join(f"joins {label}")
        self.sync(f"syncs {label}")

    def beat(self, label: str = "is alive", **fields: Any) -> Any:
        given: dict[str, Any] = {"generation": self.generation, "instance": self.instance}
        request = heartbeat(self.group, self.member_id, **(given | fields))
        return self.talk.ask(request, 4, f"{self.who} {label}", on=self.client)

    def leave(self, label: str = "leaves") -> Any:
        request = leave(5, self.group, self.member_id, instance=self.instance)
        return self.talk.ask(request, 5, f"{self.who} {label}", on=self.client)

    def commit(self, topic: str, offset: int, label: str, generation: int | None = None) -> Any:
        request = commit(
            self.group,
            topic,
            offset,
            member_id=self.member_id,
            generation=self.generation if generation is None else generation,
            instance=self.instance,
        )
        return self.talk.ask(request, 8, f"{self.who} {label}", on=self.client)


def form(*members: Classic, partitions: int, user_data: bytes | None = None) -> None:
    """Let the members form a classic group; each gets contiguous partitions."""
    for number, member in enumerate(members, 1):
        member.ask_to_join()
        request = DescribeGroupsRequest(groups=[member.group])

        def are_members(member: Classic = member, number: int = number, request: Any = request) -> bool:
            return len(member.talk.tell(request, 5).groups[0].members) >= number

        member.talk.wait_until(are_members, f"{member.who} is seen in its group")
    for member in members:
        member.joined()
    size = partitions // len(members)
    shares = {
        member.member_id: assignment(
            {member.topics[0]: range(number * size, (number + 1) * size)}, user_data=user_data
        )
        for number, member in enumerate(members)
    }
    for number, member in enumerate(members):
        member.sync(assignments=shares if not number else None)


def next_target() -> None:
    """Let the interval between two targets pass."""
    time.sleep(NEXT_TARGET_S)


def look(talk: Talk, group: str, label: str) -> None:
    """Describe the group in each API."""
    describe(talk, group, f"{label}: as a consumer group")
    talk.ask(DescribeGroupsRequest(groups=[group]), 6, f"{label}: as a classic group")
    listed = talk.tell(ListGroupsRequest(states_filter=[], types_filter=[]), 5).groups
    talk.note(
        f"{label}: listed",
        [
            (each.group_type, each.group_state, each.protocol_type)
            for each in listed
            if each.group_id == group
        ],
    )


@scenario()
def upgrade_and_downgrade(talk: Talk, _version: int) -> None:
    topic, group = talk.topic("orders", partitions=6), talk.name("g")
    one, two = Classic(talk, "one", group, (topic,)), Classic(talk, "two", group, (topic,))
    form(one, two, partitions=6)
    one.commit(topic, 5, "commits")
    new = Consumer(talk, group, "new")
    new.join(topic)
    look(talk, group, "after the upgrade")
    one.commit(topic, 6, "commits in the mixed group")
    one.beat()
    two.beat()
    two.sync("syncs before it joins again")
    one.join_and_sync("again")
    one.beat("after its sync")
    two.join_and_sync("again")
    new.send("heartbeats")
    look(talk, group, "with partitions to be revoked")
    one.beat("before it has revoked")
    two.beat("before it has revoked")
    one.commit(topic, 7, "commits with the previous generation", one.generation - 1)
    one.commit(topic, 7, "commits with a generation of the future", one.generation + 1)
    one.join_and_sync("when it has revoked")
    two.join_and_sync("when it has revoked")
    new.send("receives")
    new.acknowledge()
    one.beat("in the end")
    two.beat("in the end")
    one.beat("with another generation", generation=77)
    two.sync("syncs with another generation", protocol_name="other")
    look(talk, group, "settled")
    two.leave("leaves the mixed group")  # either of two members might lead the classic group
    new.send("leaves", member_epoch=-1)
    look(talk, group, "after the downgrade")
    one.beat("after the downgrade")
    one.join("joins after the downgrade")
    one.sync("syncs after the downgrade", {one.member_id: assignment({topic: range(6)})})
    one.commit(topic, 8, "commits after the downgrade")
    look(talk, group, "at the end")


@scenario()
def classic_members_join_a_consumer_group(talk: Talk, _version: int) -> None:
    topic, group = talk.topic("orders", partitions=2), talk.name("g")
    new = Consumer(talk, group, "new")
    new.join(topic)
    one = Classic(talk, "one", group, (topic,))
    one.join("joins with another type of protocol", protocol_type="connect")
    one.join("joins without protocols", protocols=())
    one.join("joins with malformed metadata", metadata=b"\0")
    one.join_and_sync("at first")
    one.beat("before the next target")
    next_target()
    new.send("heartbeats")
    one.beat("after the next target")
    one.join_and_sync("again")
    one.join("joins with the same subscription")
    one.beat("without a sync")
    new.send("reports", topic_partitions=[])
    one.beat("when a partition is free")
    one.join_and_sync("for the free partition")
    look(talk, group, "mixed")
    stranger = Classic(talk, "stranger", group, (topic,), member_id="of nobody")
    stranger.generation = 3
    stranger.beat()
    stranger.sync()
    stranger.leave()
    Classic(talk, "new", group, (topic,), member_id="new", generation=new.epoch).beat("of the classic kind")
    other = Classic(talk, "other", group, (topic,), protocols=("sticky",))
    other.join("joins with another assignor")
    one.leave()
    one.beat("after it has left")
    look(talk, group, "without classic members")
    new.send("leaves", member_epoch=-1)
    look(talk, group, "without members")


@scenario()
def static_members_change_their_protocol(talk: Talk, _version: int) -> None:
    topic, group = talk.topic("orders", partitions=4), talk.name("g")
    one = Classic(talk, "one", group, (topic,), instance="1")
    two = Classic(talk, "two", group, (topic,), instance="2")
    form(one, two, partitions=4)
    new = Consumer(talk, group, "new", instance="1")
    new.join(topic)
    look(talk, group, "one member is replaced")
    one.beat("after it was replaced")
    two.beat()
    two.join_and_sync("again")
    new.acknowledge()
    new.send("heartbeats")
    two.beat("when all is settled")
    back = Classic(talk, "back", group, (topic,), instance="1")
    back.owned = {}
    back.join("takes the place of the last consumer")
    look(talk, group, "after the downgrade")
    back.sync()
    new.send("heartbeats after it was replaced")
    back.beat()
    two.beat("after the downgrade")


@scenario()
def classic_groups_that_cannot_be_upgraded(talk: Talk, _version: int) -> None:
    topic, group = talk.topic("orders", partitions=2), talk.name("g")
    one = Classic(talk, "one", group, (topic,))
    form(one, partitions=2, user_data=b"of my own assignor")
    Consumer(talk, group, "new").join(topic)
    look(talk, group, "with user data")
    connect = talk.name("connect")
    worker = Classic(talk, "worker", connect, (topic,))
    worker.ask_to_join(protocol_type="connect")
    worker.joined()
    Consumer(talk, connect, "new").join(topic)
    Consumer(talk, connect, "new").send("with an epoch", member_epoch=3)


@scenario()
def upgrade_amid_a_rebalance(talk: Talk, _version: int) -> None:
    topic, group = talk.topic("orders", partitions=6), talk.name("g")
    one, two = Classic(talk, "one", group, (topic,)), Classic(talk, "two", group, (topic,))
    form(one, two, partitions=6)
    one.ask_to_join()
    talk.wait_until(
        lambda: (
            talk.tell(DescribeGroupsRequest(groups=[group]), 5).groups[0].group_state == "PreparingRebalance"
        ),
        "the group rebalances",
    )
    new = Consumer(talk, group, "new")
    new.join(topic)
    one.joined("whose join was waiting")
    one.join_and_sync("again")
    two.beat()
    look(talk, group, "in the end")


@scenario(ConsumerGroupHeartbeatRequest, 1)
def the_last_member_leaves(talk: Talk, version: int) -> None:
    topic, group = talk.topic("orders", partitions=2), talk.name("g")
    member = Consumer(talk, group, "a", version)
    member.join(topic)
    member.send("leaves", member_epoch=-1)
    describe(talk, group, "empty")
    one = Classic(talk, "one", group, (topic,))
    one.join()  # the type of the group right after the first request depends on when Kafka commits its log
    one.sync(assignments={one.member_id: assignment({topic: [0, 1]})})
    look(talk, group, "a classic group")
