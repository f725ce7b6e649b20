"""Plan the archive's next round: topics, their bounds, and pieces of offsets for tasks.

Ends are last stable offsets: records after an open transaction wait until it is decided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from attrs import define, evolve, frozen

from korvet.client import EARLIEST, LATEST, Client, Topic, TopicPartition
from korvet.client.isolation import READ_COMMITTED
from korvet.lake.table import Gap, LakeTable
from korvet.pipeline.archive_task import Piece
from korvet.pipeline.counting import all_dense
from korvet.pipeline.fetching import Fetcher
from korvet.protocol.errors import KafkaError, OffsetOutOfRange, UnknownTopicOrPartition

# Target size of a piece in bytes of rows, and its limit when rows grow.
PIECE_BYTES = 256 * 1024 * 1024
PIECE_LIMIT_BYTES = 2 * PIECE_BYTES
LONGEST_PIECE_ROWS = 1_000_000
# Sizes for topics whose rows are unknown: with dense offsets in rows, otherwise in bytes.
FIRST_PIECE_ROWS = 100_000
FIRST_PIECE_BYTES = 64 * 1024 * 1024
# Pieces are not cut shorter to use more cores; that would not pay for a task.
SHORTEST_PIECE_ROWS = 20_000
# Pieces of one partition per core in one round, and tasks per core in one round.
PIECES_A_CORE = 2
TASKS_A_CORE = 4
LOG_START_ATTEMPTS = 5
NAME = re.compile(r"[a-zA-Z0-9._-]+")


@frozen
class Wanted:
    """The topics to archive: names, and for texts that are not valid names, patterns that match whole names."""

    names: tuple[str, ...]
    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Wanted:
        """Parse names and patterns, separated by commas. Raises ValueError with the accepted syntax."""
        words = [word for word in map(str.strip, text.split(",")) if word]
        if not words:
            raise ValueError("it names no topic; accepted: names and patterns, separated by commas")
        names = tuple(dict.fromkeys(word for word in words if NAME.fullmatch(word)))
        patterns = tuple(word for word in words if not NAME.fullmatch(word))
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is neither a name nor a regular expression: {error}") from None
        return cls(names, patterns)

    def chosen(self, topics: Mapping[str, Topic]) -> tuple[list[Topic], list[str]]:
        """Return the chosen topics, and the names without a topic. Patterns do not match internal topics."""
        matching = [
            topic
            for name, topic in topics.items()
            if name in self.names
            or (not topic.is_internal and any(re.fullmatch(pattern, name) for pattern in self.patterns))
        ]
        return matching, [name for name in self.names if name not in topics]


@frozen
class Bounds:
    """A partition's log start offset and last stable offset."""

    log_start_offset: int
    last_stable_offset: int


async def bounds_of(client: Client, topic: Topic) -> dict[int, Bounds]:
    """Return the bounds of all partitions of a topic. Raises KafkaError."""
    return (await bounds_of_several(client, [topic], {}))[topic.name]


async def bounds_of_several(
    client: Client, topics: Sequence[Topic], ends: Mapping[str, Mapping[int, int]]
) -> dict[str, dict[int, Bounds]]:
    """Return the bounds of all partitions of topics. Raises KafkaError.

    `ends` are the last stable offsets of the topics for which the caller has read them.
    """
    tps = {
        topic.name: [TopicPartition(topic.name, each.partition) for each in topic.partitions]
        for topic in topics
    }
    unread = [tp for name, several in tps.items() if name not in ends for tp in several]
    # Starts are requested last: records trimmed in between are found missing in a later round, not now.
    listed = (
        await client.list_offsets(dict.fromkeys(unread, LATEST), isolation_level=READ_COMMITTED)
        if unread
        else {}
    )
    starts = await log_starts(client, topics, list(chain.from_iterable(tps.values())))

    def bounds(tp: TopicPartition) -> Bounds:
        end = ends[tp.topic][tp.partition] if tp.topic in ends else listed[tp].offset
        return Bounds(starts[tp], max(end, starts[tp]))

    return {name: {tp.partition: bounds(tp) for tp in several} for name, several in tps.items()}


