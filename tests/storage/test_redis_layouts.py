"""Batches to entries and back, without a server: the arguments of the append script, and the parsing of entries."""

from __future__ import annotations

from collections.abc import Sequence

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.protocol.compression import Codec
from korvet.protocol.errors import InvalidRecord
from korvet.protocol.record import Headers
from korvet.protocol.record_batch import (
    ControlType,
    RecordBatch,
    build_batch,
    control_type,
    decode_records,
    parse_batches,
    validate,
)
from korvet.protocol.steps import RECORDS_A_STEP, at_once
from korvet.storage.interface import TimestampType, TopicConfig
from korvet.storage.offsets import DenseOffsets, OffsetMapper, TimestampOffsets
from korvet.storage.redis.append.layouts import Packed, Piece, StorageLayout, pack_records
from korvet.storage.redis.client.replies import UNCOPIED_VALUE_BYTES, command_of
from korvet.storage.redis.format import format_of
from korvet.storage.redis.read.columns import pack_run
from korvet.storage.redis.read.entries import Entry, Fields, parse
from korvet.storage.redis.read.rebuild import (
    Epoch,
    Rebuilt,
    rebuild_batches,
    rebuild_one_by_one,
    rebuild_records,
)
from korvet.testing.records import T0, Record, StoredRecord, batch

UNLIMITED = 1 << 30
FIRST_EPOCH = [Epoch(0, 0)]
HEADER_ARGUMENTS = 11

texts = st.text(max_size=3)
payloads = st.none() | st.binary(max_size=20) | st.sampled_from([b"x" * 200, b"y" * 9000])
headers: st.SearchStrategy[Headers] = st.lists(
    st.tuples(texts, st.none() | st.binary(max_size=3)), max_size=3
).map(tuple)
timestamps = st.one_of(
    st.integers(T0 - 5, T0 + 5), st.sampled_from([-1, 0, 2**63 - 1, -(2**63) + 1, 4_102_444_800_000])
)
# The value of `$producer`, and True for a record of a transaction.
producers = st.sampled_from([(b"", False), (b"7:3", False), (b"8:0", False), (b"7:3", True), (b"8:0", True)])
StoredProducer = tuple[bytes, bool]


def packed(
    records: Sequence[Record], config: TopicConfig | None = None, *, max_headers: int = 1000
) -> Packed:
    return packed_batch(batch(records), config or TopicConfig(), max_headers=max_headers)


def packed_batch(sent: RecordBatch, config: TopicConfig, *, max_headers: int = 1000) -> Packed:
    found = format_of(config).pack(sent, config, max_headers, 1_000_000, None)
    return found if isinstance(found, Packed) else at_once(found)


def arguments_of(found: Packed) -> list[bytes]:
    reader = hiredis.Reader()
    reader.feed(b"".join(command_of((b"EVALSHA",), found.argument_count, [found.buffers])))
    arguments: list[bytes] = reader.gets()
    return arguments[1:]


def shape_of(found: Packed) -> bytes:
    return arguments_of(found)[5]


def pieces_of(found: Packed) -> list[Piece]:
    arguments = arguments_of(found)
    numbers = list(map(int, arguments[HEADER_ARGUMENTS : HEADER_ARGUMENTS + 3 * int(arguments[8])]))
    return [Piece(*numbers[at : at + 3]) for at in range(0, len(numbers), 3)]


def data_of(found: Packed) -> list[bytes]:
    return arguments_of(found)[HEADER_ARGUMENTS + 3 * len(pieces_of(found)) :]


# --- Batches to arguments -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "records, shape, data",
    [
        ([Record(b"v", b"k"), Record(b"w", b"l")], b"kv", [b"k", b"l", b"v", b"w"]),
        ([Record(b"v"), Record(b"w")], b"v", [b"v", b"w"]),
        ([Record(None, b"k")], b"k", [b"k"]),
        ([Record(None), Record(None)], b"-", []),
        ([Record(b"v", timestamp=5), Record(b"w", timestamp=6)], b"v", [b"5", b"6", b"v", b"w"]),
    ],
)
def test_uniform_records_are_packed_as_columns(
    records: list[Record], shape: bytes, data: list[bytes]
) -> None:
    found = packed(records)

    assert shape == shape_of(found)
    assert data == data_of(found)
    assert len(data) == int(arguments_of(found)[9])


