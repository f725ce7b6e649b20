"""One topic and its partitions in Redis: their keys, their stored state, and the part of it that this broker caches."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple, cast

from attrs import define, field

from korvet.storage.interface import LogOffsets, StorageDefaults, Topic, TopicConfig, TopicPartition
from korvet.storage.offsets import OffsetMapper, TimestampOffsets
from korvet.storage.redis.append.layouts import StorageLayout
from korvet.storage.redis.client.replies import Argument, Command
from korvet.storage.redis.format import EntryFormat, format_of
from korvet.storage.redis.keys import (
    STATE_BYTES,
    STATE_EARLIEST,
    STATE_EPOCHS,
    STATE_LARGEST,
    STATE_LENGTH,
    STATE_NEXT,
    STATE_SERVER,
    STATE_START,
    STATE_TOPIC,
    STATE_TRIMMED,
    STATE_UNSTABLE,
    STATE_VISIBLE,
    STATE_VISIBLE_STABLE,
    Keyspace,
    PartitionKeys,
)
from korvet.storage.redis.leader_epochs import LeaderEpochs
from korvet.storage.redis.read.rebuild import Epoch

# Numbers in Lua are doubles. An ID whose milliseconds exceed 2^53 - 1, or the range of offsets, has no offset.
HIGHEST_MS = 2**53 - 1

# The text of leader epochs in the state, and the epochs.
Epochs = tuple[bytes | None, Sequence[Epoch]]


class PartitionState(NamedTuple):
    """A partition's state as read in one MULTI: bounds as offsets, and whether another client changed the stream."""

    log_start_offset: int
    trimmed_before: int  # retention and DeleteRecords removed everything below
    next_offset: int
    next_id: bytes
    epochs: Sequence[Epoch]
    is_settled: bool  # the stream is as long as korvet's scripts left it
    size: int  # bytes of the present entries; trimmed bytes are counted in whole chunks of the index
    server: bytes | None  # the `run_id` of the server process in which the leader epoch began
    stored_visible: (
        bytes | None
    )  # the ID at which the high watermark begins, if `min.insync.replicas` is above 1
    first_open: FirstOpen | None = None
    stored_stable: FirstOpen | None = None  # `first_open` when the log ended at `stored_visible`
    visible: Known | None = None  # the end of what consumers may read, if it is before the log's end

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1].leader_epoch

    @property
    def high_watermark(self) -> int:
        if self.visible is None:
            return self.next_offset
        return max(self.visible.next_offset, self.log_start_offset)

    @property
    def visible_id(self) -> bytes:
        """The ID at which the high watermark begins."""
        return self.next_id if self.visible is None else self.visible.next_id

    @property
    def visible_first_open(self) -> FirstOpen | None:
        """The oldest transaction that was open when the log ended at the high watermark.

        If its marker is above the high watermark, a failover can lose the marker: the transaction counts as open.
        One that is open at present was open then, unless it began later: a failover may have lost a confirmed marker.
        """
        return self.first_open if self.visible is None else earlier(self.visible.first_open, self.first_open)

    @property
    def last_stable_offset(self) -> int:
        first_open = self.visible_first_open
        if first_open is None:
            return self.high_watermark
        return max(self.log_start_offset, min(first_open.offset, self.high_watermark))

    @property
    def stable_id(self) -> bytes:
        """The ID at which the last stable offset begins, but for deleted records."""
        first_open, end = self.visible_first_open, self.visible_id
        return end if first_open is None or first_open.offset >= self.high_watermark else first_open.entry_id

    @property
    def offsets(self) -> LogOffsets:
        last = self.epochs[-1]
        end = stable = self.next_offset
        if self.visible is not None or self.first_open is not None:
            end, stable = self.high_watermark, self.last_stable_offset
        return LogOffsets(
            self.log_start_offset,
            end,
            stable,
            last.leader_epoch,
            trimmed_before=self.trimmed_before,
            has_caught_up=end >= last.start_offset,
        )


class FirstOpen(NamedTuple):
    """The first record of the oldest open transaction."""

    offset: int
    entry_id: bytes


