from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy as AiokafkaBuilder
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from kafka.record.memory_records import MemoryRecordsBuilder as KafkaPythonBuilder

from korvet.protocol import record
from korvet.protocol.compression import Codec
from korvet.protocol.crc32c import crc32c
from korvet.protocol.errors import (
    CorruptMessage,
    ErrorCode,
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    UnsupportedCompressionType,
    UnsupportedForMessageFormat,
)
from korvet.protocol.record import RawRecord, encode_varint
from korvet.protocol.record_batch import (
    MAX_UNPACKED_BYTES,
    ControlType,
    RecordBatch,
    TimestampType,
    build_batch,
    control_type,
    decode_in_steps,
    decode_records,
    first_offset_at,
    max_timestamp_offset,
    parse_batches,
    set_max_timestamp,
    stamp,
    stamp_log_append_time,
    stamped,
    validate,
    validate_produced,
)
from korvet.protocol.steps import at_once

NOW = 1_700_000_000_000
PLAIN: list[RawRecord] = [(n, NOW + n, b"key %d" % n, b"value %d" % n, ()) for n in range(300)]
ODD: list[RawRecord] = [
    (0, NOW, None, None, ()),
    (1, NOW - 70_000, b"", b"", (("", None),)),
    (2, NOW + 2**40, b"k", None, (("a", b""), ("a", b"2"), ("ünï", None))),
    (3, NOW - 1, None, bytes(70_000), (("long", b"h" * 9_000), ("k" * 200, b"v"))),
    (4, NOW, b"k" * 20_000, b"v", tuple(("h", b"%d" % n) for n in range(100))),
]
SAMPLES = {"plain": PLAIN, "odd": ODD, "one": PLAIN[:1]}

