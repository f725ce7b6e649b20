"""ListOffsets, OffsetForLeaderEpoch and DeleteRecords: start and end of a log, and offsets by time and epoch."""

from __future__ import annotations

from conformance.clock import HOUR_MS, T0
from conformance.scenario import scenario
from conformance.scenarios.asking import fetch
from conformance.scenarios.records import batch
from conformance.talk import Talk
from korvet.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from korvet.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from korvet.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

SPECIAL = {
    -1: "latest",
    -2: "earliest",
    -3: "the largest timestamp",
    -4: "earliest local",
    -5: "latest tiered",
    -6: "earliest pending upload",
    -7: "timestamp -7",
}


def list_offsets(
    topic: str, timestamp: int, *, partition: int = 0, epoch: int = -1, isolation_level: int = 0
) -> ListOffsetsRequest:
    """Return a request about one partition."""
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch)
    topics = [ListOffsetsTopic(name=topic, partitions=[asked])]
    return ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=topics, timeout_ms=5000)


def delete_records(talk: Talk, topic: str, number: int, *, partition: int = 0) -> DeleteRecordsRequest:
    """Return a request to delete everything before a record, by its number; negative numbers are sent unchanged."""
    offset = talk.offset(topic, number, partition) if number >= 0 else number
    deleted = DeleteRecordsPartition(partition_index=partition, offset=offset)
    topics = [DeleteRecordsTopic(name=talk.name(topic), partitions=[deleted])]
    return DeleteRecordsRequest(topics=topics, timeout_ms=5000)


def ends_of_epochs(
    topic: str, epoch: int, *, partition: int = 0, current: int = -1
) -> OffsetForLeaderEpochRequest:
    """Return a request for the end offset of an epoch of one partition."""
    asked = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=epoch)
    return OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[asked])]
    )


@scenario(ListOffsetsRequest)
def special_timestamps(talk: Talk, version: int) -> None:
    full, empty = talk.topic("full"), talk.topic("empty")
    talk.fill("full", batch(b"0", b"1"), batch(b"2", b"3", timestamps=(T0 + 9, T0 + 5)), batch(b"4"))
    for timestamp, label in SPECIAL.items():
        talk.ask(list_offsets(full, timestamp), version, label)
        talk.ask(list_offsets(empty, timestamp), version, f"{label}, empty")


@scenario(ListOffsetsRequest)
def by_time(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", message_timestamp_after_max_ms=str(2**63 - 1))
    far = T0 + 50 * HOUR_MS
    talk.fill(
        "orders",
        batch(b"0", b"1", b"2", timestamps=(T0, T0 + 10, T0 + 20)),
        batch(b"3", b"4", timestamps=(T0 + 5, T0 + 30)),
        batch(b"5", timestamps=(far,)),
        batch(b"6", b"7", timestamps=(T0 + 40, T0 + 40)),
    )
    for distance in (-HOUR_MS, 0, 1, 10, 11, 20, 21, 30, 31, 40, 41):
        talk.ask(list_offsets(topic, T0 + distance), version, f"T0{distance:+d}")
    talk.ask(list_offsets(topic, far), version, "the far one")
    talk.ask(list_offsets(topic, far + 1), version, "behind the far one")
    talk.ask(list_offsets(topic, 0), version, "time 0")
    talk.ask(list_offsets(topic, 2**63 - 1), version, "the end of time")


@scenario(ListOffsetsRequest)
def offsets_of_missing_partitions(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    for partition in (1, -1):
        talk.ask(list_offsets(topic, -1, partition=partition), version, f"partition {partition}")
    talk.ask(list_offsets(talk.name("nowhere"), -1), version, "an unknown topic")
    talk.ask(list_offsets("", -1), version, "a topic of no name")
    twice = [ListOffsetsPartition(partition_index=0, timestamp=timestamp) for timestamp in (-1, -2)]
    topics = [ListOffsetsTopic(name=topic, partitions=twice)]
    talk.ask(ListOffsetsRequest(replica_id=-1, topics=topics), version, "a partition named twice")
    talk.ask(ListOffsetsRequest(replica_id=-1, topics=[]), version, "nothing")


@scenario(ListOffsetsRequest, 2)
def offsets_by_isolation_level(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.fill("orders", batch(b"0", b"1"))
    for level in (0, 1, 3):
        talk.ask(list_offsets(topic, -1, isolation_level=level), version, f"level {level}, latest")
        talk.ask(list_offsets(topic, T0, isolation_level=level), version, f"level {level}, by time")


@scenario(ListOffsetsRequest, 4)
def offsets_by_leader_epoch(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.fill("orders", batch())
    for epoch in (0, 1, -2):
        talk.ask(list_offsets(topic, -1, epoch=epoch), version, f"epoch {epoch}")


@scenario(OffsetForLeaderEpochRequest)
def leader_epochs(talk: Talk, version: int) -> None:
    topic, empty = talk.topic("orders"), talk.topic("empty")
    talk.fill("orders", batch(b"0", b"1"))
    for epoch in (0, 1, 7, -1):
        talk.ask(ends_of_epochs(topic, epoch), version, f"epoch {epoch}")
    for current in (0, 1, -5):
        talk.ask(ends_of_epochs(topic, 0, current=current), version, f"current epoch {current}")
    talk.ask(ends_of_epochs(empty, 0), version, "an empty partition")
    talk.ask(ends_of_epochs(topic, 0, partition=3), version, "an unknown partition")
    talk.ask(ends_of_epochs(talk.name("nowhere"), 0), version, "an unknown topic")


@scenario(DeleteRecordsRequest)
def deleting_records(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.fill("orders", batch(b"0", b"1", b"2"), batch(b"3"), batch(b"4", b"5"))
    for number in (0, 1, 1, 0, 4, 6):
        talk.ask(delete_records(talk, "orders", number), version, f"before record {number}")
        for timestamp in (-2, -1, -3, T0):
            talk.ask(list_offsets(topic, timestamp), label=f"{number}, then timestamp {min(timestamp, 0)}")
        talk.ask(fetch(talk, "orders", 0), label=f"{number}, then from record 0")
        talk.ask(fetch(talk, "orders", number), label=f"{number}, then from there")
    talk.ask(delete_records(talk, "orders", 7), version, "beyond the end")
    talk.ask(delete_records(talk, "orders", -2), version, "offset -2")
    talk.fill("orders", batch(b"6"))
    talk.ask(delete_records(talk, "orders", -1), version, "everything")
    talk.fill("orders", batch(b"7"))
    talk.ask(fetch(talk, "orders", 7), label="what came later")


@scenario(DeleteRecordsRequest)
def deleting_records_of_missing_partitions(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.ask(delete_records(talk, "orders", -1, partition=4), version, "an unknown partition")
    talk.ask(delete_records(talk, "nowhere", -1), version, "an unknown topic")
    twice = [DeleteRecordsPartition(partition_index=0, offset=offset) for offset in (0, -1)]
    topics = [DeleteRecordsTopic(name=topic, partitions=twice)]
    talk.ask(DeleteRecordsRequest(topics=topics, timeout_ms=5000), version, "a partition named twice")
    talk.ask(DeleteRecordsRequest(topics=[], timeout_ms=5000), version, "nothing")
