"""The requests of `bench.growth`, over raw connections, the same at every size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import cycle
from statistics import median

from bench.groups import Member, check, commit_request
from bench.latency import acknowledged_s, delivered_s, one_record
from bench.rdkafka import WrongCount
from korvet.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from korvet.protocol.messages.heartbeat import HeartbeatRequest
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.offset_commit import OffsetCommitRequest
from korvet.protocol.messages.sync_group import SyncGroupRequest
from korvet.protocol.record_batch import build_batch, parse_batches
from tests.support.wire import (
    LATEST,
    Wire,
    fetch_request,
    fetched,
    frame_of,
    pieces_of,
    produce_all,
    produce_request,
)

TOPIC = "t"
RECORD_BYTES = 100
WARM_UP = 10
# The broker reads a thousand partitions from Redis in several parts. This number of probes exceeds the parts by one.
PROBES = 5


def batch_of(records: int) -> bytes:
    """Return a batch of records of 100 bytes with current timestamps."""
    now_ms = int(time.time() * 1000)
    return bytes(build_batch([(i, now_ms, None, b"x" * RECORD_BYTES, ()) for i in range(records)]))


def produce(port: int, batch: bytes, partitions: Sequence[int]) -> tuple[float, list[tuple[int, int]]]:
    """Produce the batch once to each of the partitions, several in flight. Return seconds, and where it was stored."""
    # In pieces, so that the batch occupies the client's caches once, however many partitions there are.
    frames = {
        partition: pieces_of(produce_request(TOPIC, batch, partition=partition))
        for partition in set(partitions)
    }
    with Wire(port) as wire:
        started = time.perf_counter()
        base_offsets = list(produce_all(wire, (frames[partition] for partition in partitions)))
        return time.perf_counter() - started, list(zip(partitions, base_offsets, strict=True))


def consume(port: int, batch: bytes, where: Sequence[tuple[int, int]]) -> float:
    """Fetch each batch, one per request. Return seconds. Raises WrongCount if records are missing."""
    with Wire(port) as wire:
        started = time.perf_counter()
        for partition, base_offset in where:
            wire.send(
                frame_of(
                    fetch_request(
                        TOPIC, base_offset, partition=partition, max_wait_ms=500, max_bytes=len(batch)
                    )
                )
            )
            found = parse_batches(fetched(wire.receive()), truncated_end_ok=True)
            if not found or found[0].base_offset != base_offset:
                raise WrongCount(f"nothing at offset {base_offset} of partition {partition}")
        return time.perf_counter() - started


def acknowledged_us(port: int, repetitions: int) -> float:
    """Return the median time until a record is acknowledged with acks=all."""
    request = frame_of(produce_request(TOPIC, one_record()))
    with Wire(port) as wire:
        times_s = [acknowledged_s(wire, request) for _ in range(WARM_UP + repetitions)]
    return median(times_s[WARM_UP:]) * 1e6


def delivered_us(port: int, partitions: int, repetitions: int) -> float:
    """Return the median time until a consumer receives a record, while it waits for `partitions` in one request."""
    # The consumer's request is known to wait once later requests of the producer's connection were answered.
    request = frame_of(produce_request(TOPIC, one_record()))
    times_s = []
    with Wire(port) as producer, Wire(port) as consumer:
        positions = _ends(producer, partitions)
        for _ in range(WARM_UP + repetitions):
            consumer.send(frame_of(_fetch(positions)))
            for _ in range(PROBES):
                producer.send(frame_of(fetch_request(TOPIC, positions[0], max_wait_ms=0)))
                producer.receive()
            took_s, positions[0] = delivered_s(producer, consumer, request)
            times_s.append(took_s)
    return median(times_s[WARM_UP:]) * 1e6


def group_latencies_us(members: Sequence[Member], repetitions: int) -> tuple[float, float]:
    """Return the median times of an offset commit and of a heartbeat, alternating between members."""
    commits_s, beats_s = [], []
    for number, member in zip(range(WARM_UP + repetitions), cycle(members), strict=False):
        commit = commit_request(member.group_id, TOPIC, [0], offset=number)
        commit.member_id, commit.generation_id_or_member_epoch = member.member_id, member.generation_id
        started = time.perf_counter()
        member.ask(commit)
        check(member.answer(OffsetCommitRequest).topics[0].partitions[0].error_code)
        commits_s.append(time.perf_counter() - started)
        started = time.perf_counter()
        member.ask_heartbeat()
        check(member.answer(HeartbeatRequest).error_code)
        beats_s.append(time.perf_counter() - started)
    return median(commits_s[WARM_UP:]) * 1e6, median(beats_s[WARM_UP:]) * 1e6


def join(member: Member) -> None:
    """Create a group of one member, which stays in it."""
    member.introduce()
    member.ask_to_join()
    member.take_generation()
    member.ask_for_assignment()
    check(member.answer(SyncGroupRequest).error_code)


def _ends(wire: Wire, partitions: int) -> list[int]:
    asked = [ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(partitions)]
    answer = wire.call(
        ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=asked)])
    )
    found = {partition.partition_index: partition.offset for partition in answer.topics[0].partitions}
    return [found[index] for index in range(partitions)]


def _fetch(positions: Sequence[int]) -> FetchRequest:
    partitions = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in enumerate(positions)
    ]
    topics = [FetchTopic(topic=TOPIC, partitions=partitions)]
    return FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=50 << 20, topics=topics)
