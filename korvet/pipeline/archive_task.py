"""The work of an archive task: fetch pieces of partitions, decode them, and write them to files.

Reading and writing happen in one step; records do not pass through Spark. Fetching runs on Trio in a separate thread,
a few responses ahead of decoding. Files of few records are written in threads, since that is mostly a wait for the
store. Memory is bounded: those responses, CHUNK_BYTES of rows that are written together, to one file per date, and
SMALL_BYTES for each of a few pieces that wait for a thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import pyarrow as pa
from attrs import define, evolve, field, frozen

from korvet.client import TopicPartition
from korvet.client.isolation import READ_COMMITTED
from korvet.lake.file_writing import RangeWriter
from korvet.lake.files import ArchivedRange
from korvet.lake.location import Location
from korvet.lake.parallel import results
from korvet.lake.schema import HEADERS, archive_table
from korvet.pipeline.cluster import Connecting
from korvet.pipeline.fetching import Fetched, Fetcher
from korvet.pipeline.prefetch import Ahead
from korvet.pipeline.record_columns import Columns, decode
from korvet.protocol.errors import KafkaError, OffsetOutOfRange

FETCH_BYTES = 8 * 1024 * 1024
# Prefetched responses that wait to be decoded.
AHEAD = 2
# Bytes of rows that are written together.
CHUNK_BYTES = 48 * 1024 * 1024
# Bytes of rows that are written in a thread.
SMALL_BYTES = 1024 * 1024
# Consecutive responses without batches, before the log's end, after which the rest is taken to be empty.
EMPTY_ANSWERS = 5


@frozen
class Piece:
    """Offsets of one partition in [start, end), to be written to the table at `location`.

    The piece ends earlier after about `max_bytes` of rows. `covered` is for RangeWriter.
    """

    location: Location
    tp: TopicPartition
    start: int
    end: int
    covered: int
    max_bytes: int


@frozen
class Outcome:
    """Result of a piece: the ranges written, in order, and an error."""

    tp: TopicPartition
    start: int
    ranges: tuple[ArchivedRange, ...]
    error: str = ""

    def to_json(self) -> str:
        return json.dumps([*self.tp, self.start, [item.to_dict() for item in self.ranges], self.error])

    @classmethod
    def from_json(cls, text: str) -> Outcome:
        topic, partition, start, ranges, error = json.loads(text)
        return cls(
            TopicPartition(topic, partition), start, tuple(map(ArchivedRange.from_dict, ranges)), error
        )


def write_pieces(connecting: Connecting, pieces: Sequence[Piece]) -> Iterator[Outcome]:
    """Write pieces, and yield their outcomes in order. An error is part of an outcome, and the next pieces go on."""
    fetching = Fetching(connecting, pieces)
    fetching.start()
    writers = (PieceWriter(piece).take(fetching) for piece in pieces)
    try:
        for _, outcome in results(PieceWriter.finish, writers):
            yield outcome
    finally:
        fetching.stop()


@define
class PieceWriter:
    """Buffers the rows of a piece, and writes them in chunks of CHUNK_BYTES: call `take`, then `finish`."""

    piece: Piece
    _writer: RangeWriter = field(init=False)
    _ranges: list[ArchivedRange] = field(factory=list, init=False)
    _tables: list[pa.Table] = field(factory=list, init=False)
    _waiting_bytes: int = field(default=0, init=False)
    _row_bytes: int = field(default=0, init=False)
    # Records of aborted transactions, and markers, since the last flush.
    _aborted: int = field(default=0, init=False)
    _markers: int = field(default=0, init=False)
    _written: int = field(init=False)  # all rows below this offset are in files
    _end: int = field(init=False)  # all rows below this offset are in files, or wait to be written
    _error: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._writer = RangeWriter(self.piece.location, self.piece.tp.partition, self.piece.covered)
        self._written = self._end = self.piece.start

    def take(self, fetching: Fetching) -> Self:
        """Fetch the piece and write it, except for a small rest."""
        with self._noting_errors():
            self._take(fetching)
        return self

    def finish(self) -> Outcome:
        """Write the rest. It does not wait for other pieces, and may run in any thread."""
        with self._noting_errors():
            if not self._error:
                self._flush(self._end)
        return Outcome(self.piece.tp, self.piece.start, tuple(self._ranges), self._error)

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        try:
            yield
        except (KafkaError, OSError, ExceptionGroup) as failure:
            while isinstance(failure, ExceptionGroup):
                failure = failure.exceptions[0]
            self._error = f"{self.piece.tp}: {failure}"

    def _take(self, fetching: Fetching) -> None:
        piece = self.piece
        for fetched in fetching.answers(piece):
            for columns in decode(fetched.batches, start=piece.start, end=piece.end, headers=True):
                self._add(columns)
            first = max(piece.start, fetched.offset)
            self._aborted += fetched.passing.aborted_records(first, piece.end)
            self._markers += fetched.passing.marker_count(first, piece.end)
            if self._waiting_bytes >= CHUNK_BYTES:
                self._flush(min(fetched.next_offset, piece.end))
            if self._row_bytes >= piece.max_bytes:
                self._flush(min(fetched.next_offset, piece.end))
                fetching.skip(piece)
                return
        self._end = piece.end
        if self._waiting_bytes > SMALL_BYTES:
            self._flush(piece.end)

    def _add(self, columns: Columns) -> None:
        tp = self.piece.tp
        headers = columns.headers
        table = archive_table(
            tp.topic,
            tp.partition,
            columns.offsets,
            columns.timestamps,
            columns.timestamp_types,
            columns.keys,
            columns.values,
            pa.nulls(len(columns.offsets), HEADERS) if headers is None else headers,
        )
        self._tables.append(table)
        self._waiting_bytes += table.nbytes
        self._row_bytes += table.nbytes

    def _flush(self, end: int) -> None:
        if end == self._written and not self._tables:
            return
        rows = pa.concat_tables(self._tables) if self._tables else None
        self._tables.clear()
        self._waiting_bytes = 0
        if rows is None:
            written = ArchivedRange(self.piece.tp.partition, self._written, end)
        else:
            written = self._writer.write(rows, self._written, end)
        self._ranges.append(evolve(written, aborted=self._aborted, markers=self._markers))
        self._aborted = self._markers = 0
        self._written = self._end = end


# The piece's index, with a response, the error of the piece, or None at its end.
Answer = tuple[int, Fetched | KafkaError | None]


@define
class Fetching:
    """Prefetches pieces in a thread; call `stop` at the end."""

    connecting: Connecting
    pieces: Sequence[Piece]
    _ahead: Ahead[Answer] = field(init=False)
    _skipped: set[int] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._ahead = Ahead(self._fetch_all, AHEAD)

    def start(self) -> None:
        self._ahead.start("fetching")

    def answers(self, piece: Piece) -> Iterator[Fetched]:
        """Yield the responses for a piece. Raises its error, or the connection's."""
        index = self.pieces.index(piece)
        for number, answer in iter(self._ahead.get, None):
            if number != index:
                continue  # left over from a skipped piece
            if answer is None:
                return
            if isinstance(answer, KafkaError):
                raise answer
            yield answer

    def skip(self, piece: Piece) -> None:
        """Stop fetching a piece."""
        self._skipped.add(self.pieces.index(piece))

    def stop(self) -> None:
        """Let the thread end, at the latest when its current Fetch is answered."""
        self._ahead.stop()

    async def _fetch_all(self, ahead: Ahead[Answer]) -> None:
        async with self.connecting.open() as client:
            fetcher = Fetcher(client, READ_COMMITTED)
            for index, piece in enumerate(self.pieces):
                if ahead.is_stopped:
                    return
                try:
                    await self._fetch(fetcher, index, piece)
                except KafkaError as error:
                    ahead.put((index, error))
                else:
                    ahead.put((index, None))

    async def _fetch(self, fetcher: Fetcher, index: int, piece: Piece) -> None:
        position = piece.start
        empty = 0
        while position < piece.end and index not in self._skipped and not self._ahead.is_stopped:
            fetched = await fetcher.fetch(piece.tp, position, max_bytes=FETCH_BYTES)
            if fetched.next_offset > position:
                empty = 0
                position = fetched.next_offset
                self._ahead.put((index, fetched))
                continue
            empty += 1
            if fetched.end_offset < piece.end:
                raise OffsetOutOfRange(
                    f"the log ends at {fetched.end_offset} now, before {piece.end}, where it was."
                )
            if empty == EMPTY_ANSWERS:
                return
