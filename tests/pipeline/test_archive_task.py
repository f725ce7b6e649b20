from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from attrs import evolve

from korvet.client import TopicPartition
from korvet.client.isolation import Passing, Span
from korvet.lake.file_writing import RangeWriter
from korvet.lake.files import ArchivedRange
from korvet.lake.location import Location
from korvet.lake.table import LakeTable
from korvet.lake.verification import wrongs
from korvet.pipeline import archive_task
from korvet.pipeline.archive import following
from korvet.pipeline.archive_plan import Bounds, Rows, TopicPlan, bounded, dealt
from korvet.pipeline.archive_task import Fetching, Outcome, Piece, PieceWriter, write_pieces
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.fetching import Fetched
from korvet.protocol.errors import CorruptMessage, KafkaError
from korvet.protocol.record_batch import RecordBatch, build_batch, parse_batches
from tests.lake.support import NOON, TOPIC, TOPIC_ID, lake, written

LAST = 2**40


def batch(start: int, count: int, *, size: int = 10) -> RecordBatch:
    records = [(delta, NOON, None, bytes(size), ()) for delta in range(count)]
    (parsed,) = parse_batches(bytes(build_batch(records, base_offset=start)))
    return parsed


def answer(next_offset: int, *batches: RecordBatch) -> Fetched:
    return Fetched(0, batches, next_offset, LAST, 0)


class Answers(Fetching):
    """A fetcher with prepared responses."""

    def __init__(self, *answers: Fetched | KafkaError) -> None:
        self.given = list(answers)
        self.asked = 0
        self.skipped = False

    def answers(self, piece: Piece) -> Iterator[Fetched]:
        for each in self.given:
            self.asked += 1
            if isinstance(each, KafkaError):
                raise each
            yield each

    def skip(self, piece: Piece) -> None:
        self.skipped = True


