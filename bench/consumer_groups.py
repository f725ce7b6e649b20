"""The cost of groups whose broker assigns, on Redis: `python -m bench.consumer_groups` prints a line per goal.

Members are connections of one process that send requests without a client library. Shares and times of the processor
are those of the broker; the wall clock tells little if the machine is busy.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from uuid import UUID

from bench.groups import check
from bench.processes import Broker, broker, cpu_s, temporary_folder
from korvet.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from korvet.protocol.requests import decode_response, encode_request
from tests.support.wire import Wire, create_topic

MEMBERS = PARTITIONS = 1_000
HEARTBEAT_INTERVAL_S = 5.0
STEADY_S = 15.0
MOVED = 1_000
ROUNDS_AT_MOST = 20


class Consumer(Wire):
    """A connection of a member, with its epoch and partitions."""

    def __init__(self, port: int, group_id: str, member_id: str, topic: str) -> None:
        super().__init__(port)
        self.group_id, self.member_id, self.topic = group_id, member_id, topic
        self.epoch, self.owned, self.assigned = 0, list[int](), list[int]()
        self.topic_id = UUID(int=0)

    def ask(self, *, is_full: bool = False) -> None:
        """Send a heartbeat: with all fields, or one of a member for which nothing has changed."""
        owned = [TopicPartitions(topic_id=self.topic_id, partitions=self.owned)] if self.owned else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout_ms=60_000 if is_full else -1,
            subscribed_topic_names=[self.topic] if is_full else None,
            topic_partitions=owned if is_full else None,
        )
        self.send(b"".join(encode_request(request, 1, 1, "bench")))

    def answer(self) -> None:
        """Receive the answer. Revoke partitions, or take those that were assigned."""
        answer = decode_response(ConsumerGroupHeartbeatResponse, 1, self.receive())[1]
        check(answer.error_code)
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return
        self.assigned = []
        for topic in answer.assignment.topic_partitions:
            self.topic_id, self.assigned = topic.topic_id, list(topic.partitions)
        kept = [number for number in self.owned if number in set(self.assigned)]
        self.owned = kept if len(kept) < len(self.owned) else self.assigned

    def beat(self) -> None:
        """Send a heartbeat with all fields, and take the answer."""
        self.ask(is_full=True)
        self.answer()


def settle(members: list[Consumer], partitions: int) -> int:
    """Send heartbeats until the members own all partitions. Return the number of rounds."""
    for number in range(1, ROUNDS_AT_MOST + 1):
        for member in members:
            member.beat()
        if sum(len(member.owned) for member in members) == partitions:
            return number
    message = "the group did not settle"
    raise RuntimeError(message)


def measure_steady(at: Broker) -> None:
    create_topic(at.port, "steady", partitions=PARTITIONS)
    with ExitStack() as stack:
        members = [
            stack.enter_context(Consumer(at.port, "g", f"m{number:04}", "steady"))
            for number in range(MEMBERS)
        ]
        began_s, used_s = time.perf_counter(), cpu_s(at.pid)
        for member in members:
            member.beat()
        print(
            f"{MEMBERS} members join: {time.perf_counter() - began_s:.1f} s"
            f" (processor {cpu_s(at.pid) - used_s:.1f} s)",
            flush=True,
        )
        time.sleep(1.1)  # more than the interval of two targets
        rounds = settle(members, PARTITIONS)
        print(f"rounds of heartbeats until each has one of {PARTITIONS} partitions: {rounds}", flush=True)
        print_steady(at, members)


def print_steady(at: Broker, members: list[Consumer]) -> None:
    used_s, began_s = cpu_s(at.pid), time.perf_counter()
    redis_s = at.cpu_s() - used_s
    beats = 0
    while (now_s := time.perf_counter()) < began_s + STEADY_S:
        due = int((now_s - began_s) / HEARTBEAT_INTERVAL_S * len(members))
        for number in range(beats, due):
            members[number % len(members)].ask()
        for number in range(beats, due):
            members[number % len(members)].answer()
        beats = due
        time.sleep(0.01)
    took_s, used_s = time.perf_counter() - began_s, cpu_s(at.pid) - used_s
    redis_s = at.cpu_s() - cpu_s(at.pid) - redis_s
    print(
        f"steady heartbeats of {len(members)} members, {beats / took_s:.0f} a second:"
        f" {100 * used_s / took_s:.1f} % of a core ({used_s / beats * 1e6:.0f} µs each),"
        f" Redis {100 * redis_s / took_s:.1f} %; goal < 6 %",
        flush=True,
    )


def measure_move(at: Broker) -> None:
    create_topic(at.port, "moved", partitions=2 * MOVED)
    with Consumer(at.port, "h", "a", "moved") as first, Consumer(at.port, "h", "b", "moved") as second:
        settle([first], 2 * MOVED)
        time.sleep(1.1)
        used_s = at.cpu_s()
        second.beat()
        rounds = settle([first, second], 2 * MOVED)
        print(
            f"a join that moves {len(second.owned)} partitions: {rounds} heartbeats of each member"
            f" (processor {at.cpu_s() - used_s:.2f} s); goal at most 3",
            flush=True,
        )


def main() -> None:
    """Run each measurement once, on a private server."""
    for measure in (measure_steady, measure_move):
        with (
            temporary_folder() as folder,
            broker(f"embedded:{folder / 'data'}", "max.connections=5000") as at,
        ):
            measure(at)


if __name__ == "__main__":
    main()
