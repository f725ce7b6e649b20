"""The cost of share groups: `python -m bench.share_groups` prints the rates and wake-ups for each storage.

Ten members of one group work on one partition. They are connections of one process that send requests without a client
library, and acknowledge with each fetch what the one before has acquired. Times of the processor are those of the
broker and its server; the wall clock has little meaning if the machine is busy.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from uuid import UUID

from bench.groups import check
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
from tests.support.wire import Wire, create_topic, frame_of, produce_all, produce_request

MEMBERS = 10
RECORDS = 100_000
RECORD_BYTES = 100
AT_ONCE = 200  # all members together: the most records that a group has in flight
WAKE_UPS = 50
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
        answer = decode_response(ShareFetchResponse, 2, self.receive())[1]
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
        print_wake_up(wire, system, members[0])


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


def print_wake_up(wire: Wire, system: str, member: Member) -> None:
    times = []
    for _ in range(WAKE_UPS):
        member.ask(10_000)
        if member.acquired:  # the answer to an acknowledgement comes immediately
            member.answer()
            member.ask(10_000)
        time.sleep(0.02)  # until the request is parked
        began_s = time.perf_counter()
        append(wire, 1)
        member.answer()
        times.append(time.perf_counter() - began_s)
    print(
        f"{system}: from the send of a record to its delivery, median {statistics.median(times) * 1000:.1f} ms,"
        f" largest {max(times) * 1000:.1f} ms; goal 10 ms",
        flush=True,
    )


def main() -> None:
    """Run each measurement once, on a private server."""
    for system in SYSTEMS:
        with temporary_folder() as folder, broker(storage_of(system, folder / "data")) as at:
            measure(at, system)


if __name__ == "__main__":
    main()