@pytest.mark.parametrize(
    "records",
    [
        [Record(b"v", b"k"), Record(b"w")],
        [Record(b"v"), Record(None)],
        [Record(b"v", headers=(("h", b"x"),))],
    ],
)
def test_other_records_are_packed_as_fields(records: list[Record]) -> None:
    assert b"f" == shape_of(packed(records))


@pytest.mark.parametrize("headers", [(), (("h", b"x"),)])
def test_large_values_are_not_copied(headers: Headers) -> None:
    value = b"v" * UNCOPIED_VALUE_BYTES
    found = packed([Record(value, headers=headers)])

    assert value in data_of(found)
    assert len(value) in map(len, found.buffers)


def test_packed_fields_contain_the_timestamp_position() -> None:
    found = packed([Record(b"v", b"k", 5, (("h", b"x"), ("n", None)))])

    assert [
        b"10", b"6", b"key", b"k", b"value", b"v", b"timestamp", b"5", b"header.h", b"x", b"$header.n", b"",
    ] == data_of(found)  # fmt: skip


def test_log_append_time_leaves_timestamps_to_the_script() -> None:
    config = TopicConfig(timestamp_type=TimestampType.LOG_APPEND_TIME)
    found = packed([Record(b"v", timestamp=5), Record(b"w", timestamp=6)], config)

    assert [b"v", b"w"] == data_of(found)


def test_batch_layout_stores_the_batch_unchanged() -> None:
    sent = batch([Record(b"v")] * 3, codec=Codec.ZSTD)
    found = packed_batch(sent, TopicConfig(backend_settings={"storage.layout": "batch"}))

    assert b"batch" == shape_of(found)
    assert [sent.buffer] == data_of(found)
    assert [Piece(3, sent.size + 6, T0)] == pieces_of(found)


def test_packing_a_large_batch_yields_between_slices() -> None:
    for records in ([Record(b"v")] * 5500, [Record(b"v", headers=(("a", b"b"),))] * 5500):
        turns = sum(1 for _ in pack_records(batch(records), TopicConfig(), 1000, 1_000_000, None))

        assert turns > 5500 / RECORDS_A_STEP


@pytest.mark.parametrize("layout", StorageLayout)
def test_producer_without_a_sequence_is_refused(layout: StorageLayout) -> None:
    raw = build_batch([(0, T0, None, b"v", ())], producer_id=7, producer_epoch=3, base_sequence=-1)

    with pytest.raises(InvalidRecord, match="sequence"):
        packed_batch(RecordBatch(raw), TopicConfig(backend_settings={"storage.layout": layout.value}))


def test_too_many_headers_are_refused() -> None:
    packed([Record(headers=(("h", b""),) * 3)], max_headers=3)
    with pytest.raises(InvalidRecord, match=r"record\.max\.headers"):
        packed([Record(headers=(("h", b""),) * 4)], max_headers=3)


