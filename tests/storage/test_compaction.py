"""The rules of compaction: when it is time, what a round keeps, and when tombstones go."""

from __future__ import annotations

import pytest

from korvet.protocol.compression import Codec
from korvet.protocol.record import RawRecord
from korvet.protocol.record_batch import RecordBatch, build_batch, decode_records, validate
from korvet.protocol.steps import at_once
from korvet.storage.compaction import (
    DIGEST_BYTES,
    MAX_MARKS,
    Cleaned,
    DecidedTransactions,
    KeyedRecord,
    Mark,
    Round,
    compacted,
    is_due,
    keyed,
    lag_limit,
    note_all,
    short,
)
from korvet.storage.interface import TopicConfig

DAY_MS = 86_400_000
RECORDS: list[RawRecord] = [
    (0, 100, b"a", b"1", ()),
    (1, 105, b"b", None, ()),
    (2, 90, None, b"3", ()),
    (3, 101, b"a", b"4", (("h", b"1"),)),
    (4, 102, b"c", b"5", ()),
]


def new_round(**options: int) -> Round:
    return Round(**{"max_keys": 100, "start": 0, "newest": 1000, "tombstones_end": 0, **options})


def batch(records: list[RawRecord] = RECORDS, **header: object) -> RecordBatch:
    return RecordBatch(build_batch(records, **{"base_offset": 10, **header}))


# --- How far, and since when ----------------------------------------------------------------------------------


def test_marks_survive_a_round_trip() -> None:
    cleaned = Cleaned((Mark(1838291543547904, 1_795_206_585_496), Mark(1838291543547905, -1)))

    assert cleaned == Cleaned.parse(str(cleaned).encode())
    assert Cleaned() == Cleaned.parse(b"")


def test_log_without_compaction_is_dirty_from_the_first_offset() -> None:
    assert (0, 0) == (Cleaned().end, Cleaned().tombstones_end(10**15, 0))


def test_tombstones_expire_delete_retention_ms_after_their_first_round() -> None:
    cleaned = Cleaned().after(10, 1000, DAY_MS).after(20, 5000, DAY_MS)

    assert 20 == cleaned.end
    assert [0, 10, 10, 20] == [
        cleaned.tombstones_end(now_ms, DAY_MS)
        for now_ms in (999 + DAY_MS, 1000 + DAY_MS, 4999 + DAY_MS, 5000 + DAY_MS)
    ]


def test_tombstones_do_not_expire_when_the_clock_steps_back() -> None:
    assert 0 == Cleaned().after(10, 1000, 100).tombstones_end(500, 100)


def test_only_the_newest_expired_mark_is_kept() -> None:
    cleaned = Cleaned()
    for number in range(1, 10):
        cleaned = cleaned.after(number, number * 1000, 2500)

    assert (Mark(6, 6000), Mark(7, 7000), Mark(8, 8000), Mark(9, 9000)) == cleaned.marks


def test_marks_are_bounded_and_tombstones_never_expire_early() -> None:
    cleaned = Cleaned()
    for number in range(1, 1000):
        cleaned = cleaned.after(number, number, DAY_MS)

    assert MAX_MARKS == len(cleaned.marks)
    for number in range(1, 1000):
        assert cleaned.tombstones_end(number + DAY_MS, DAY_MS) <= number
    assert 999 == cleaned.tombstones_end(999 + DAY_MS, DAY_MS)


# --- When -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clean, dirty, oldest_ms, expected",
    [
        (100, 0, 0, False),
        (0, 1, -1, True),
        (100, 100, -1, False),
        (100, 101, -1, True),
        (100, 1, 899, True),
        (100, 1, 900, False),
    ],
)
def test_log_is_due_by_its_dirty_ratio_or_its_age(
    clean: int, dirty: int, oldest_ms: int, *, expected: bool
) -> None:
    config = TopicConfig(max_compaction_lag_ms=100)

    assert expected == is_due(
        config, clean_bytes=clean, dirty_bytes=dirty, oldest_dirty_ms=oldest_ms, now_ms=1000
    )


def test_without_a_lag_no_record_is_too_young() -> None:
    assert [None, 700] == [lag_limit(TopicConfig(min_compaction_lag_ms=lag), 1000) for lag in (0, 300)]


# --- What stays -------------------------------------------------------------------------------------------------


def test_round_keeps_the_last_record_of_each_key_and_keyless_records() -> None:
    round_ = new_round()
    at_once(note_all(batch(), round_))
    records = [keyed(batch(), record) for record in RECORDS]

    assert [11, 12, 13, 14] == [record.offset for record in records if round_.keeps(record)]