def earlier(one: FirstOpen | None, other: FirstOpen | None) -> FirstOpen | None:
    """Return the lower one of two first records of open transactions; None stands for none."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=attrgetter("offset"))


class Known(NamedTuple):
    """The log's end as this broker last read it. If Redis has an earlier end, it has lost acknowledged records."""

    leader_epoch: int
    next_offset: int
    next_id: bytes
    first_open: FirstOpen | None = None  # at the same moment


@define(eq=False)
class PartitionedTopic:
    """A topic, what its partitions share, and those used so far. A topic that is created again gets a new object."""

    topic: Topic
    created: int  # the topic's number in the order of creations
    created_ms: int  # when the topic was created, by the store's clock; 0 if that is unknown
    keyspace: Keyspace
    defaults: StorageDefaults
    leader_epochs: LeaderEpochs
    format: EntryFormat = field(init=False)
    topic_id: bytes = field(init=False)
    head: tuple[Argument, ...] = ()  # the first arguments of every partition script
    last_epochs: Epochs = (None, ())  # those of unused partitions are equal
    _partitions: dict[int, Partition] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.topic_id = str(self.topic.topic_id).encode()
        self.configure(self.topic)

    def configure(self, topic: Topic) -> None:
        """Apply the topic's present settings."""
        self.topic = topic
        config = topic.config
        self.format = format_of(config)
        mapper = self.format.mapper
        bits = mapper.sequence_bits if isinstance(mapper, TimestampOffsets) else 0
        self.head = (
            self.topic_id,
            (1 << bits) - 1,
            min(HIGHEST_MS, (1 << 63 - bits) - 2),
            self.format.layout.value,
            *((-1, -1) if config.is_tiered else (config.retention_ms, config.retention_bytes)),
            self.defaults.retention_check_interval_ms,
        )

    def partition(self, tp: TopicPartition) -> Partition:
        """Return one of the topic's partitions, without cached state at its first use."""
        partition = self._partitions.get(tp.partition)
        if partition is None:
            partition = self._partitions[tp.partition] = Partition(tp, self, self.keyspace.partition(tp))
        return partition


