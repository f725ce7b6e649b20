"""Produce: good batches of every kind, and batches that are broken in one way each."""

from __future__ import annotations

import struct
from uuid import UUID

from conformance.clock import HOUR_MS, T0
from conformance.scenario import scenario
from conformance.scenarios.asking import fetch
from conformance.scenarios.records import ATTRIBUTES_AT, batch, overwritten
from conformance.talk import PRODUCE_BY_ID, Talk, newest, versions
from korvet.protocol.buffers import Buffer
from korvet.protocol.compression import Codec
from korvet.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from korvet.protocol.messages.fetch import FetchRequest
from korvet.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from korvet.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from korvet.protocol.schema import ZERO_UUID

BASE_OFFSET_AT, LENGTH_AT, EPOCH_AT, MAGIC_AT = 0, 8, 12, 16
LAST_DELTA_AT, BASE_TIMESTAMP_AT, MAX_TIMESTAMP_AT, SEQUENCE_AT, COUNT_AT = 23, 27, 35, 53, 57


def produce(
    topic: str,
    *records: Buffer,
    partition: int = 0,
    acks: int = -1,
    transactional_id: str | None = None,
    timeout_ms: int = 10_000,
) -> ProduceRequest:
    """Return a request with the given bytes as one partition's records; null if there are none."""
    data = PartitionProduceData(index=partition, records=list(records) or None)
    return ProduceRequest(
        transactional_id=transactional_id,
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


@scenario(ProduceRequest)
def a_batch(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.ask(produce(topic, batch(b"one", None, b"", keys=(b"a", None, b""))), version)
    talk.ask(produce(topic, batch(b"four", headers=(("h", b"1"), ("h", None), ("", b"")))), version)
    talk.ask(fetch(talk, "orders", 0))


@scenario(ProduceRequest)
def every_codec(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    for codec in Codec:
        talk.ask(produce(topic, batch(b"x" * 100, b"y" * 100, codec=codec)), version, codec.name)
    talk.ask(fetch(talk, "orders", 0))


@scenario(ProduceRequest)
def some_partitions_fail(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    partitions = [PartitionProduceData(index=index, records=[batch()]) for index in (0, 1, 2, -1)]
    nowhere = [PartitionProduceData(index=0, records=[batch()])]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(name=topic, partition_data=partitions),
            TopicProduceData(name=talk.name("nowhere"), partition_data=nowhere),
        ],
    )
    talk.ask(request, version)


@scenario(ProduceRequest)
def an_unknown_topic_is_not_created(talk: Talk, version: int) -> None:
    talk.ask(produce(talk.name("nowhere"), batch()), version)
    topics = [MetadataRequestTopic(name=talk.name("nowhere"))]
    talk.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=False))


def produce_by_id(*topic_ids: UUID, transactional_id: str | None = None) -> ProduceRequest:
    """Return a request with a batch for partition 0 of each topic."""
    data = [PartitionProduceData(index=0, records=[batch()])]
    topics = [TopicProduceData(topic_id=each, partition_data=data) for each in topic_ids]
    return ProduceRequest(transactional_id=transactional_id, acks=-1, timeout_ms=10_000, topic_data=topics)


@scenario(ProduceRequest, PRODUCE_BY_ID)
def ids_of_topics(talk: Talk, version: int) -> None:
    talk.topic("orders")
    talk.ask(produce_by_id(UUID(int=7)), version, "an unknown id")
    talk.ask(produce_by_id(ZERO_UUID), version, "no id")
    unknown = produce_by_id(UUID(int=7), transactional_id=talk.name("x"))
    talk.ask(unknown, version, "a transactional id")
    beside = produce(talk.name("orders"), batch())
    beside.topic_data += produce_by_id(UUID(int=7)).topic_data
    talk.ask(beside, version, "an unknown id beside a topic")


@scenario(ProduceRequest, PRODUCE_BY_ID)
def old_id_of_a_recreated_topic(talk: Talk, version: int) -> None:
    name = talk.topic("orders")
    old = produce_by_id(talk.topic_id("orders"))
    talk.tell(DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000))
    talk.until_gone("orders")
    talk.ask(old, version, "deleted")
    talk.topic("orders")
    talk.ask(old, version, "created again")
    talk.ask(fetch(talk, "orders", 0))


@scenario(ProduceRequest)
def invalid_topic_names(talk: Talk, version: int) -> None:
    for name in ("", ".", "a b", "x" * 250):
        talk.ask(produce(name, batch()), version, repr(name[:10]))


@scenario(ProduceRequest)
def empty_requests(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[]), version, "no topics")
    no_partitions = TopicProduceData(name=topic, partition_data=[])
    talk.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[no_partitions]), version, "no partitions")
    talk.ask(produce(topic), version, "null records", limit_s=2)
    talk.ask(produce(topic, b""), version, "empty records", limit_s=2)


@scenario(ProduceRequest)
def duplicate_topics_and_partitions(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    data = PartitionProduceData(index=0, records=[batch()])
    twice = [TopicProduceData(name=topic, partition_data=[data, data])]
    talk.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=twice), version, "the partition")
    once = TopicProduceData(name=topic, partition_data=[data])
    talk.ask(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[once, once]), version, "the topic")