def test_records_of_keys_that_were_not_noted_are_kept() -> None:
    assert new_round().keeps(KeyedRecord(1, b"a", is_tombstone=False))


def test_round_keeps_unexpired_tombstones_and_the_newest_record() -> None:
    round_ = new_round(tombstones_end=10, newest=8)

    assert [False, True, True] == [
        round_.keeps(KeyedRecord(offset, b"%d" % offset, is_tombstone=True)) for offset in (7, 8, 10)
    ]


def test_round_removes_keyless_records_before_the_log_start() -> None:
    assert not new_round(start=5).keeps(KeyedRecord(4, None, is_tombstone=False))


def test_long_keys_are_replaced_by_a_digest() -> None:
    keys = [b"", b"a", b"x" * (DIGEST_BYTES - 1), b"x" * DIGEST_BYTES, b"x" * 10_000, short(b"x" * 10_000)]

    assert len(keys) == len({short(key) for key in keys})
    assert DIGEST_BYTES >= max(len(short(key)) for key in keys)


# --- Batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize("timestamp_type", [0, 1])
def test_compacted_batch_keeps_offsets_sequence_and_codec(codec: Codec, timestamp_type: int) -> None:
    whole = batch(
        codec=codec,
        timestamp_type=timestamp_type,
        producer_id=7,
        producer_epoch=3,
        base_sequence=40,
        partition_leader_epoch=5,
    )
    round_ = new_round()
    round_.note(b"c", 99)
    round_.note(b"b", 99)
    left = RecordBatch(at_once(compacted(whole, round_)))
    validate(left)

    kept = [RECORDS[at] for at in (0, 2, 3)]
    assert [(delta, *rest) for delta, _, *rest in kept] == [
        (delta, *rest) for delta, _, *rest in decode_records(left)
    ]
    assert (10, 4, 14, 3) == (left.base_offset, left.last_offset_delta, left.last_offset, left.record_count)
    assert (7, 3, 40, 44, 5) == (
        left.producer_id,
        left.producer_epoch,
        left.base_sequence,
        left.last_sequence,
        left.partition_leader_epoch,
    )
    assert (codec, timestamp_type) == (left.compression, left.timestamp_type)
    assert (105 if timestamp_type else 101) == left.max_timestamp


def test_batch_without_removed_records_is_not_rewritten() -> None:
    whole = batch()

    assert at_once(compacted(whole, new_round())) is whole.buffer


def test_batch_is_removed_when_all_its_keys_are_superseded() -> None:
    round_ = new_round()
    round_.note(b"a", 99)

    assert at_once(compacted(batch([RECORDS[0], RECORDS[3]]), round_)) is None


def test_control_and_damaged_batches_are_kept() -> None:
    control = batch([(0, 1, b"\0\0\0\0", b"", ())], is_control=True)
    broken = RecordBatch(bytes(batch().buffer[:61]) + b"\xff" * 20)
    round_ = new_round()
    round_.note(b"\0\0\0\0", 99)

    for each in (control, broken):
        at_once(note_all(each, round_))

        assert {b"\0\0\0\0": 99} == round_.latest
        assert at_once(compacted(each, round_)) is each.buffer


# --- Transactions ---------------------------------------------------------------------------------------------


def test_records_of_aborted_transactions_are_found_by_offset() -> None:
    decided = DecidedTransactions()
    for first, marker in ((10, 20), (30, 35), (40, 60)):
        decided.add_aborted(7, first, marker)

    aborted = [offset for offset in range(70) if decided.is_aborted(7, offset)]
    # Offsets of other producers' records are between them, too.
    assert [*range(10, 21), *range(30, 36), *range(40, 61)] == aborted
    assert not any(decided.is_aborted(8, offset) for offset in range(70))


def test_marker_waits_for_a_round_without_records_of_its_transaction() -> None:
    round_ = new_round(tombstones_end=100)

    assert not round_.drops_records(7, 10)
    assert not round_.drops_marker(7, 11)
    assert round_.drops_marker(7, 12)
    assert not round_.drops_marker(8, 100)


def test_aborted_batch_is_dropped_without_noting_its_keys() -> None:
    sent = batch(producer_id=7, producer_epoch=0, is_transactional=True)
    round_ = new_round()
    round_.transactions.add_aborted(7, 10, 20)
    at_once(note_all(sent, round_))

    assert {} == round_.latest
    assert at_once(compacted(sent, round_)) is None