@define(eq=False)
class Partition:
    """One partition of a topic."""

    # Kept for every partition that the broker has used, so it has only what the partitions of a topic do not share.

    tp: TopicPartition
    shared: PartitionedTopic
    keys: PartitionKeys
    known: Known | None = None
    confirmed: Known | None = None  # see `korvet.storage.redis.failover.confirmations`
    unstable_offset: int | None = (
        None  # the last stable offset, if a transaction was open when it was last read
    )
    is_being_trimmed: bool = False
    entry_bytes: float = 0.0  # average size of an entry; 0 while unknown
    largest_entry: int = 0
    _epochs: Epochs = (None, ())

    @property
    def topic(self) -> Topic:
        return self.shared.topic

    @property
    def topic_id(self) -> bytes:
        return self.shared.topic_id

    @property
    def mapper(self) -> OffsetMapper:
        return self.shared.format.mapper

    @property
    def first_offset(self) -> int:
        """The offset that a first record would have had when the topic was created."""
        return self.mapper.base_offset(0, self.shared.created_ms)

    @property
    def config(self) -> TopicConfig:
        return self.shared.topic.config

    @property
    def is_batch_layout(self) -> bool:
        return self.shared.format.layout is StorageLayout.BATCH

    def arguments(self, run_id: bytes, *own: Argument) -> tuple[Argument, ...]:
        """Return the arguments of a partition script for the server with that `run_id`: the common ones, its own."""
        shared, known = self.shared, self.known
        epoch, next_id = (b"", b"") if known is None else (b"%d " % known.leader_epoch, known.next_id)
        server = shared.leader_epochs.argument(run_id)
        is_replicated = shared.topic.config.min_insync_replicas > 1
        return (*shared.head, b"%b %d %b%b" % (server, is_replicated, epoch, next_id), *own)

    # --- State ------------------------------------------------------------------------------------------

    def state_commands(self) -> tuple[Command, Command]:
        """Return the two commands whose replies `state` takes; they have to be sent in one MULTI."""
        return (
            (
                b"HMGET",
                self.keys.state,
                STATE_TOPIC,
                STATE_NEXT,
                STATE_START,
                STATE_LENGTH,
                STATE_BYTES,
                STATE_TRIMMED,
                STATE_LARGEST,
                STATE_EPOCHS,
                STATE_EARLIEST,
                STATE_SERVER,
                STATE_VISIBLE,
                STATE_UNSTABLE,
                STATE_VISIBLE_STABLE,
            ),
            (b"XLEN", self.keys.stream),
        )

    def state(self, fields: Sequence[bytes | None], length: int) -> PartitionState | None:
        """Return the state, or None if there is none or it belongs to another topic of this name.

        Raise ValueError if another client has overwritten the state.
        """
        if fields[0] != self.shared.topic_id:
            return None
        *required, earliest, server, stored_visible, unstable, stored_stable = fields
        if None in required:
            raise ValueError("a field is missing")
        _, next_id, start, expected, size, trimmed, largest, epochs = cast(Sequence[bytes], required)
        # Another client may have written either number, which only estimate how much to read.
        there = max(0, int(size) - int(trimmed))
        if length:
            self.entry_bytes = there / length
            self.largest_entry = int(largest)
        bound = self.shared.format.bound
        trimmed_before = bound(start)
        has_moved = earliest is not None and earliest != start
        return PartitionState(
            self.log_start(start, earliest) if has_moved else trimmed_before,
            trimmed_before,
            bound(next_id),
            next_id,
            self._epochs[1] if epochs == self._epochs[0] else self.epochs(epochs),
            length == int(expected),
            there,
            server,
            stored_visible,
            self.first_open(unstable) if unstable else None,
            self.first_open(stored_stable) if stored_stable else None,
        )

    def first_open(self, entry_id: bytes | None) -> FirstOpen | None:
        """Return the first record of an open transaction, given its ID in the state; None for "" or no field."""
        return FirstOpen(self.bound(entry_id), entry_id) if entry_id else None

    def bound(self, entry_id: bytes) -> int:
        """Return the offset of an ID in the state, which always has one."""
        return self.shared.format.bound(entry_id)

    def log_start(self, start: bytes, earliest: bytes | None) -> int:
        """Return the log start offset, given two fields of the state; earlier versions wrote only the first."""
        return max(self.bound(start), self.bound(earliest or start))

    def epochs(self, text: bytes) -> Sequence[Epoch]:
        """Parse leader epochs; the result is cached until they change, and shared with the partition parsed before."""
        if text != self._epochs[0]:
            if text != self.shared.last_epochs[0]:
                pairs = (each.split(b":") for each in text.split(b" "))
                epochs = tuple(Epoch(int(epoch), self.bound(start)) for epoch, start in pairs)
                self.shared.last_epochs = text, epochs
            self._epochs = self.shared.last_epochs
        return self._epochs[1]

    # --- What this broker remembers -----------------------------------------------------------------------

    def note(self, leader_epoch: int, next_id: bytes) -> None:
        """Cache the log's end, if it is later: answers of two connections may arrive in the wrong order."""
        known = self.known
        if known is not None and (leader_epoch, next_id) == (known.leader_epoch, known.next_id):
            return
        shared = self.shared
        next_offset = shared.format.bound(next_id)
        if leader_epoch > shared.leader_epochs.newest:
            shared.leader_epochs.note(leader_epoch)
        if known is None or (leader_epoch, next_offset) > (known.leader_epoch, known.next_offset):
            self.known = Known(leader_epoch, next_offset, next_id)

    def note_unstable(self, state: PartitionState) -> None:
        """Cache the last stable offset while a transaction holds it back."""
        self.unstable_offset = None if state.visible_first_open is None else state.last_stable_offset

    @staticmethod
    def may_have_lost(state: PartitionState, run_id: bytes, known: Known | None) -> bool:
        """Return True if the server with that `run_id` may have lost acknowledged records of the present leader epoch.

        `known` is the log's end as it was cached when the state was requested.

        Every server process but the one in which that epoch began may have lost some. A server whose leader epoch is
        lower than before has lost that epoch: clients may have it already.
        """
        if run_id not in (b"", state.server):
            return True
        if known is None or known.leader_epoch < state.leader_epoch:
            return False
        return known.leader_epoch > state.leader_epoch or known.next_offset > state.next_offset
