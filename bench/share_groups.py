"""The cost of share groups: `python -m bench.share_groups` prints the rates and wake-ups for each storage.

Ten members of one group work on one partition. They are connections of one process that send requests without a client
library, and acknowledge with each fetch what the one before has acquired. Times of the processor are those of the
broker and its server; the wall clock has little meaning if the machine is busy.

Wake-ups of a member alternate with those of a plain Fetch in the same broker. Both suffer from other work of the
machine, so the difference is what share groups cost.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import quantiles
from uuid import UUID

from bench.groups import check
from bench.latency import delivered_s, one_record
from bench.processes import SYSTEMS, Broker, broker, cpu_s, storage_of, temporary_folder
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.share_fetch import (
    AcknowledgementBatch,
    AcquiredRecords,
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from korvet.protocol.record_batch import build_batch
from korvet.protocol.requests import decode_response, encode_request
from tests.support.wire import (
    Wire,
    create_topic,
    fetch_request,
    frame_of,
    produce_all,
    produce_request,
    produced,
)

MEMBERS = 10
RECORDS = 100_000
RECORD_BYTES = 100
AT_ONCE = 200  # all members together: the most records that a group has in flight
WAKE_UPS = 500
WARM_UP = 50
GOAL_S = 0.01
PARKED_S = 0.02  # until a request waits
ACCEPT = 1


class Member(Wire):
    """A connection of a member, with the ranges that it has acquired."""

    def __init__(self, port: int, topic_id: UUID, member_id: str) -> None:
        super().__init__(port)
        self.topic_id, self.member_id, self.epoch = topic_id, member_id, 0
        self.acquired: list[AcquiredRecords] = []

    def ask(self, wait_ms: int = 0) -> None:
        """Send a fetch that acknowledges what the last one has acquired."""
        batches = [
            AcknowledgementBatch(
                first_offset=run.first_offset, last_offset=run.last_offset, acknowledge_types=[ACCEPT]
            )
            for run in self.acquired
        ]
        partition = FetchPartition(partition_index=0, acknowledgement_batches=batches)
        request = ShareFetchRequest(
            group_id="workers",
            member_id=self.member_id,
            share_session_epoch=self.epoch,
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=50_000_000,
            max_records=AT_ONCE,
            batch_size=AT_ONCE,
            topics=[FetchTopic(topic_id=self.topic_id, partitions=[partition])]
            if batches or not self.epoch
            else [],
            forgotten_topics_data=[],
        )
        self.send(b"".join(encode_request(request, 2, 1, "bench")))
        self.epoch += 1

    def answer(self) -> int:
        """Receive the answer. Return the number of acquired records."""
        return self.learn(self.receive())

    def learn(self, frame: bytearray) -> int:
        """Decode an answer. Return the number of acquired records."""
        answer = decode_response(ShareFetchResponse, 2, frame)[1]
        check(answer.error_code)
        self.acquired = []
        for topic in answer.responses:
            for data in topic.partitions:
                check(data.error_code)
                check(data.acknowledge_error_code)
                self.acquired += data.acquired_records
        return sum(run.last_offset - run.first_offset + 1 for run in self.acquired)


def measure(at: Broker, system: str) -> None:
    create_topic(at.port, "jobs", settings=SYSTEMS[system])
    with Wire(at.port) as wire, ExitStack() as stack:
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="jobs")])
        topic_id = wire.call(asked).topics[0].topic_id
        members = [stack.enter_context(Member(at.port, topic_id, f"m{number}")) for number in range(MEMBERS)]
        for member in members:
            member.ask()
            member.answer()
        append(wire, RECORDS)
        print_rate(at, system, members)
        print_wake_ups(at, system, members[0])


def append(wire: Wire, records: int) -> None:
    """Append records to the queue, as batches of at most AT_ONCE."""
    sizes = [min(AT_ONCE, records - at) for at in range(0, records, AT_ONCE)]
    batches = {
        size: build_batch([(i, 0, None, b"x" * RECORD_BYTES, ()) for i in range(size)]) for size in sizes
    }
    for _ in produce_all(wire, (frame_of(produce_request("jobs", bytes(batches[size]))) for size in sizes)):
        pass


def print_rate(at: Broker, system: str, members: list[Member]) -> None:
    began_s, used_s, all_s = time.perf_counter(), cpu_s(at.pid), at.cpu_s()
    done = 0
    while done < RECORDS or any(member.acquired for member in members):
        for member in members:
            member.ask()
        done += sum(member.answer() for member in members)
    took_s, used_s, all_s = time.perf_counter() - began_s, cpu_s(at.pid) - used_s, at.cpu_s() - all_s
    print(
        f"{system}: {MEMBERS} members acquire and acknowledge {done / took_s:,.0f} records/s; processor for each"
        f" record: broker {used_s / done * 1e6:.1f} µs, server {(all_s - used_s) / done * 1e6:.1f} µs",
        flush=True,
    )


def print_wake_ups(at: Broker, system: str, member: Member) -> None:
    """Print how long a record takes to a member that waits, and beside it to a plain Fetch that waits."""
    create_topic(at.port, "plain", settings=SYSTEMS[system])
    member_s, fetch_s = [], []
    with Wire(at.port) as producer, Wire(at.port) as consumer:
        producer.send(frame_of(produce_request("plain", one_record())))
        next_offset = produced(producer.receive()) + 1
        for _ in range(WARM_UP + WAKE_UPS):
            member_s.append(member_wake_up_s(producer, member))
            consumer.send(frame_of(fetch_request("plain", next_offset, max_wait_ms=30_000)))
            time.sleep(PARKED_S)
            request = frame_of(produce_request("plain", one_record()))
            took_s, next_offset = delivered_s(producer, consumer, request)
            fetch_s.append(took_s)
    print_percentiles(system, "a waiting member", member_s[WARM_UP:])
    print_percentiles(system, "a waiting Fetch", fetch_s[WARM_UP:])


def member_wake_up_s(producer: Wire, member: Member) -> float:
    """Return the seconds from the send of a record to its delivery."""
    member.ask(10_000)
    if member.acquired:  # the answer to an acknowledgement comes immediately
        member.answer()
        member.ask(10_000)
    time.sleep(PARKED_S)
    request = frame_of(produce_request("jobs", one_record()))
    began_s = time.perf_counter()
    producer.send(request)
    frame = member.receive()
    took_s = time.perf_counter() - began_s
    if not member.learn(frame):
        message = "a fetch was answered without the record"
        raise RuntimeError(message)
    produced(producer.receive())
    return took_s


def print_percentiles(system: str, what: str, times_s: Sequence[float]) -> None:
    of_100 = [each * 1000 for each in quantiles(times_s, n=100)]
    print(
        f"{system}: from the send of a record to {what}, {len(times_s)} times: p50 {of_100[49]:.1f},"
        f" p95 {of_100[94]:.1f}, p99 {of_100[98]:.1f}, largest {max(times_s) * 1000:.1f} ms;"
        f" within 10 ms: {sum(each <= GOAL_S for each in times_s) / len(times_s):.1%}",
        flush=True,
    )


def main() -> None:
    """Run each measurement once, on a private server: of all systems, or of those that are named."""
    for system in sys.argv[1:] or SYSTEMS:
        with temporary_folder() as folder, broker(storage_of(system, folder / "data")) as at:
            measure(at, system)


if __name__ == "__main__":
    main()