@scenario(ProduceRequest)
def invalid_acks(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    for acks in (2, -2, 100):
        talk.ask(produce(topic, batch(), acks=acks), version, f"acks={acks}")


@scenario(ProduceRequest)
def acks_1(talk: Talk, version: int) -> None:
    talk.ask(produce(talk.topic("orders"), batch(), acks=1), version)


@scenario(ProduceRequest)
def acks_0_gets_no_response(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.send(produce(topic, batch(), acks=0), version)
    talk.ask(MetadataRequest(topics=[]), label="the next answer")


@scenario(ProduceRequest)
def acks_0_and_an_error_close_the_connection(talk: Talk, version: int) -> None:
    for name, records in (("nowhere", batch()), ("orders", overwritten(batch(), 60, b"!", seal=False))):
        talk.topic("orders") if name == "orders" else None
        talk.send(produce(talk.name(name), records, acks=0), version)
        talk.ask(MetadataRequest(topics=[]), label=f"after {name}")


@scenario(ProduceRequest)
def malformed_batches(talk: Talk, version: int) -> None:
    good = batch(b"one", b"two")
    broken = {
        "a wrong checksum": overwritten(good, 62, b"!", seal=False),
        "magic 0": overwritten(good, MAGIC_AT, b"\0"),
        "magic 1": overwritten(good, MAGIC_AT, b"\1"),
        "magic 3": overwritten(good, MAGIC_AT, b"\3"),
        "a codec of no number": overwritten(good, ATTRIBUTES_AT, b"\0\7"),
        "a codec that it is not": overwritten(good, ATTRIBUTES_AT, b"\0\1"),
        "more records counted than there are": overwritten(good, COUNT_AT, struct.pack(">i", 3)),
        "fewer records counted": overwritten(good, COUNT_AT, struct.pack(">i", 1)),
        "no records": overwritten(good, COUNT_AT, struct.pack(">i", 0)),
        "a negative count": overwritten(good, COUNT_AT, struct.pack(">i", -1)),
        "a last offset delta too large": overwritten(good, LAST_DELTA_AT, struct.pack(">i", 7)),
        "a last offset delta too small": overwritten(good, LAST_DELTA_AT, struct.pack(">i", 0)),
        "a length beyond the end": overwritten(good, LENGTH_AT, struct.pack(">i", len(good))),
        "a length that is too small": overwritten(good, LENGTH_AT, struct.pack(">i", 10)),
        "a negative length": overwritten(good, LENGTH_AT, struct.pack(">i", -1)),
        "half of it": good[:40],
        "ten bytes": good[:10],
        "two batches": good + good,
        "a batch and half of one": good + good[:40],
        "bytes behind it": good + b"xx",
        "an unused attribute": overwritten(good, ATTRIBUTES_AT, b"\x40\0"),
        "a base offset of its own": overwritten(good, BASE_OFFSET_AT, struct.pack(">q", 7), seal=False),
        "a leader epoch of its own": overwritten(good, EPOCH_AT, struct.pack(">i", 7), seal=False),
        "a max timestamp that is wrong": overwritten(good, MAX_TIMESTAMP_AT, struct.pack(">q", T0 - 7)),
        "a base sequence without a producer": overwritten(good, SEQUENCE_AT, struct.pack(">i", 4)),
        "a control batch": batch(b"\0\0\0\0\0\0", keys=(b"\0\0\0\1",), is_control=True),
        "a transactional batch without a producer": batch(b"x", is_transactional=True),
        "records cut off, counted right": overwritten(
            good[:-3], LENGTH_AT, struct.pack(">i", len(good) - 15)
        ),
    }
    topic = talk.topic(
        "orders", partitions=len(broken)
    )  # a batch that is accepted affects no other batch's offsets
    for partition, (label, records) in enumerate(broken.items()):
        talk.ask(produce(topic, records, partition=partition), version, label)


@scenario(ProduceRequest)
def too_large_batch(talk: Talk, version: int) -> None:
    small = talk.topic("small", max_message_bytes="200")
    talk.ask(produce(small, batch(b"x" * 200)), version, "too large for the topic")
    talk.ask(produce(small, batch(b"x" * 100)), version, "not too large")
    talk.ask(produce(small, batch(b"x" * 1000, codec=Codec.GZIP)), version, "not when compressed")
    talk.ask(produce(talk.topic("usual"), batch(b"x" * 1_048_577)), version, "too large for the broker")


@scenario(ProduceRequest)
def the_largest_batch(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", max_message_bytes="200")
    size = len(batch(b"x" * 100))
    talk.ask(produce(topic, batch(b"x" * (100 + 200 - size))), version, "200 bytes")
    talk.ask(produce(topic, batch(b"x" * (100 + 201 - size))), version, "201 bytes")


@scenario(ProduceRequest)
def log_append_time(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", message_timestamp_type="LogAppendTime")
    talk.ask(produce(topic, batch(b"one", b"two")), version)
    talk.ask(produce(topic, batch(b"one", b"two", codec=Codec.GZIP)), version, "compressed")
    talk.ask(fetch(talk, "orders", 0))


@scenario(ProduceRequest)
def log_append_time_set_by_the_producer(talk: Talk, version: int) -> None:
    talk.ask(produce(talk.topic("orders"), batch(timestamp_type=1)), version, "of a CreateTime topic")
    append = talk.topic("append", message_timestamp_type="LogAppendTime")
    talk.ask(produce(append, batch(timestamp_type=1)), version, "of a LogAppendTime topic")


@scenario(ProduceRequest)
def timestamps_out_of_bounds(talk: Talk, version: int) -> None:
    before = talk.topic("before", message_timestamp_before_max_ms="1000")
    after = talk.topic("after", message_timestamp_after_max_ms="1000")
    future = T0 + 10 * HOUR_MS
    talk.ask(produce(before, batch(b"1", b"2")), version, "too early")
    talk.ask(produce(after, batch(b"1", b"2", b"3", timestamps=(T0, future, future))), version, "too late")
    talk.ask(produce(after, batch(timestamps=(-1,))), version, "no timestamp")
    talk.ask(produce(after, batch(timestamps=(-2,))), version, "a negative timestamp")


@scenario(ProduceRequest)
def too_few_replicas(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", min_insync_replicas="2")
    talk.ask(produce(topic, batch(), timeout_ms=2000), version, "acks=-1")
    talk.ask(produce(topic, batch(), acks=1), version, "acks=1")


@scenario(ProduceRequest)
def a_transactional_id(talk: Talk, version: int) -> None:
    topic = talk.topic("orders")
    talk.ask(
        produce(topic, batch(), transactional_id=talk.name("t")), version, "a batch without a transaction"
    )
    records = batch(b"x", producer=(123_456, 0, 0), is_transactional=True)
    talk.ask(produce(topic, records, transactional_id=talk.name("t")), version, "a transactional batch")
    talk.ask(produce(topic, records), version, "a transactional batch, no transactional id")


@scenario(ProduceRequest)
def internal_topics(talk: Talk, version: int) -> None:
    for name in ("__consumer_offsets", "__transaction_state"):
        talk.ask(produce(name, batch()), version, name)


@scenario(ProduceRequest)
def idempotent_producers(talk: Talk, version: int) -> None:
    topic = talk.topic("orders", partitions=2)
    producer_id = 77_000

    def numbered(sequence: int, *, epoch: int = 0, count: int = 1, producer: int = producer_id) -> bytearray:
        return batch(*[b"%d" % each for each in range(count)], producer=(producer, epoch, sequence))

    talk.ask(produce(topic, numbered(0)), version, "the first")
    talk.ask(produce(topic, numbered(0)), version, "the first again")
    talk.ask(produce(topic, numbered(1, count=3)), version, "three more")
    talk.ask(produce(topic, numbered(1, count=3)), version, "three more again")
    talk.ask(produce(topic, numbered(1, count=2)), version, "two of the three")
    talk.ask(produce(topic, numbered(6)), version, "a gap")
    talk.ask(produce(topic, numbered(4)), version, "no gap")
    for sequence in range(5, 11):
        talk.ask(produce(topic, numbered(sequence)), version, f"sequence {sequence}")
    talk.ask(produce(topic, numbered(5)), version, "six batches ago")
    talk.ask(produce(topic, numbered(6)), version, "five batches ago")
    talk.ask(produce(topic, numbered(0)), version, "long ago")
    talk.ask(produce(topic, numbered(3, epoch=1)), version, "a new epoch that does not begin at 0")
    talk.ask(produce(topic, numbered(0, epoch=1)), version, "a new epoch")
    talk.ask(produce(topic, numbered(11)), version, "the old epoch")
    talk.ask(produce(topic, numbered(1, epoch=1)), version, "the new epoch goes on")
    talk.ask(produce(topic, numbered(5, producer=77_001)), version, "an unknown producer in the middle")
    talk.ask(produce(topic, numbered(6, producer=77_001)), version, "and goes on")
    talk.ask(produce(topic, numbered(9), partition=1), version, "another partition has its own sequences")
    talk.ask(produce(topic, numbered(2**31 - 2, count=3, producer=77_002)), version, "around all sequences")
    talk.ask(produce(topic, numbered(1, producer=77_002)), version, "behind the turn")
    talk.ask(produce(topic, numbered(0, epoch=-1, producer=77_003)), version, "an epoch of -1")
    talk.ask(produce(topic, numbered(-1, producer=77_004)), version, "a sequence of -1")
    talk.ask(fetch(talk, "orders", 0))


@scenario()
def refused_versions(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    for version in range(3):
        talk.ask(produce(topic, batch()), version, f"version {version}")


@scenario()
def zstd_in_versions_before_7(talk: Talk, _version: int) -> None:
    topic = talk.topic("orders")
    for version in versions(ProduceRequest):
        talk.ask(produce(topic, batch(codec=Codec.ZSTD)), version, f"Produce {version}")
    for version in versions(FetchRequest, last=newest(FetchRequest)):
        talk.ask(fetch(talk, "orders", 0, version=version), version, f"Fetch {version}")
