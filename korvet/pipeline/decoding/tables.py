"""Typed tables and their dlq tables: Delta tables that are their own checkpoints, as the archive is.

Each has its own numbers, one `txn` action per partition, in the very commit that adds the rows:

    korvet/<topic id>/<partition>         decoded up to this offset of the topic
    korvet/<topic id>/<partition>/start   the offset it begins with

So the two need no common commit. A commit is made on the snapshot whose numbers were read, and only where they equal
the beginnings of what is committed: what somebody else has done meanwhile is never done twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Self
from uuid import UUID, uuid4

import pyarrow as pa
from attrs import define, field, frozen
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction

from korvet.lake.delta_log import DeltaLog
from korvet.lake.errors import CommitConflict, NewerFormat, OutOfOrder, WrongTable
from korvet.lake.location import Location
from korvet.lake.table import (
    CHECKPOINT_INTERVAL,
    KIND,
    TOPIC,
    TOPIC_ID,
    VERSION,
    refuse_other_things,
    store_errors,
)

FORMAT_VERSION = 1
TYPED, DLQ = "typed", "dlq"
COMMIT_ID, RANGES = "korvet.commit", "korvet.ranges"


@frozen(order=True)
class Span:
    """Offsets of a partition from `start` up to, without, `end`."""

    partition: int
    start: int
    end: int


@frozen
class Part:
    """A file that was written and is to be committed. `least` and `greatest` are statistics by column."""

    path: str  # inside the table
    size: int
    modified_ms: int
    count: int
    partition_values: dict[str, str | None]
    least: dict[str, int]
    greatest: dict[str, int]

    def add_action(self) -> AddAction:
        stats = {"numRecords": self.count, "minValues": self.least, "maxValues": self.greatest}
        stats["nullCount"] = dict.fromkeys(self.least, 0)
        return AddAction(
            path=self.path,
            size=self.size,
            partition_values=self.partition_values,
            modification_time=self.modified_ms,
            data_change=True,
            stats=json.dumps(stats),
        )


@define(slots=False)
class DecodedTable:
    """One snapshot of a typed or a dlq table; nothing needs to be closed."""

    location: Location
    kind: str
    topic: str
    topic_id: UUID
    #: deltalake's handle of this snapshot; it must not be refreshed.
    delta: DeltaTable = field(repr=False)
    transactions: Mapping[str, int] = field(repr=False)

    @classmethod
    def open(cls, location: Location, kind: str, topic: str, topic_id: UUID) -> Self:
        """The newest snapshot. Raises NoTable, WrongTable, NewerFormat, Unreachable."""
        with store_errors(location):
            delta = DeltaTable(location.url, storage_options=location.storage_options())
            check(location, delta, kind, topic, topic_id)
            transactions = DeltaLog(location).transactions(delta.version())
        return cls(location, kind, topic, topic_id, delta, transactions)

    @classmethod
    def create(
        cls,
        location: Location,
        kind: str,
        topic: str,
        topic_id: UUID,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
    ) -> Self:
        """An empty table, or what somebody else has made there meanwhile. Raises NoTable and what `open` raises."""
        refuse_other_things(location)
        properties = {KIND: kind, TOPIC: topic, TOPIC_ID: str(topic_id), VERSION: str(FORMAT_VERSION)}
        with store_errors(location):
            try:
                DeltaTable.create(
                    location.url,
                    Schema.from_arrow(schema),
                    mode="error",
                    partition_by=list(partition_by),
                    description=f"Topic {topic}, decoded by korvet ({kind}).",
                    configuration={**properties, "delta.checkpointInterval": CHECKPOINT_INTERVAL},
                    storage_options=location.storage_options(),
                    raise_if_key_not_exists=False,
                )
            except DeltaError:
                if not DeltaTable.is_deltatable(location.url, location.storage_options()):
                    raise
        return cls.open(location, kind, topic, topic_id)

    @property
    def app_id(self) -> str:
        return f"korvet/{self.topic_id}"

    @cached_property
    def decoded_up_to(self) -> dict[int, int]:
        """For each partition of which anything was decoded: the offset up to which, without it, all was."""
        prefix = f"{self.app_id}/"
        found = {name.removeprefix(prefix): number for name, number in self.transactions.items()}
        return {int(name): number for name, number in sorted(found.items()) if name.isdecimal()}

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(self.delta)

    def reopened(self) -> Self:
        """The newest snapshot of the same table."""
        return type(self).open(self.location, self.kind, self.topic, self.topic_id)

    def with_columns(self, fields: Sequence[pa.Field]) -> Self:
        """A snapshot that has these columns too, nested ones among them, by a commit of their own if need be."""
        there = Schema.from_arrow(pa.schema(fields)).fields
        with store_errors(self.location):
            try:
                self.delta.alter.add_columns(there)
            except CommitFailedError as error:
                raise CommitConflict(f"{self.location}: {error}") from error
        return self.reopened()

    def commit(self, spans: Sequence[Span], parts: Sequence[Part]) -> Self:
        """Add files and move the numbers on, in one commit; the snapshot that has it.

        Raises OutOfOrder, CommitConflict, Unreachable; then nothing was committed, as far as can be known.
        """
        properties, commit_id = self.properties(spans)
        with store_errors(self.location):
            try:
                self.delta.create_write_transaction(
                    [part.add_action() for part in parts],
                    "append",
                    self.delta.schema(),
                    partition_by=self.delta.metadata().partition_columns,
                    commit_properties=properties,
                )
            except CommitFailedError as error:
                newer = self.reopened()
                if not newer.has_commit(commit_id, self.delta.version() + 1):
                    raise CommitConflict(f"{self.location}: {error}") from error
                return newer
        return self.reopened()

    def append(self, parts: Sequence[Part]) -> Self:
        """Add files, the numbers staying: rows that were forgotten. Raises CommitConflict, Unreachable."""
        return self.commit((), parts)

    def properties(self, spans: Sequence[Span]) -> tuple[CommitProperties, str]:
        """What a commit of these spans says, and its id. Raises OutOfOrder."""
        commit_id = uuid4().hex
        transactions = [Transaction(name, number) for name, number in self.next_numbers(spans).items()]
        told = {COMMIT_ID: commit_id, RANGES: [[span.partition, span.start, span.end] for span in spans]}
        return CommitProperties(custom_metadata=told, app_transactions=transactions), commit_id

    def next_numbers(self, spans: Sequence[Span]) -> dict[str, int]:
        """The numbers after a commit of these. Raises OutOfOrder."""
        changed: dict[str, int] = {}
        for span in spans:
            name = f"{self.app_id}/{span.partition}"
            number = self.decoded_up_to.get(span.partition)
            if number is None:
                number = changed[f"{name}/start"] = span.start
            if span.start != number or span.end < span.start:
                raise OutOfOrder(
                    f"{self.location}: {self.topic}-{span.partition}: {span.start} to {span.end} "
                    f"does not begin at the table's number, {number}."
                )
            changed[name] = span.end
        return changed

    def has_commit(self, commit_id: str, first: int) -> bool:
        """Whether one of the commits from version `first` on is that one: an answer may be lost on its way."""
        commits = DeltaLog(self.location).commits(first, self.delta.version())
        return any(info.get(COMMIT_ID) == commit_id for _, info in commits)


def arrow_schema(delta: DeltaTable) -> pa.Schema:
    """A table's columns, with the types that are used here."""
    return pa.schema([one.with_type(plain(one.type)) for one in pa.schema(delta.schema().to_arrow())])