async def log_starts(
    client: Client, topics: Sequence[Topic], tps: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the log start offsets of partitions of these topics, as in Fetch responses."""
    # ListOffsets may return the first record's offset instead. With time-based offsets, it may be far after the last
    # deleted record, although nothing between them is missing.
    fetcher = Fetcher(client, READ_COMMITTED, {topic.name: topic for topic in topics})
    attempt = 1
    while True:
        earliest = await client.list_offsets(dict.fromkeys(tps, EARLIEST))
        positions = {tp: found.offset for tp, found in earliest.items()}
        try:
            fetched = await fetcher.fetch_all(positions, max_bytes=1, partition_bytes=1)
        except OffsetOutOfRange:  # trimmed meanwhile
            if attempt == LOG_START_ATTEMPTS:
                raise
            attempt += 1
        else:
            return {tp: min(positions[tp], fetched[tp].log_start_offset) for tp in tps}


@frozen
class Rows:
    """Averages of a topic's rows: bytes of a row, and offsets per row.

    With korvet's timestamp mapping, the offsets of two records a second apart differ by a million.
    """

    bytes_each: float
    offsets_each: float

    def piece_offsets(self) -> int:
        """Return the number of offsets that make about PIECE_BYTES."""
        rows = min(LONGEST_PIECE_ROWS, PIECE_BYTES / max(self.bytes_each, 1.0))
        return max(1, math.ceil(rows * self.offsets_each))


@define
class TopicPlan:
    """A topic's next round: its table, the bounds of its partitions, and the ends of the round."""

    table: LakeTable
    bounds: Mapping[int, Bounds]
    ends: Mapping[int, int]

    @property
    def new_partitions(self) -> list[int]:
        """The partitions that the table does not have yet."""
        return [partition for partition in self.bounds if partition not in self.table.archived_up_to]

    @property
    def missing(self) -> list[Gap]:
        """The offsets that are neither in the table nor in the log any more."""
        numbers = self.table.archived_up_to
        return [
            Gap(partition, numbers[partition], bounds.log_start_offset)
            for partition, bounds in self.bounds.items()
            if partition in numbers and numbers[partition] < bounds.log_start_offset
        ]

    @property
    def truncated(self) -> list[int]:
        """The partitions whose logs end before their archived offset."""
        numbers = self.table.archived_up_to
        return [
            partition
            for partition, bounds in self.bounds.items()
            if numbers.get(partition, 0) > bounds.last_stable_offset
        ]

    @property
    def lag(self) -> int:
        """The number of offsets between the archived offsets and the ends; it may exceed the number of records."""
        numbers = self.table.archived_up_to
        return sum(max(0, end - numbers.get(partition, end)) for partition, end in self.ends.items())

    def pieces(self, cores: int, rows: Rows | None) -> list[Piece]:
        """Return the pieces to read next, in order. `rows` are the averages of the last round."""
        numbers = self.table.archived_up_to
        todo = {
            partition: (numbers[partition], end)
            for partition, end in sorted(self.ends.items())
            if numbers.get(partition, end) < end
        }
        if not todo:
            return []
        if rows is None and not all_dense(end for _, end in todo.values()):
            # The number of rows is unknown, so limit pieces by bytes.
            longest, max_bytes = max(end - start for start, end in todo.values()), FIRST_PIECE_BYTES
        else:
            rows = rows or Rows(PIECE_BYTES / FIRST_PIECE_ROWS, 1.0)
            longest, max_bytes = rows.piece_offsets(), PIECE_LIMIT_BYTES
            # Cut a few partitions into pieces for all cores.
            share = math.ceil(sum(end - start for start, end in todo.values()) / cores)
            longest = min(longest, max(share, math.ceil(SHORTEST_PIECE_ROWS * rows.offsets_each)))
        most = max(1, PIECES_A_CORE * cores // len(todo))
        return [
            Piece(
                location=self.table.location,
                tp=TopicPartition(self.table.topic, partition),
                start=position,
                end=min(position + longest, end),
                covered=self._covered(partition) if position == start else position,
                max_bytes=max_bytes,
            )
            for partition, (start, end) in todo.items()
            for position in range(start, min(end, start + most * longest), longest)
        ]

    def _covered(self, partition: int) -> int:
        covered = self.table.covered(partition)
        return self.table.archived_up_to[partition] if covered is None else covered


def bounded(pieces: Sequence[Piece], max_bytes: int, rows: Mapping[str, Rows | None]) -> list[Piece]:
    """Return the first pieces that have about `max_bytes` of rows, and at least one. `rows` are averages by topic.

    If a topic's rows are unknown, each of its partitions has one piece, which ends after an equal share of the bytes.
    """
    share = max(1, max_bytes // len({piece.tp for piece in pieces}))
    chosen: list[Piece] = []
    begun: set[TopicPartition] = set()
    left = max_bytes
    for piece in pieces:
        known = rows[piece.tp.topic]
        if left <= 0:
            break
        if known is not None:
            chosen.append(piece)
            size = round((piece.end - piece.start) / known.offsets_each * known.bytes_each)
            left -= min(size, piece.max_bytes)
        elif (
            piece.tp not in begun
        ):  # behind a piece that ends early, the next one would be written for nothing
            chosen.append(evolve(piece, max_bytes=min(piece.max_bytes, share)))
            left -= share
        begun.add(piece.tp)
    return chosen


def dealt(pieces: Sequence[Piece], cores: int) -> list[list[Piece]]:
    """Distribute pieces over tasks with about the same number of offsets."""
    tasks: list[list[Piece]] = [[] for _ in range(min(len(pieces), TASKS_A_CORE * cores))]
    sizes = [0] * len(tasks)
    for piece in sorted(pieces, key=lambda piece: piece.start - piece.end):
        least = sizes.index(min(sizes))
        tasks[least].append(piece)
        sizes[least] += piece.end - piece.start + 1
    return tasks


async def described(
    client: Client, wanted: Wanted
) -> tuple[list[tuple[Topic, dict[int, Bounds]]], dict[str, KafkaError]]:
    """Return the wanted topics with the bounds of their partitions, and the errors of the others by name."""
    topics, unknown = wanted.chosen(await client.topics())
    failures: dict[str, KafkaError] = {}
    found = []
    for name in unknown:
        try:
            topics.append(await client.topic(name))  # raises the reason if it is not accessible
        except UnknownTopicOrPartition:
            failures[name] = UnknownTopicOrPartition(f"There is no topic {name}.")
        except KafkaError as error:
            failures[name] = error
    for topic in topics:
        try:
            found.append((topic, await bounds_of(client, topic)))
        except KafkaError as error:
            failures[topic.name] = error
    return found, failures


def missing_text(gaps: Collection[Gap], topic: str) -> str:
    """Describe missing offsets."""
    ranges = ", ".join(f"{topic}-{gap.partition} offsets {gap.start} to {gap.end - 1}" for gap in gaps)
    return (
        f"{ranges} cannot be archived: the log starts after them now. "
        "--accept-gap continues without them, and records the gap in the table."
    )
