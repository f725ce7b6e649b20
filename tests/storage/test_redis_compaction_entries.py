"""The keys in entries, whoever wrote them, and what is left of each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from korvet.protocol.record_batch import RecordBatch, build_batch
from korvet.protocol.steps import at_once
from korvet.storage.compaction import Round
from korvet.storage.offsets import TimestampOffsets
from korvet.storage.redis.compaction.entries import EntryReader
from korvet.storage.redis.read.entries import Entry

MAPPER = TimestampOffsets(10)


def reader(*, batches: bool = False, skips: bool = False) -> EntryReader:
    return EntryReader(MAPPER, batches, skips)


def new_round() -> Round:
    return Round(100, start=0, newest=2**62, tombstones_end=MAPPER.offset(b"1000-0") or 0)


def entries(*fields: Sequence[bytes]) -> list[Entry]:
    """Return entries with the IDs 1-0, 2-0, …."""
    return [(b"%d-0" % number, list(each)) for number, each in enumerate(fields, 1)]


def left(part: Sequence[Entry], read: EntryReader | None = None) -> list[bytes]:
    """Compact entries, and return the IDs of those that are left."""
    read, round_ = read or reader(), new_round()
    assert at_once(read.note(part, round_, None)) is None
    return [each.entry_id for each in at_once(read.left(part, round_))]


USUAL = (b"key", b"a", b"value", b"1", b"timestamp", b"1700000000000")


@pytest.mark.parametrize(
    "again",
    [
        USUAL,
        (*USUAL, b"$producer", b"7:0"),
        (*USUAL, b"$transactional", b"1", b"$producer", b"7:0"),
        (*USUAL, b"header.x", b"1", b"$transactional", b"1", b"$producer", b"7:0"),
        (*USUAL, b"$transactional", b"1", b"$producer", b"nobody"),
        (b"key", b"a", b"value", b"2", b"timestamp", b"nonsense"),
        (b"key", b"a", b"value", b"2"),
        (b"timestamp", b"1", b"value", b"2", b"key", b"a"),
        (b"key", b"a", b"name", b"bob"),
        (*USUAL, b"header.x", b"1"),
        (b"key", b"b", b"value", b"1", b"timestamp", b"1", b"key", b"a"),
    ],
)
@pytest.mark.parametrize("skips", [False, True])
def test_key_is_found_in_entries_of_any_shape(again: Sequence[bytes], *, skips: bool) -> None:
    assert [b"2-0"] == left(entries(USUAL, again), reader(skips=skips))
    assert [b"2-0"] == left(entries(again, USUAL), reader(skips=skips))


def test_long_keys_are_distinguished() -> None:
    long = (b"key", b"x" * 100, *USUAL[2:])
    longer = (b"key", b"x" * 101, *USUAL[2:])

    assert [b"2-0", b"3-0"] == left(entries(long, longer, long))


def test_keyless_and_control_entries_are_kept() -> None:
    part = entries((b"value", b"1"), (b"key", b"a", b"$control", b"1"), USUAL)

    assert [b"1-0", b"2-0", b"3-0"] == left(part)


@pytest.mark.parametrize("batches", [False, True])
@pytest.mark.parametrize("extra", [(), (b"header.x", b"1")])
def test_aborted_entries_are_dropped_and_supersede_none(extra: Sequence[bytes], *, batches: bool) -> None:
    """Entries 2 and 5 belong to aborted transactions of producer 7, entries 3 and 7 to committed ones."""
    mine, others = (
        (*USUAL, *extra, b"$transactional", b"1", b"$producer", producer) for producer in (b"7:0", b"8:0")
    )
    abort = (b"$control", b"abort", b"timestamp", b"1", b"$coordinator", b"0", b"$producer", b"7:0")
    part = entries(USUAL, mine, others, abort, mine, abort, (b"value", b"1"))
    read, round_ = reader(batches=batches), new_round()
    for first, marker in ((b"2-0", b"4-0"), (b"5-0", b"6-0")):
        round_.transactions.add_aborted(7, MAPPER.offset(first) or 0, MAPPER.offset(marker) or 0)
    assert at_once(read.note(part, round_, None)) is None

    # Markers of this round's records stay; a round without records drops them.
    found = [each.entry_id for each in at_once(read.left(part, round_))]
    assert [b"3-0", b"4-0", b"6-0", b"7-0"] == found
    rest = [entry for entry in part if entry[0] in found]
    again = [each.entry_id for each in at_once(read.left(rest, round_))]
    assert [b"3-0", b"7-0"] == again


def test_entry_without_offset_is_kept_and_supersedes_no_other() -> None:
    part: list[Entry] = [(b"1-0", list(USUAL)), (b"1-5000", list(USUAL)), (b"2-0", [b"key", b"b"])]

    assert [b"1-0", b"1-5000"] == left(part, reader(skips=True))


def test_entry_with_a_key_and_no_value_is_a_tombstone() -> None:
    tombstone = (b"key", b"t", b"timestamp", b"1")

    assert [b"2-0"] == left(entries(tombstone, (b"key", b"u", b"value", b"")))


def test_noting_ends_at_the_first_too_young_record() -> None:
    part = entries(USUAL, (b"key", b"b", b"value", b"", b"timestamp", b"1700000000001"), USUAL)

    assert MAPPER.offset(b"2-0") == at_once(reader().note(part, new_round(), 1_700_000_000_000))


def test_compacted_batch_keeps_its_entry_id_and_other_fields() -> None:
    data = bytes(build_batch([(0, 1, b"a", b"1", ()), (1, 1, b"b", b"2", ())]))
    part = [(b"1-7", [b"$batch", data, b"$time", b"5"]), (b"2-0", [b"key", b"b", b"name", b"bob"])]
    read, round_ = reader(batches=True), new_round()
    at_once(read.note(part, round_, None))
    first, second = at_once(read.left(part, round_))
    smaller = RecordBatch((first.fields or [])[1])

    assert (b"1-7", [b"$batch", b"$time", b"5"]) == (first.entry_id, [first.fields[0], *first.fields[2:]])
    assert (1, 1, len(smaller.buffer)) == (smaller.record_count, smaller.last_offset_delta, first.size)
    assert (b"2-0", None) == second[:2]