raw_records = st.lists(
    st.tuples(
        st.integers(-(2**62), 2**62),
        st.none() | st.binary(max_size=80),
        st.none() | st.binary(max_size=80),
        st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=12,
).map(lambda rows: [(n, *row) for n, row in enumerate(rows)])


def batch_of(records: Sequence[RawRecord] = PLAIN, **settings: object) -> RecordBatch:
    return RecordBatch(build_batch(records, **settings))


def sealed(batch: RecordBatch, at: int, layout: str, value: int) -> bytearray:
    """Return the batch with one header field changed, and a matching CRC."""
    data = bytearray(batch.buffer)
    struct.pack_into(layout, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return data


def produced(
    data: bytes | bytearray, *, api_version: int = 9, max_message_bytes: int = 1_000_000
) -> RecordBatch:
    return validate_produced(
        (memoryview(data),), api_version=api_version, max_message_bytes=max_message_bytes
    )


# --- Batches of other libraries ---------------------------------------------------------------------------


def written_by_kafka_python(records: Sequence[RawRecord], codec: Codec) -> bytes:
    builder = KafkaPythonBuilder(magic=2, compression_type=codec, batch_size=2**20)
    for _, timestamp, key, value, headers in records:
        assert builder.append(timestamp, key, value, list(headers))
    builder.close()
    return bytes(builder.buffer())


def written_by_aiokafka(records: Sequence[RawRecord], codec: Codec) -> bytes:
    builder = AiokafkaBuilder(2, codec, 0, -1, -1, -1, 2**20)
    for delta, timestamp, key, value, headers in records:
        assert builder.append(delta, timestamp, key, value, list(headers))
    return bytes(builder.build())


def read_by_kafka_python(data: bytes) -> list[RawRecord]:
    batch = KafkaPythonRecords(data).next_batch()
    assert batch.validate_crc()
    return [_raw(each) for each in batch]


def read_by_aiokafka(data: bytes) -> list[RawRecord]:
    batch = AiokafkaRecords(data).next_batch()
    assert batch.validate_crc()
    return [_raw(each) for each in batch]


def _raw(theirs: Any) -> RawRecord:
    return theirs.offset, theirs.timestamp, theirs.key, theirs.value, tuple(theirs.headers)


WRITERS = {"kafka-python": written_by_kafka_python, "aiokafka": written_by_aiokafka}
READERS = {"kafka-python": read_by_kafka_python, "aiokafka": read_by_aiokafka}


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("writer", WRITERS)
def test_batches_of_other_clients_are_decoded(writer: str, sample: str, codec: Codec) -> None:
    batch = produced(WRITERS[writer](SAMPLES[sample], codec))

    assert SAMPLES[sample] == decode_records(batch)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("reader", READERS)
def test_built_batches_are_decoded_by_other_clients(reader: str, sample: str, codec: Codec) -> None:
    data = bytes(build_batch(SAMPLES[sample], codec=codec))

    assert SAMPLES[sample] == READERS[reader](data)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("writer", WRITERS)
def test_built_batches_equal_those_of_other_clients(writer: str, sample: str) -> None:
    data = WRITERS[writer](SAMPLES[sample], Codec.NONE)
    epoch = RecordBatch(
        data
    ).partition_leader_epoch  # which has no meaning in requests; aiokafka writes -1, kafka-python 0

    assert data == build_batch(SAMPLES[sample], partition_leader_epoch=epoch)


# --- Building and reading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
@given(records=raw_records)
def test_built_batches_survive_a_round_trip(codec: Codec, records: list[RawRecord]) -> None:
    batch = produced(build_batch(records, codec=codec))

    assert records == decode_records(batch)


def test_header_contains_the_arguments_of_build_batch() -> None:
    batch = batch_of(
        PLAIN,
        base_offset=2**50,
        partition_leader_epoch=7,
        codec=Codec.ZSTD,
        producer_id=2**40,
        producer_epoch=3,
        base_sequence=2**31 - 300,
        is_transactional=True,
    )

    assert (2**50, 7, 2, 2**50 + 299) == (
        batch.base_offset,
        batch.partition_leader_epoch,
        batch.magic,
        batch.last_offset,
    )
    assert (Codec.ZSTD, TimestampType.CREATE_TIME, True, False, True) == (
        batch.compression,
        batch.timestamp_type,
        batch.is_transactional,
        batch.is_control,
        batch.is_idempotent,
    )
    assert (2**40, 3, 2**31 - 300, 2**31 - 1) == (
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.last_sequence,
    )
    assert (300, 299, NOW, NOW + 299) == (
        batch.record_count,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
    )
    assert len(batch.buffer) == batch.size


def test_sequences_start_again_at_zero_after_the_largest() -> None:
    batch = batch_of(PLAIN, producer_id=1, producer_epoch=0, base_sequence=2**31 - 1)

    assert 298 == batch.last_sequence


def test_batch_without_a_producer_has_no_sequence() -> None:
    assert (False, -1) == (batch_of().is_idempotent, batch_of().last_sequence)


def test_batches_are_built_from_columns_and_any_buffer() -> None:
    rows = zip(
        range(3),
        itertools.repeat(NOW),
        (b"a", None, memoryview(b"c")),
        (bytearray(b"1"), memoryview(b"22"), None),
        itertools.repeat(()),
    )

    assert [(0, NOW, b"a", b"1", ()), (1, NOW, None, b"22", ()), (2, NOW, b"c", None, ())] == decode_records(
        RecordBatch(build_batch(rows))
    )


def test_offset_gaps_are_accepted_from_storage_but_not_from_producers() -> None:
    records = [(n, NOW, None, b"", ()) for n in (3, 70, 2**31 - 1)]
    batch = batch_of(records, base_offset=5)
    validate(batch)

    assert (records, 2**31 + 4) == (decode_records(batch), batch.last_offset)
    with pytest.raises(InvalidRecord, match="3 records cannot fill 2147483648 offsets"):
        produced(build_batch(records))


def test_offset_deltas_beyond_32_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="offset delta 2147483648"):
        build_batch([(0, NOW, None, b"", ()), (2**31, NOW, None, b"", ())])


def test_records_under_log_append_time_have_the_max_timestamp() -> None:
    batch = batch_of(
        [(0, 5, None, b"", ()), (1, 9, None, b"", ())], timestamp_type=TimestampType.LOG_APPEND_TIME
    )

    assert [9, 9] == [timestamp for _, timestamp, *_ in decode_records(batch)]


def test_repr_contains_offsets_and_producer() -> None:
    batch = batch_of(PLAIN[:2], base_offset=40, producer_id=7, producer_epoch=1, base_sequence=20)

    assert f"<RecordBatch 40..41 records=2 size={batch.size} producer=7/1/20>" == repr(batch)


# --- Control batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ControlType)
def test_control_batches_are_recognised(kind: ControlType) -> None:
    key = struct.pack(">hh", 0, kind)
    batch = batch_of([(0, NOW, key, bytes(6), ())], is_control=True, is_transactional=True)

    assert (True, kind) == (batch.is_control, control_type(batch))


def test_data_batches_and_other_control_records_have_no_control_type() -> None:
    leader_change = batch_of([(0, NOW, struct.pack(">hh", 0, 2), b"", ())], is_control=True)

    assert (None, None) == (control_type(batch_of()), control_type(leader_change))


# --- Splitting --------------------------------------------------------------------------------------------


def test_sequence_of_batches_is_split() -> None:
    first, second = build_batch(PLAIN[:2]), build_batch(ODD, base_offset=2)
    batches = parse_batches(first + second)

    assert [first, second] == [batch.buffer for batch in batches]
    assert [(0, 1), (2, 6)] == [(batch.base_offset, batch.last_offset) for batch in batches]


def test_empty_buffer_has_no_batches() -> None:
    assert [] == parse_batches(b"")


@pytest.mark.parametrize("kept", [1, 11, 16, 17, 60, 61, 100])
def test_truncated_last_batch_is_ignored_only_with_truncated_end_ok(kept: int) -> None:
    data = build_batch(PLAIN[:2]) + build_batch(PLAIN)[:kept]

    assert 1 == len(parse_batches(data, truncated_end_ok=True))
    with pytest.raises(CorruptMessage, match=f"{kept} bytes are not a whole record batch"):
        parse_batches(data)


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_batch_shorter_than_its_header_is_corrupt(length: int) -> None:
    with pytest.raises(CorruptMessage, match="shorter than its header"):
        parse_batches(sealed(batch_of(), 8, ">i", length))


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_are_refused_by_name(magic: int) -> None:
    builder = KafkaPythonBuilder(magic=magic, compression_type=0, batch_size=2**20)
    builder.append(NOW, b"key", b"value")
    builder.close()

    with pytest.raises(UnsupportedForMessageFormat, match=f"message format {magic}"):
        parse_batches(bytes(builder.buffer()))


def test_zero_bytes_are_corrupt() -> None:
    with pytest.raises(CorruptMessage, match="of 12 bytes is shorter than its header"):
        parse_batches(bytes(100))


def test_partial_batch_after_a_produced_batch_is_ignored() -> None:
    data = build_batch(PLAIN)

    assert data == produced(data + data[:-1]).buffer


def test_unknown_message_formats_are_corrupt() -> None:
    with pytest.raises(CorruptMessage, match="no message format 3"):
        parse_batches(sealed(batch_of(), 16, ">b", 3))


# --- Batches that producers may send ----------------------------------------------------------------------


def test_produced_batch_is_accepted_without_reading_its_records() -> None:
    data = build_batch(PLAIN)
    data[61:] = bytes(len(data) - 61)
    struct.pack_into(">I", data, 17, crc32c(data[21:]))

    assert 300 == produced(data).record_count


@pytest.mark.parametrize("records", [None, (), (b"",), (build_batch(PLAIN)[:-1],)])
def test_no_whole_batch_is_an_invalid_record(records: Sequence[bytes] | None) -> None:
    with pytest.raises(InvalidRecord, match="carries one record batch per partition, not 0"):
        validate_produced(records, api_version=9, max_message_bytes=1_000_000)


def test_two_batches_are_an_invalid_record() -> None:
    with pytest.raises(InvalidRecord, match="carries one record batch per partition, not 2"):
        produced(build_batch(PLAIN) * 2)


@pytest.mark.parametrize("version,accepted", [(3, False), (6, False), (7, True), (11, True)])
def test_zstd_is_accepted_from_produce_version_7_on(version: int, accepted: bool) -> None:
    refusal = pytest.raises(UnsupportedCompressionType, match="zstd")
    with contextlib.nullcontext() if accepted else refusal:
        produced(build_batch(PLAIN, codec=Codec.ZSTD), api_version=version)


def test_max_message_bytes_limits_the_size_of_the_whole_batch() -> None:
    data = build_batch(PLAIN)

    assert len(data) == produced(data, max_message_bytes=len(data)).size
    with pytest.raises(MessageTooLarge, match=f"has {len(data)} bytes; the topic takes {len(data) - 1}"):
        produced(data, max_message_bytes=len(data) - 1)


def test_too_large_batch_is_refused_before_its_checksum_is_computed() -> None:
    data = build_batch(PLAIN)
    data[-1] ^= 1

    with pytest.raises(MessageTooLarge):
        produced(data, max_message_bytes=100)


@pytest.mark.parametrize("position", [17, 21, 40, 60, 61, 100, -1])
def test_flipped_bit_makes_the_batch_corrupt(position: int) -> None:
    data = build_batch(PLAIN)
    data[position] ^= 0x40

    with pytest.raises(CorruptMessage):
        produced(data)


INVALID: dict[str, tuple[Callable[[], bytes | bytearray], ErrorCode]] = {
    "a base offset": (lambda: build_batch(PLAIN, base_offset=1), ErrorCode.INVALID_RECORD),
    "too few offsets": (lambda: sealed(batch_of(), 23, ">i", 298), ErrorCode.INVALID_RECORD),
    "too many offsets": (lambda: sealed(batch_of(), 23, ">i", 300), ErrorCode.INVALID_RECORD),
    "a negative offset range": (lambda: sealed(batch_of(), 23, ">i", -1), ErrorCode.INVALID_RECORD),
    "no records": (lambda: sealed(batch_of(), 57, ">i", 0), ErrorCode.INVALID_RECORD),
    "negative record count": (lambda: sealed(batch_of(), 57, ">i", -1), ErrorCode.INVALID_RECORD),
    "two billion records": (lambda: sealed(batch_of(), 57, ">i", 2**31 - 1), ErrorCode.INVALID_RECORD),
    "a control batch": (lambda: build_batch(PLAIN, is_control=True), ErrorCode.INVALID_RECORD),
    "a producer without a sequence": (lambda: build_batch(PLAIN, producer_id=1), ErrorCode.INVALID_RECORD),
    "log append time": (lambda: build_batch(PLAIN, timestamp_type=1), ErrorCode.INVALID_TIMESTAMP),
    "codec 5": (lambda: sealed(batch_of(), 21, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
}


@pytest.mark.parametrize("fault", INVALID)
def test_invalid_produced_batches_are_refused(fault: str) -> None:
    make, error_code = INVALID[fault]

    with pytest.raises(KafkaError) as caught:
        produced(make())
    assert error_code == caught.value.error_code


@pytest.mark.parametrize("codec", Codec)
def test_impossible_max_timestamp_is_replaced_by_that_of_the_records(codec: Codec) -> None:
    batch = produced(sealed(batch_of(PLAIN, codec=codec), 35, ">q", -1))
    at_once(set_max_timestamp(batch))

    assert PLAIN[-1][1] == batch.max_timestamp
    assert PLAIN[-1][1] == produced(batch.buffer).max_timestamp


# --- Stamping ---------------------------------------------------------------------------------------------


def test_stamping_changes_offset_and_epoch_in_place_and_keeps_the_checksum() -> None:
    data = build_batch(PLAIN)
    batch = RecordBatch(data)
    stamp(batch, 2**60, 5)
    (again,) = parse_batches(data)
    validate(again)

    assert (2**60, 5) == (again.base_offset, again.partition_leader_epoch)
    assert (2**60, 5) == (batch.base_offset, batch.partition_leader_epoch)
    assert PLAIN == decode_records(again)


def test_stamped_copies_the_header_of_an_immutable_batch() -> None:
    data = bytes(build_batch(PLAIN))
    beginning, rest = stamped(data, 2**60, 5)
    expected = bytearray(data)
    stamp(RecordBatch(expected), 2**60, 5)

    assert expected == beginning + bytes(rest)
    assert rest.obj is data


def test_stamped_log_append_time_is_read_by_other_clients() -> None:
    data = build_batch(PLAIN[:2], codec=Codec.GZIP)
    batch = RecordBatch(data)
    stamp_log_append_time(batch, NOW + 5_000)
    validate(batch)
    batch_there = KafkaPythonRecords(bytes(data)).next_batch()

    assert batch_there.validate_crc()
    assert [(1, NOW + 5_000)] * 2 == [(there.timestamp_type, there.timestamp) for there in batch_there]
    assert (TimestampType.LOG_APPEND_TIME, Codec.GZIP) == (batch.timestamp_type, batch.compression)


# --- Timestamps -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
@given(records=raw_records, timestamp=st.integers(-(2**62), 2**62), data=st.data())
def test_first_offset_at_matches_a_scan_of_the_records(
    codec: Codec, records: list[RawRecord], timestamp: int, data: st.DataObject
) -> None:
    timestamp = data.draw(st.sampled_from([timestamp, *(row[1] for row in records)]))
    batch = batch_of(records, base_offset=1_000, codec=codec)
    expected = next(((1_000 + row[0], row[1]) for row in records if row[1] >= timestamp), None)

    assert expected == at_once(first_offset_at(batch, timestamp))


@given(records=raw_records)
def test_max_timestamp_offset_is_the_first_with_the_largest_timestamp(records: list[RawRecord]) -> None:
    largest = max(row[1] for row in records)
    expected = next((1_000 + row[0], row[1]) for row in records if row[1] == largest)

    assert expected == max_timestamp_offset(batch_of(records, base_offset=1_000))


def test_first_offset_at_under_log_append_time_is_the_first_record() -> None:
    batch = batch_of(PLAIN, base_offset=7, timestamp_type=TimestampType.LOG_APPEND_TIME)

    assert (7, NOW + 299) == at_once(first_offset_at(batch, NOW + 299))
    assert None is at_once(first_offset_at(batch, NOW + 300))
    assert (7, NOW + 299) == max_timestamp_offset(batch)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_first_offset_at_under_log_append_time_of_a_compacted_batch(codec: Codec) -> None:
    left = [(delta, NOW + delta, b"k", b"v", ()) for delta in (2, 5)]
    batch = RecordBatch(
        build_batch(
            left,
            base_offset=7,
            codec=codec,
            timestamp_type=TimestampType.LOG_APPEND_TIME,
            last_offset_delta=9,
        )
    )

    assert (9, NOW + 5) == at_once(first_offset_at(batch, NOW))
    assert None is at_once(first_offset_at(batch, NOW + 6))
    assert (9, NOW + 5) == max_timestamp_offset(batch)


# --- Hostile records --------------------------------------------------------------------------------------


def record_of(*fields: int | bytes) -> bytes:
    body = b"".join(encode_varint(field) if isinstance(field, int) else field for field in fields)
    return encode_varint(len(body)) + body


def with_records(section: bytes, *, count: int = 1) -> RecordBatch:
    template = batch_of([(n, NOW, None, b"", ()) for n in range(count)])
    data = template.buffer[:61].tobytes() + section
    return RecordBatch(data)


NOT_RECORDS = {
    "nothing": (b"", "end too early"),
    "a length without a record": (encode_varint(2**30), "end too early"),
    "a record longer than the batch": (record_of(b"\0", 0, 0, -1, -1, 0)[:-1], "end too early"),
    "a length of 11 bytes": (b"\xff" * 10 + b"\0", "longer than 64 bits"),
    "a negative length": (
        encode_varint(-1) + record_of(b"\0", 0, 0, -1, -1, 0)[1:],
        "not that of its fields",
    ),
    "a record that is shorter inside": (record_of(b"\0", 0, 0, -1, -1, 0, b"x"), "not that of its fields"),
    "a key beyond the record": (record_of(b"\0", 0, 0, 5, b"k", -1, 0), "end too early"),
    "an offset delta that is negative": (record_of(b"\0", 0, -1, -1, -1, 0), "do not rise"),
    "an offset delta beyond the batch": (record_of(b"\0", 0, 1, -1, -1, 0), "beyond the batch"),
    "bytes after the last record": (record_of(b"\0", 0, 0, -1, -1, 0) + b"x", "after the last record"),
    "a negative number of headers": (record_of(b"\0", 0, 0, -1, -1, -1), "number of headers"),
    "more headers than bytes": (record_of(b"\0", 0, 0, -1, -1, 1000), "number of headers"),
    "headers that end too early": (record_of(b"\0", 0, 0, -1, -1, 2, 0, -1, 5, b"ab"), "end too early"),
    "a header without a key": (record_of(b"\0", 0, 0, -1, -1, 1, -1, -1), "no key"),
    "a header key that is not utf-8": (record_of(b"\0", 0, 0, -1, -1, 1, 1, b"\xff", -1), "not UTF-8"),
}


@pytest.mark.parametrize("fault", NOT_RECORDS)
def test_malformed_records_are_refused(fault: str) -> None:
    section, message = NOT_RECORDS[fault]

    with pytest.raises(InvalidRecord, match=message):
        decode_records(with_records(section))


def test_repeated_offset_deltas_are_refused() -> None:
    section = record_of(b"\0", 0, 0, -1, -1, 0) + record_of(b"\0", 0, 0, -1, -1, 0)

    with pytest.raises(InvalidRecord, match="do not rise"):
        decode_records(with_records(section, count=2))


def test_any_negative_length_is_null_as_in_kafka() -> None:
    section = record_of(b"\0", 0, 0, -7, -2, 1, 1, b"h", -3)

    assert [(0, NOW, None, None, (("h", None),))] == decode_records(with_records(section))


def test_record_counts_too_large_for_memory_are_refused() -> None:
    batch = RecordBatch(sealed(batch_of(), 57, ">i", 2**31 - 1))

    with pytest.raises(MessageTooLarge, match="2147483647 records"):
        decode_records(batch)


def test_header_counts_too_large_for_memory_are_refused() -> None:
    headers = (("", None),) * 10_000
    batch = batch_of([(n, NOW, None, None, headers) for n in range(20)], codec=Codec.ZSTD)

    assert 20 == len(decode_records(batch))
    with pytest.raises(MessageTooLarge, match="headers need more than"):
        decode_records(batch, max_bytes=150_000 * 128)


def test_compression_bomb_is_refused() -> None:
    batch = batch_of([(0, NOW, None, bytes(2_000_000), ())], codec=Codec.ZSTD)

    assert batch.size < 1_000
    for read in (decode_records, max_timestamp_offset):
        with pytest.raises(MessageTooLarge, match="more than 1000000 bytes"):
            read(batch, max_bytes=1_000_000)


def test_refused_compression_bomb_leaves_no_buffer_in_the_error() -> None:
    batch = batch_of([(0, NOW, None, bytes(MAX_UNPACKED_BYTES), ())], codec=Codec.ZSTD)
    for read in (first_offset_at(batch, NOW), decode_in_steps(batch, len)):
        with pytest.raises(MessageTooLarge) as caught:
            at_once(read)
        assert caught.value.__context__ is None


@given(data=st.binary(max_size=200), codec=st.sampled_from(range(8)), count=st.integers(-1, 2**31 - 1))
def test_random_records_raise_only_kafka_errors(data: bytes, codec: int, count: int) -> None:
    header = bytearray(build_batch(PLAIN[:1])[:61])
    struct.pack_into(">h", header, 21, codec)
    struct.pack_into(">i", header, 57, count)
    batch = RecordBatch(header + data)

    for read in (decode_records, validate, lambda batch: at_once(first_offset_at(batch, NOW)), control_type):
        with contextlib.suppress(KafkaError):
            read(batch)


@given(data=st.binary(max_size=200))
def test_random_bytes_raise_only_kafka_errors(data: bytes) -> None:
    with contextlib.suppress(KafkaError):
        parse_batches(data)
    with contextlib.suppress(KafkaError):
        produced(data)


@given(
    position=st.integers(0, 2_000),
    bit=st.integers(0, 7),
    codec=st.sampled_from(Codec),
    sample=st.sampled_from([PLAIN[:5], ODD[:3]]),
)
def test_flipped_bits_raise_only_kafka_errors(
    position: int, bit: int, codec: Codec, sample: list[RawRecord]
) -> None:
    data = build_batch(sample, codec=codec)
    data[position % len(data)] ^= 1 << bit
    with contextlib.suppress(KafkaError):
        produced(data)
    # The same as for bits that were flipped before the checksum was computed.
    if position % len(data) >= 21:
        struct.pack_into(">I", data, 17, crc32c(data[21:]))

    with contextlib.suppress(KafkaError):
        batch = produced(data)
        decode_records(batch)
    with contextlib.suppress(KafkaError):
        at_once(first_offset_at(RecordBatch(data), NOW))


def test_varint_table_and_its_fallback_agree() -> None:
    for number in (-65, -64, -2, -1, 0, 63, 64, 8191, 8192, 2**31 - 1, -(2**63), 2**63 - 1):
        encoded = encode_varint(number)
        assert number == record._varint(encoded, 0)[0] >> 1 ^ -(encoded[0] & 1)
        assert record.VARINTS[number] == encoded
