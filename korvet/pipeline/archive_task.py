"""What a worker does for the archive: fetch pieces of partitions, decode them, and write them to files.

Reading and writing happen in one step; nothing of the records passes through Spark. Fetching runs on Trio in a thread
of its own, a few answers ahead of who decodes. What a worker holds is bounded: those answers, and CHUNK_BYTES of rows
that become files at once, one per date.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
from attrs import define, field, frozen

from korvet.client import TopicPartition
from korvet.lake.files import ArchivedRange
from korvet.lake.location import Location
from korvet.lake.schema import HEADERS, archive_table
from korvet.lake.writing import RangeWriter
from korvet.pipeline.ahead import Ahead
from korvet.pipeline.batches import Columns, decode
from korvet.pipeline.connecting import Connecting
from korvet.pipeline.fetching import READ_COMMITTED, Fetched, Fetcher
from korvet.protocol.errors import KafkaError, OffsetOutOfRange

FETCH_BYTES = 8 * 1024 * 1024
# Answers that wait to be decoded.
AHEAD = 2
# Rows that are written together.
CHUNK_BYTES = 48 * 1024 * 1024
# So many answers without batches in a row, from a log that goes on, mean that there are none up to its end.
EMPTY_ANSWERS = 5


@frozen
class Piece:
    """Offsets of one partition, from `start` up to, without, `end`, to be written to the table at `location`.

    No more than about `max_bytes` of it: then it ends earlier. `covered` is for RangeWriter.
    """

    location: Location
    tp: TopicPartition
    start: int
    end: int
    covered: int
    max_bytes: int


@frozen
class Outcome:
    """What became of a piece: its ranges in order, as far as it got, and what went wrong."""

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
    """Write pieces one after the other. What is wrong with one is told in its outcome, and the others go on."""
    fetching = Fetching(connecting, pieces)
    fetching.start()
    try:
        for piece in pieces:
            yield PieceWriter(piece).write(fetching)
    finally:
        fetching.stop()


@define
class PieceWriter:
    """Collects the rows of a piece, and writes them whenever there are CHUNK_BYTES of them."""

    piece: Piece
    _writer: RangeWriter = field(init=False)
    _ranges: list[ArchivedRange] = field(factory=list, init=False)
    _tables: list[pa.Table] = field(factory=list, init=False)
    _waiting_bytes: int = field(default=0, init=False)
    _row_bytes: int = field(default=0, init=False)
    _written: int = field(init=False)  # up to where rows are in files, or there were none

    def __attrs_post_init__(self) -> None:
        self._writer = RangeWriter(self.piece.location, self.piece.tp.partition, self.piece.covered)
        self._written = self.piece.start

    def write(self, fetching: Fetching) -> Outcome:
        error = ""
        try:
            self._write(fetching)
        except (KafkaError, OSError, ExceptionGroup) as failure:
            while isinstance(failure, ExceptionGroup):
                failure = failure.exceptions[0]
            error = f"{self.piece.tp}: {failure}"
        return Outcome(self.piece.tp, self.piece.start, tuple(self._ranges), error)

    def _write(self, fetching: Fetching) -> None:
        piece = self.piece
        for fetched in fetching.answers(piece):
            for columns in decode(fetched.batches, start=piece.start, end=piece.end, headers=True):
                self._add(columns)
            if self._waiting_bytes >= CHUNK_BYTES:
                self._flush(min(fetched.next_offset, piece.end))
            if self._row_bytes >= piece.max_bytes:
                self._flush(min(fetched.next_offset, piece.end))
                fetching.skip(piece)
                return
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
            self._ranges.append(ArchivedRange(self.piece.tp.partition, self._written, end))
        else:
            self._ranges.append(self._writer.write(rows, self._written, end))
        self._written = end


# Of which piece, and what: an answer, what is wrong with the piece, or None for its end.
Answer = tuple[int, Fetched | KafkaError | None]


@define
class Fetching:
    """Fetches pieces in a thread, ahead of who asks for their answers; `stop` has to be called at the end."""

    connecting: Connecting
    pieces: Sequence[Piece]
    _ahead: Ahead[Answer] = field(init=False)
    _skipped: set[int] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._ahead = Ahead(self._fetch_all, AHEAD)

    def start(self) -> None:
        self._ahead.start("fetching")

    def answers(self, piece: Piece) -> Iterator[Fetched]:
        """What is fetched of a piece; raises what went wrong with it, or with the whole connection."""
        index = self.pieces.index(piece)
        for number, answer in iter(self._ahead.get, None):
            if number != index:
                continue  # left over from one that was skipped
            if answer is None:
                return
            if isinstance(answer, KafkaError):
                raise answer
            yield answer

    def skip(self, piece: Piece) -> None:
        """No more of this one."""
        self._skipped.add(self.pieces.index(piece))

    def stop(self) -> None:
        """Let the thread end, at the latest when the Fetch it waits for is answered."""
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