class EachOnce(Answers):
    """A fetcher with a batch for each piece."""

    def start(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def answers(self, piece: Piece) -> Iterator[Fetched]:
        yield answer(piece.end, batch(piece.start, 10))


def piece(folder: Path, start: int, end: int, *, max_bytes: int = 10**9) -> Piece:
    return Piece(lake(folder), TopicPartition(TOPIC, 0), start, end, start, max_bytes)


def bounds(outcome: Outcome) -> list[tuple[int, int, int]]:
    return [(item.start, item.end, item.count) for item in outcome.ranges]


def test_trailing_offsets_without_records_belong_to_the_range(tmp_path: Path) -> None:
    outcome = PieceWriter(piece(tmp_path, 0, 20)).take(Answers(answer(10, batch(0, 10)), answer(20))).finish()

    assert bounds(outcome) == [(0, 20, 10)]
    assert outcome.error == ""


def test_range_of_only_control_batches_has_no_files(tmp_path: Path) -> None:
    outcome = PieceWriter(piece(tmp_path, 5, 20)).take(Answers(answer(20))).finish()

    assert outcome.ranges == (ArchivedRange(0, 5, 20),)


def test_aborted_records_and_markers_are_counted_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records 0 to 9 are archived, 10 to 14 were aborted, 15 is the marker; then again from 16 on."""
    monkeypatch.setattr(archive_task, "CHUNK_BYTES", 1000)
    answers = []
    for start in (0, 16):
        passing = Passing()
        passing.aborted.append(Span(start + 10, start + 15))
        passing.markers.append(Span(start + 15, start + 16))
        taken = answer(start + 16, batch(start, 10, size=200))
        answers.append(evolve(taken, offset=start, passing=passing))
    outcome = PieceWriter(piece(tmp_path, 0, 30)).take(Answers(*answers)).finish()
    table = LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    table = table.commit(outcome.ranges)

    assert [(0, 16, 10, 5, 1), (16, 30, 10, 4, 0)] == [
        (item.start, item.end, item.count, item.aborted, item.markers) for item in outcome.ranges
    ]
    assert outcome == Outcome.from_json(outcome.to_json())
    assert [[0, 0, 16, 5, 1], [0, 16, 30, 4, 0]] == [
        entry for _, info in table.commits() for entry in info.get("korvet.skipped", [])
    ]
    assert [] == list(wrongs(table))


def test_buffered_records_are_flushed_to_files_by_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_task, "CHUNK_BYTES", 1000)
    answers = Answers(*(answer(start + 10, batch(start, 10, size=200)) for start in range(0, 40, 10)))
    outcome = PieceWriter(piece(tmp_path, 0, 40)).take(answers).finish()

    assert bounds(outcome) == [(0, 10, 10), (10, 20, 10), (20, 30, 10), (30, 40, 10)]


def test_piece_ends_early_when_it_exceeds_max_bytes(tmp_path: Path) -> None:
    answers = Answers(*(answer(start + 10, batch(start, 10, size=200)) for start in range(0, 40, 10)))
    outcome = PieceWriter(piece(tmp_path, 0, 40, max_bytes=3000)).take(answers).finish()

    assert bounds(outcome) == [(0, 20, 20)]
    assert answers.skipped
    assert answers.asked == 2


def test_outcome_contains_the_ranges_written_before_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_task, "CHUNK_BYTES", 1)
    answers = Answers(answer(10, batch(0, 10)), CorruptMessage("The CRC is wrong."))
    outcome = PieceWriter(piece(tmp_path, 0, 40)).take(answers).finish()

    assert bounds(outcome) == [(0, 10, 10)]
    assert outcome.error == "orders-0: The CRC is wrong."
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_only_a_small_rest_waits_for_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_task, "SMALL_BYTES", 1000)
    large = PieceWriter(piece(tmp_path / "large", 0, 10)).take(Answers(answer(10, batch(0, 10, size=200))))
    small = PieceWriter(piece(tmp_path / "small", 0, 10)).take(Answers(answer(10, batch(0, 1))))

    assert [1, 0] == [len([*(tmp_path / name).rglob("*.parquet")]) for name in ("large", "small")]
    assert [10, 1] == [each.finish().ranges[0].count for each in (large, small)]


def test_small_pieces_wait_for_the_store_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that answers two writes at once, and refuses all of the next two."""
    together = Barrier(2, timeout=10)
    write = RangeWriter.write

    def written_together(writer: RangeWriter, rows: pa.Table, start: int, end: int) -> ArchivedRange:
        together.wait()
        if start >= 20:
            raise OSError("The store is away.")
        return write(writer, rows, start, end)

    monkeypatch.setattr(RangeWriter, "write", written_together)
    monkeypatch.setattr(archive_task, "Fetching", lambda _connecting, _pieces: EachOnce())
    pieces = [piece(tmp_path, start, start + 10) for start in (0, 10, 20, 30)]
    outcomes = [*write_pieces(Connecting("localhost:9092"), pieces)]

    assert [bounds(each) for each in outcomes] == [[(0, 10, 10)], [(10, 20, 10)], [], []]
    assert [each.error for each in outcomes] == ["", "", *2 * ["orders-0: The store is away."]]


# --- Which outcomes follow each other, and who gets what --------------------------------------------------


@pytest.fixture
def table(tmp_path: Path) -> LakeTable:
    created = LakeTable.open_or_create(lake(tmp_path), TOPIC, TOPIC_ID)
    return created.commit([ArchivedRange(0, 0, 0)])


def outcome(*ranges: ArchivedRange) -> Outcome:
    return Outcome(TopicPartition(TOPIC, 0), ranges[0].start, ranges)


def test_outcomes_are_committed_up_to_the_first_gap(table: LakeTable) -> None:
    first, third = written(table, 0, 10), written(table, 20, 30)

    assert following(table, 0, [outcome(first), outcome(third)]) == [first]


def test_outcome_after_a_piece_without_records_waits(table: LakeTable, tmp_path: Path) -> None:
    """Its files' names would leave a gap: they begin where the piece does, not where the last file ends."""
    empty, behind = ArchivedRange(0, 0, 10), written(table, 10, 20, covered=10)

    assert following(table, 0, [outcome(empty), outcome(behind)]) == [empty]


def plan(table: LakeTable, ends: Sequence[int]) -> TopicPlan:
    known = {partition: Bounds(0, end) for partition, end in enumerate(ends)}
    return TopicPlan(table, known, dict(enumerate(ends)))


def spans(pieces: Sequence[Piece]) -> list[tuple[int, int, int]]:
    return [(each.tp.partition, each.start, each.end) for each in pieces]


def test_few_partitions_are_split_for_all_cores(table: LakeTable) -> None:
    assert spans(plan(table, [90_000]).pieces(3, None)) == [
        (0, 0, 30_000),
        (0, 30_000, 60_000),
        (0, 60_000, 90_000),
    ]


def test_pieces_are_cut_by_bytes_while_the_offset_density_is_unknown(
    table: LakeTable,
) -> None:
    end = 2**50
    (whole,) = plan(table, [end]).pieces(2, None)
    cut = plan(table, [end]).pieces(2, Rows(bytes_each=100.0, offsets_each=2.0**20))

    assert (whole.start, whole.end, whole.max_bytes) == (0, end, 64 * 1024 * 1024)
    assert len(cut) == 4
    assert cut[0].end == 1_000_000 * 2**20


def test_offsets_are_distributed_evenly_over_tasks() -> None:
    pieces = [
        Piece(Location.parse("/lake"), TopicPartition(TOPIC, number), 0, size, 0, 1)
        for number, size in enumerate([100, 10, 10, 10, 10, 60, 5, 5, 5, 5])
    ]
    tasks = dealt(pieces, 1)

    assert max(sum(each.end for each in task) for task in tasks) == 100
    assert sum(map(len, tasks)) == 10
    assert len(tasks) == 4


def test_pieces_of_a_round_are_bounded_by_bytes(tmp_path: Path) -> None:
    pieces = [piece(tmp_path, start, start + 100) for start in (0, 100, 200, 300)]

    assert 3 == len(bounded(pieces, 250, {TOPIC: Rows(1.0, 1.0)}))
    assert 1 == len(bounded(pieces, 1, {TOPIC: Rows(1.0, 1.0)}))
    assert pieces == bounded(pieces, 10**6, {TOPIC: Rows(1.0, 1.0)})


def test_each_partition_has_a_share_of_a_round_while_its_rows_are_unknown(tmp_path: Path) -> None:
    first = piece(tmp_path, 0, 100)
    others = [evolve(first, tp=TopicPartition(TOPIC, number)) for number in (1, 2)]
    behind = piece(tmp_path, 100, 200)

    chosen = bounded([first, *others, behind], 300, {TOPIC: None})

    assert [evolve(each, max_bytes=100) for each in (first, *others)] == chosen