@pytest.mark.parametrize(
    "retention_bytes, largest", [(-1, 66_000), (1_000_000, 66_000), (80_000, 11_000), (0, 5_000)]
)
def test_large_batch_is_several_pieces_of_the_index(retention_bytes: int, largest: int) -> None:
    records = [Record(b"x" * (100 + n % 7), timestamp=T0 + n % 1000) for n in range(5000)]
    found = packed(records, TopicConfig(retention_bytes=retention_bytes))
    pieces = pieces_of(found)
    ends = [sum(piece.records for piece in pieces[: n + 1]) for n in range(len(pieces))]
    starts = [0, *ends[:-1]]

    assert 5000 == ends[-1]
    assert sum(piece.size for piece in pieces) == found.size
    assert max(piece.size for piece in pieces) <= largest
    assert [piece.max_timestamp for piece in pieces] == [
        max(record.timestamp for record in records[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]


# --- Entries to batches -----------------------------------------------------------------------------------------


def fields_of(
    record: Record, *, producer: StoredProducer = (b"", False), log_append_time: bool = False
) -> Fields:
    """Return the fields that the script writes for a record."""
    fields: Fields = []
    if record.key is not None:
        fields += (b"key", record.key)
    if record.value is not None:
        fields += (b"value", record.value)
    fields += (b"timestamp", b"%d" % record.timestamp)
    if log_append_time:
        fields += (b"$timestamp.type", b"1")
    for name, value in record.headers:
        fields += (b"$header." + name.encode(), b"") if value is None else (b"header." + name.encode(), value)
    producer_text, is_transactional = producer
    if is_transactional:
        fields += (b"$transactional", b"1")
    if producer_text:
        fields += (b"$producer", producer_text)
    return fields


def entry_of(mapper: OffsetMapper, offset: int, fields: Fields) -> Entry:
    return mapper.entry_id(offset), fields


def records_of(rebuilt: Rebuilt) -> list[StoredRecord]:
    batches = parse_batches(b"".join(rebuilt.buffers))
    for each in batches:
        validate(each)
    return [
        StoredRecord(each.base_offset + delta, value, key, timestamp, headers)
        for each in batches
        for delta, timestamp, key, value, headers in decode_records(each)
    ]


@st.composite
def stored_records(draw: st.DrawFn) -> list[tuple[int, Record, StoredProducer, bool]]:
    """Draw tuples of offset, record, producer, and True if the timestamp is the broker's, with ascending offsets."""
    offset = draw(st.integers(1, 2**40))
    found = []
    for _ in range(draw(st.integers(1, 12))):
        record = draw(st.builds(Record, payloads, payloads, timestamps, headers))
        found.append((offset, record, draw(producers), draw(st.booleans())))
        offset += draw(st.sampled_from([1, 1, 1, 2, 1000, 2**31 - 1, 2**31, 2**40]))
    return found


@pytest.mark.parametrize("mapper", [DenseOffsets(), TimestampOffsets(10), TimestampOffsets(1)], ids=repr)
@given(records=stored_records(), codec=st.sampled_from(list(Codec)))
def test_records_survive_a_round_trip_through_entries(
    mapper: OffsetMapper, records: list[tuple[int, Record, StoredProducer, bool]], codec: Codec
) -> None:
    entries = [
        entry_of(mapper, offset, fields_of(record, producer=producer, log_append_time=by_broker))
        for offset, record, producer, by_broker in records
    ]
    rebuilt = rebuild_records(entries, mapper, FIRST_EPOCH, UNLIMITED, codec=codec, at_least_one=True)
    kinds = {
        each.base_offset + delta: (each.producer_id, each.is_transactional, each.is_log_append_time)
        for each in parse_batches(b"".join(rebuilt.buffers))
        for delta, *_ in decode_records(each)
    }

    assert records_of(rebuilt) == [StoredRecord(offset, *record) for offset, record, _, _ in records]
    assert rebuilt.entries == len(entries)
    assert rebuilt.size == sum(map(len, rebuilt.buffers))
    assert kinds == {
        offset: (int(producer.partition(b":")[0] or -1), is_transactional, by_broker)
        for offset, _, (producer, is_transactional), by_broker in records
    }


@given(records=stored_records(), limit=st.integers(0, 30_000), at_least_one=st.booleans())
def test_whole_entries_are_rebuilt_up_to_the_limit(
    records: list[tuple[int, Record, StoredProducer, bool]], limit: int, at_least_one: bool
) -> None:
    mapper = TimestampOffsets(10)
    entries = [
        entry_of(mapper, offset, fields_of(record, producer=producer))
        for offset, record, producer, _ in records
    ]
    rebuilt = rebuild_records(entries, mapper, FIRST_EPOCH, limit, at_least_one=at_least_one)
    found = records_of(rebuilt)

    assert [record.offset for record in found] == [offset for offset, *_ in records[: rebuilt.entries]]
    assert rebuilt.size <= limit or (at_least_one and len(found) == 1)
    if rebuilt.entries < len(entries):
        more = rebuild_records(
            entries[: rebuilt.entries + 1], mapper, FIRST_EPOCH, UNLIMITED, at_least_one=True
        )
        assert more.size > limit


@pytest.mark.parametrize("count", [2, 3, 50])
def test_uniform_records_of_a_transaction_are_packed_like_others(count: int) -> None:
    mapper = DenseOffsets()
    entries = [
        entry_of(mapper, offset, fields_of(Record(b"v", b"k"), producer=(b"7:3", True)))
        for offset in range(count)
    ]
    run = pack_run(entries, mapper, UNLIMITED)
    rebuilt = rebuild_records(entries, mapper, FIRST_EPOCH, UNLIMITED, at_least_one=True)
    slow = rebuild_one_by_one(entries, mapper, FIRST_EPOCH, UNLIMITED, codec=Codec.NONE, at_least_one=True)

    assert run is not None
    assert (7, 3, True) == (run.kind.producer_id, run.kind.producer_epoch, run.kind.is_transactional)
    assert b"".join(rebuilt.buffers) == b"".join(slow.buffers)
    # A record that is not of the transaction, or of another one, is not part of the run.
    for other in ((b"7:3", False), (b"8:3", True)):
        entries[1] = entry_of(mapper, 1, fields_of(Record(b"v", b"k"), producer=other))
        assert pack_run(entries, mapper, UNLIMITED) is None


def test_each_marker_has_its_own_batch() -> None:
    mapper = DenseOffsets()
    fields: list[Fields] = [
        fields_of(Record(b"v"), producer=(b"7:0", True)),
        [b"$control", b"abort", b"timestamp", b"5", b"$coordinator", b"3", b"$producer", b"7:1"],
        [b"$control", b"commit", b"timestamp", b"5", b"$coordinator", b"3", b"$producer", b"7:1"],
        fields_of(Record(b"v"), producer=(b"7:1", True)),
        # Of another client: no marker without a producer, or with another result.
        [b"$control", b"commit", b"value", b"v"],
        [b"$control", b"maybe", b"value", b"v", b"$producer", b"7:1"],
    ]
    entries = [entry_of(mapper, offset, each) for offset, each in enumerate(fields)]
    rebuilt = rebuild_records(entries, mapper, FIRST_EPOCH, UNLIMITED, codec=Codec.LZ4, at_least_one=True)
    found = parse_batches(b"".join(rebuilt.buffers))
    markers = [each for each in found if each.is_control]

    assert [1, 2] == [each.base_offset for each in markers]
    assert [ControlType.ABORT, ControlType.COMMIT] == [control_type(each) for each in markers]
    assert [(True, 7, 1, 1)] * 2 == [
        (each.is_transactional, each.producer_id, each.producer_epoch, each.record_count) for each in markers
    ]
    assert [0, 3, 4, 5] == [each.base_offset for each in found if not each.is_control]


def test_batch_belongs_to_one_leader_epoch() -> None:
    mapper = DenseOffsets()
    entries = [entry_of(mapper, offset, fields_of(Record(b"v"))) for offset in range(10)]
    epochs = [Epoch(0, 0), Epoch(3, 4), Epoch(4, 4), Epoch(5, 8)]
    rebuilt = rebuild_records(entries, mapper, epochs, UNLIMITED, at_least_one=True)
    found = [
        (each.base_offset, each.partition_leader_epoch) for each in parse_batches(b"".join(rebuilt.buffers))
    ]

    assert [(0, 0), (4, 4), (8, 5)] == found


def test_entries_without_an_offset_are_counted() -> None:
    ids = [b"5-1022", b"5-1023", b"5-1024", b"5-99999", b"6-0", b"18446744073709551615-0"]
    entries = [(entry_id, fields_of(Record(b"v"))) for entry_id in ids]
    rebuilt = rebuild_records(entries, TimestampOffsets(10), FIRST_EPOCH, UNLIMITED, at_least_one=True)

    assert (6, 3) == (rebuilt.entries, rebuilt.skipped)
    assert [6142, 6143, 6144] == [record.offset for record in records_of(rebuilt)]


def test_malformed_timestamp_is_replaced_by_the_time_of_the_entry() -> None:
    entries = [(b"%d-0" % ms, [b"value", b"v", b"timestamp", b"soon"]) for ms in (5, 6, 9)]
    rebuilt = rebuild_records(entries, TimestampOffsets(10), FIRST_EPOCH, UNLIMITED, at_least_one=True)

    assert [5, 6, 9] == [record.timestamp for record in records_of(rebuilt)]


@pytest.mark.parametrize(
    "fields, key, value, record_headers",
    [
        ([b"value", b"v"], None, b"v", ()),
        ([b"a", b"1", b"b", b"2"], None, b'{"a":"1","b":"2"}', ()),
        ([b"a", b"1", b"value", b"v"], None, b"v", ()),
        ([b"key", b"k", b"a", b"1"], b"k", b'{"a":"1"}', ()),
        ([b"key", b"k", b"header.h", b"x"], b"k", None, (("h", b"x"),)),
        ([b"$mine", b"?", b"value", b"v"], None, b"v", ()),
        ([b"$producer", b"nonsense", b"value", b"v"], None, b"v", ()),
        ([b"a", b"1", b"a", b"2"], None, b'{"a":"2"}', ()),
        ([b"", b""], None, b'{"":""}', ()),
    ],
)
def test_foreign_fields_become_a_record(
    fields: Fields, key: bytes | None, value: bytes | None, record_headers: Headers
) -> None:
    record = parse(fields, 77)

    assert (record.timestamp, record.key, record.value, record.headers) == (77, key, value, record_headers)


def test_whole_batches_are_stamped_and_otherwise_unchanged() -> None:
    mapper = DenseOffsets()
    sent = [
        bytes(build_batch([(n, T0, None, b"v", ()) for n in range(count)], codec=Codec.LZ4))
        for count in (3, 2)
    ]
    entries = [entry_of(mapper, 2, [b"$batch", sent[0]]), entry_of(mapper, 4, [b"$batch", sent[1]])]
    rebuilt = rebuild_batches(entries, mapper, [Epoch(0, 0), Epoch(1, 3)], UNLIMITED, at_least_one=True)
    joined = b"".join(rebuilt.buffers)
    found = parse_batches(joined)

    assert [(0, 0), (3, 1)] == [(each.base_offset, each.partition_leader_epoch) for each in found]
    assert [each[16:] for each in sent] == [bytes(each.buffer[16:]) for each in found]
    assert rebuilt.size == len(joined)


def test_log_append_time_is_stamped_on_whole_batches() -> None:
    mapper = DenseOffsets()
    sent = bytes(build_batch([(0, T0, None, b"v", ()), (1, T0 + 9, None, b"w", ())]))
    rebuilt = rebuild_batches(
        [entry_of(mapper, 1, [b"$batch", sent, b"$time", b"12345"])],
        mapper,
        FIRST_EPOCH,
        UNLIMITED,
        at_least_one=True,
    )

    assert [12345, 12345] == [record.timestamp for record in records_of(rebuilt)]


@pytest.mark.parametrize("content", [b"", b"x" * 60, b"x" * 100])
def test_malformed_batch_is_read_as_a_foreign_entry(content: bytes) -> None:
    mapper = DenseOffsets()
    entries = [entry_of(mapper, 5, [b"$batch", content, b"value", b"v"])]
    rebuilt = rebuild_batches(entries, mapper, FIRST_EPOCH, UNLIMITED, at_least_one=True)

    assert [(5, b"v")] == [(record.offset, record.value) for record in records_of(rebuilt)]


def test_whole_batches_stop_at_the_limit() -> None:
    mapper = DenseOffsets()
    sent = bytes(build_batch([(0, T0, None, b"x" * 1000, ())]))
    entries = [entry_of(mapper, offset, [b"$batch", sent]) for offset in range(5)]
    sizes = [
        rebuild_batches(entries, mapper, FIRST_EPOCH, limit, at_least_one=at_least_one).entries
        for limit, at_least_one in ((0, False), (0, True), (len(sent) * 3, True), (len(sent) * 4 - 1, False))
    ]

    assert [0, 1, 3, 3] == sizes


def test_packed_batch_contains_its_producer() -> None:
    raw = build_batch([(0, T0, None, b"v", ())], producer_id=7, producer_epoch=3, base_sequence=2**31 - 1)
    found = packed_batch(RecordBatch(raw), TopicConfig())

    assert [b"7", b"3", b"%d" % (2**31 - 1), b"%d" % (2**31 - 1), b"1"] == arguments_of(found)[:5]