def plain(kind: pa.DataType) -> pa.DataType:
    """A type without what does not matter to values: views, large offsets, names of items and of time zones."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, plain(one.type), one.nullable) for one in kind])
    if pa.types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(plain(kind.value_type))
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC") if kind.tz else pa.timestamp("us")
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind


def check(location: Location, delta: DeltaTable, kind: str, topic: str, topic_id: UUID) -> None:
    """Raises WrongTable, NewerFormat."""
    told: Mapping[str, str] = delta.metadata().configuration
    if told.get(KIND) != kind:
        what = told.get(KIND)
        raise WrongTable(
            f"{location} is {f'a table of korvet, but of kind {what}' if what else 'a Delta table of somebody else'}; "
            f"choose another place for the {kind} table."
        )
    if not told.get(VERSION, "").isdecimal() or int(told[VERSION]) > FORMAT_VERSION:
        raise NewerFormat(f"{location} is of a newer format ({told.get(VERSION)}); update korvet.")
    if told.get(TOPIC) != topic:
        raise WrongTable(f"{location} is decoded from topic {told.get(TOPIC)}, not from {topic}.")
    if told.get(TOPIC_ID) != str(topic_id):
        raise WrongTable(
            f"{location} is decoded from an earlier topic {topic}, which was deleted and created anew "
            f"(its id was {told.get(TOPIC_ID)}, now it is {topic_id}); decode to another place, or move the table away."
        )
