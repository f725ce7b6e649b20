"""Rounds of decoding: each round decodes what the archive holds beyond the typed table's decoded offsets.

A round opens three tables (archive, typed, dlq), has slices decoded by Spark or in this process, and commits first the
dlq table's files and offsets, then the typed table's. After a kill between the two commits, the next round first
completes the interrupted one (see `planning`). The tables hold all state.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain

import pyarrow as pa
from attrs import define, evolve, field, frozen

from korvet.lake.column_reading import read_columns
from korvet.lake.errors import LakeError, NoTable, WrongTable
from korvet.lake.location import Location
from korvet.lake.schema import BUCKET_BY
from korvet.lake.store_errors import store_errors
from korvet.lake.table import LakeTable
from korvet.pipeline.decoding import schemas, upserting
from korvet.pipeline.decoding.columns import DELETED, KEY, RESERVED
from korvet.pipeline.decoding.distributing import Distribute, Files
from korvet.pipeline.decoding.inference import Wanted, grown
from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.planning import Plan, plan_of, slices_of
from korvet.pipeline.decoding.row_decoding import DLQ_SCHEMA, Decoder, decode, infer_columns, nullable
from korvet.pipeline.decoding.row_keys import Keys
from korvet.pipeline.decoding.slices import (
    SHOWN_FAULTS,
    Fault,
    Job,
    Outcome,
    archived_rows,
    decode_slice,
    faults_of,
    infer_columns_of_slice,
)
from korvet.pipeline.decoding.specification import Specification
from korvet.pipeline.decoding.tables import CLUSTER_BY, DLQ, KEYS, TYPED, DecodedTable, Span

log = logging.getLogger(__name__)

# Bytes of archived files per commit.
COMMIT_BYTES = 4 * 1024**3
# The same for an upsert, which merges its rows in this process's memory.
UPSERT_BYTES = 64 * 1024**2


class BadRow(LakeError):  # noqa: N818  the name states the fault
    """A row cannot be decoded, and the specification has on_error = "stop"."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        super().__init__(f"{fault} (on_error is 'stop': nothing of this round was committed)")


@frozen
class RoundResult:
    """Result of a round. `columns` are the columns it added, as DDL."""

    outcome: Outcome
    behind: str | None
    spans: tuple[Span, ...]
    columns: str = ""


@define
class Preview:
    """The columns for the first records, as DDL, and how many of these records would be bad rows."""

    columns: str
    records: int = 0
    bad: int = 0
    faults: list[Fault] = field(factory=list)


@define(slots=False)
class Decoding:
    """Decodes one topic's archive in `lake` to a typed table in `to`.

    If `to` is the lake itself, the typed table's name must differ from the topic's.
    """

    specification: Specification
    lake: Location
    to: Location
    distribute: Distribute
    accept_gap: bool = False
    #: If True, stop at the archived offsets found when the archive is first opened.
    once: bool = False
    #: Called with the name of each step before it begins. Tests kill the process between steps.
    on_step: Callable[[str], None] = lambda _: None
    #: The newest snapshots of the tables, None if they do not exist.
    typed: DecodedTable | None = field(default=None, init=False)
    dlq: DecodedTable | None = field(default=None, init=False)
    _archive: LakeTable | None = field(default=None, init=False)
    _ends: Mapping[int, int] | None = field(default=None, init=False)
    _noted: set[str] = field(factory=set, init=False)

    def round(self) -> RoundResult | None:
        """Run one round. Return its result, or None if there was nothing to do.

        Raises LakeError (BadRow, MissingRows, CommitConflict, …), SchemaFault, RegistryError, SparkFailed.
        """
        archive = self.open_archive()
        typed = self.typed = self.find(self.typed_location, TYPED, self.typed)
        dlq = self.dlq = self.find(self.dlq_location, DLQ, self.dlq)
        plan = self._plan(archive, typed, dlq)
        if not plan.spans:
            return None
        self.on_step("plan")
        decoder = self.decoder(typed)
        slices = slices_of(archive, plan.spans, self.distribute.parallelism)
        typed, decoder, added = self._with_columns(archive, typed, decoder, plan, slices)
        if dlq is None and self.keeps_bad:
            dlq = DecodedTable.create(self.dlq_location, DLQ, archive.topic, archive.topic_id, DLQ_SCHEMA)
        outcome = self._decode(archive, plan, decoder, dlq, slices)
        if outcome.found:
            typed, again = self._with_tables(archive, plan, typed, decoder, dlq, slices, outcome.found)
            outcome = again or outcome
        self._commit(plan, typed, dlq, outcome, decoder.keys)
        return RoundResult(outcome, plan.behind, plan.spans, added)

    def preview(self) -> Preview:
        """Decode the first records without writing anything. Raises the errors of `round`."""
        archive = self.open_archive()
        plan = plan_of(archive, {}, None, accept_gap=True, max_bytes=COMMIT_BYTES)
        slices = slices_of(archive, plan.spans, 1)
        decoder = self.decoder(self.find(self.typed_location, TYPED))
        if self.specification.unknown == "add" or not decoder.fields:
            decoder = self.grown(decoder, self._sample(archive, plan, decoder, slices))
        preview = Preview(schemas.ddl([*decoder.fields, *decoder.key_fields]))
        left = self.specification.sample
        for rows in archived_rows(archive.location, list(chain.from_iterable(slices)), plan.spans):
            decoded = decode(decoder, rows.slice(0, left))
            preview.records += min(left, rows.num_rows) - decoded.strangers
            preview.bad += decoded.bad.num_rows
            preview.faults = (preview.faults + faults_of(decoded.bad))[:SHOWN_FAULTS]
            left -= rows.num_rows
            if left <= 0:
                break
        return preview

    # --- Tables -------------------------------------------------------------------------------------------

    @cached_property
    def typed_location(self) -> Location:
        return self.to.child(self.specification.table)

    @cached_property
    def dlq_location(self) -> Location:
        return self.to.child(self.specification.dlq)

    @property
    def keeps_bad(self) -> bool:
        return self.specification.on_error == "dlq"

    def open_archive(self) -> LakeTable:
        self._archive = LakeTable.open(self.lake, self.specification.topic, previous=self._archive)
        if self.once and self._ends is None:
            self._ends = dict(self._archive.archived_up_to)
        return self._archive

    def find(
        self, location: Location, kind: str, previous: DecodedTable | None = None
    ) -> DecodedTable | None:
        """Return a table, or None if it does not exist yet. `previous` is an earlier snapshot of it."""
        archive = self._archive
        if archive is None or (kind == DLQ and not self.keeps_bad):
            return None
        try:
            return DecodedTable.open(location, kind, archive.topic, archive.topic_id, previous=previous)
        except NoTable:
            return None

    def _plan(self, archive: LakeTable, typed: DecodedTable | None, dlq: DecodedTable | None) -> Plan:
        upto = {} if typed is None else typed.decoded_up_to
        bad_upto = None
        if self.keeps_bad:
            bad_upto = {} if dlq is None else dlq.decoded_up_to
        max_bytes = UPSERT_BYTES if self.specification.upsert else COMMIT_BYTES
        return plan_of(
            archive, upto, bad_upto, ends=self._ends, accept_gap=self.accept_gap, max_bytes=max_bytes
        )

    # --- Columns ------------------------------------------------------------------------------------------

    def decoder(self, typed: DecodedTable | None) -> Decoder:
        """Return the decoder for the specification and the columns of the table, if it exists.

        Raises SchemaFault, WrongTable, RegistryError.
        """
        decoder = schemas.decoder_of(self.specification)
        if typed is None:
            return decoder
        refuse_other_keys(typed, decoder)
        return schemas.united(self._knowing(decoder, typed.records), list(typed.schema), self._note)

    # --- Record types -------------------------------------------------------------------------------------

    @property
    def found(self) -> list[Specification]:
        """The specifications of the record types that were found so far, without those that are named."""
        specification = self.specification
        if self.typed is None or not specification.finds_records:
            return []
        new = [name for name in self.typed.records if name not in specification.named_records]
        return [specification.of_record(name) for name in new]

    def _knowing(self, decoder: Decoder, names: Collection[str], *, finds: bool = True) -> Decoder:
        """Return the decoder, which leaves the values of these record types to their tables."""
        selection = decoder.selection
        if selection is None or not self.specification.finds_records:
            return decoder
        is_full = len({*selection.others, *names, selection.record}) >= self.specification.max_tables
        kind = None if is_full or not finds else selection.finds
        return evolve(decoder, selection=selection.knowing(names, finds=kind))

    def _with_tables(
        self,
        archive: LakeTable,
        plan: Plan,
        typed: DecodedTable,
        decoder: Decoder,
        dlq: DecodedTable | None,
        slices: Sequence[Files],
        found: set[str],
    ) -> tuple[DecodedTable, Outcome | None]:
        """Note the record types that were found, before any table states that their values were decoded.

        Return the table, and the outcome of decoding again if some of the types get no table.
        """
        there = 0 if decoder.selection is None else len(decoder.selection.others) + 1
        distinct = {name.lower(): name for name in sorted(found, reverse=True)}.values()
        names = sorted(distinct)[: self.specification.max_tables - there]
        typed = self.typed = typed.with_records(names)
        self.on_step("record types")
        if len(names) == len(found):
            return typed, None
        self._note(
            f"no tables for the record types {', '.join(sorted(found - {*names}))}: their values are bad rows"
        )
        decoder = self._knowing(decoder, names, finds=False)
        return typed, self._decode(archive, plan, decoder, dlq, slices)

    def _note(self, text: str) -> None:
        """Log a line about the topic, once."""
        if text not in self._noted:
            self._noted.add(text)
            log.warning("%(topic)s: %(reason)s", {"topic": self.specification.name, "reason": text})

    def _with_columns(
        self,
        archive: LakeTable,
        typed: DecodedTable | None,
        decoder: Decoder,
        plan: Plan,
        slices: Sequence[Files],
    ) -> tuple[DecodedTable, Decoder, str]:
        """Create the table, or add the columns that the slices need. Return it, the decoder, and the new columns."""
        specification = self.specification
        before = list(decoder.fields) if typed is None else list(typed.schema)
        if specification.unknown == "add":
            self.on_step("infer")
            work = partial(infer_columns_of_slice, self._job(archive, plan, decoder))
            decoder = self.grown(decoder, self.distribute(work, slices))
        elif not decoder.fields:
            decoder = self.grown(decoder, self._sample(archive, plan, decoder, slices))
            if not decoder.fields:
                raise SchemaFault(
                    f"{specification.topic}: none of the first {specification.sample} records is an object "
                    "with fields; give a schema."
                )
        schemas.refuse_partitioning(decoder)
        schemas.refuse_keys(decoder)
        schemas.refuse_clustering(decoder)
        clustered = {CLUSTER_BY: json.dumps(specification.cluster_by)}
        if typed is None:
            typed = DecodedTable.create(
                self.typed_location,
                TYPED,
                archive.topic,
                archive.topic_id,
                nullable(decoder.schema),
                decoder.partition_columns(),
                clustered | lasting_properties(decoder),
            )
            return typed, decoder, schemas.ddl([*decoder.fields, *decoder.key_fields])
        refuse_other_partitions(typed, decoder)
        new = [one for one in nullable(decoder.schema) if one not in nullable(pa.schema(before))]
        if new:
            typed = typed.with_columns(new)
        if typed.cluster_by != specification.cluster_by:
            typed = typed.with_properties(clustered)
        return typed, decoder, schemas.ddl([one for one in new if one.name not in RESERVED])

    def grown(self, decoder: Decoder, found: Iterable[Wanted]) -> Decoder:
        total: Wanted = Counter()
        for each in found:
            total.update(each)
        specification = self.specification
        fields = grown(
            decoder.fields,
            total,
            numbers=specification.numbers,
            max_columns=specification.max_columns,
            reserved=(*RESERVED, *(one.name for one in decoder.key_fields)),
        )
        return schemas.with_fields(decoder, fields)

    def _sample(
        self, archive: LakeTable, plan: Plan, decoder: Decoder, slices: Sequence[Files]
    ) -> Iterable[Wanted]:
        """Count the missing columns of the first records, in this process."""
        left = self.specification.sample
        for rows in archived_rows(archive.location, list(chain.from_iterable(slices)), plan.spans):
            yield infer_columns(decoder, rows.slice(0, left))
            left -= rows.num_rows
            if left <= 0:
                return

    # --- Work ---------------------------------------------------------------------------------------------

    def _job(
        self,
        archive: LakeTable,
        plan: Plan,
        decoder: Decoder,
        dlq: DecodedTable | None = None,
        known_bad: frozenset[tuple[int, int]] = frozenset(),
    ) -> Job:
        return Job(
            decoder,
            archive.location,
            plan.spans,
            typed=None if plan.behind == "dlq" else self.typed_location,
            dlq=None if dlq is None else dlq.location,
            known_bad=known_bad,
            staged=upserting.new_folder() if self.specification.upsert else "",
        )

    def _decode(
        self,
        archive: LakeTable,
        plan: Plan,
        decoder: Decoder,
        dlq: DecodedTable | None,
        slices: Sequence[Files],
    ) -> Outcome:
        """Decode the slices. Raises BadRow."""
        self.on_step("decode")
        known = bad_places(dlq, plan.spans) if dlq is not None and plan.behind == "typed" else frozenset()
        job = self._job(archive, plan, decoder, dlq, known)
        total = Outcome()
        for outcome in self.distribute(partial(decode_slice, job), slices):
            total.add(outcome)
        if total.faults and self.specification.on_error == "stop":
            raise BadRow(total.faults[0])
        return total

    def _commit(
        self,
        plan: Plan,
        typed: DecodedTable,
        dlq: DecodedTable | None,
        outcome: Outcome,
        keys: Keys,
    ) -> None:
        """Commit the bad rows, then the typed rows. Raises CommitConflict, OutOfOrder, Unreachable."""
        self.on_step("before commit")
        if dlq is not None and plan.behind == "typed":
            if outcome.dlq_parts:  # bad now, although they were not in the interrupted round
                self.dlq = dlq.append(outcome.dlq_parts)
        elif dlq is not None:
            self.dlq = dlq.commit(plan.spans, outcome.dlq_parts)
        self.on_step("between commits")
        if plan.behind != "dlq":
            self.typed = self._commit_typed(typed, plan.spans, outcome, keys)
        self.on_step("after commit")

    def _commit_typed(
        self, typed: DecodedTable, spans: Sequence[Span], outcome: Outcome, keys: Keys
    ) -> DecodedTable:
        parts = outcome.typed_parts
        if not self.specification.upsert:
            return typed.commit(spans, parts, outcome.skipped)
        rows = upserting.staged(typed.location, parts) if parts else None
        marks_absent = self.specification.record is None
        merged = upserting.merge(typed, rows, keys, spans, marks_absent=marks_absent)
        folders = {part.path.rpartition("/")[0] for part in parts}
        for folder in folders:
            upserting.sweep(typed.location, folder)
        return merged


def lasting_properties(decoder: Decoder) -> dict[str, str]:
    """Return the properties of a new typed table that it never changes."""
    specification = decoder.specification
    found = {KEYS: json.dumps(decoder.keys.columns)} if specification.upsert else {}
    if specification.bucket_by is not None:
        found[BUCKET_BY] = json.dumps([specification.bucket_by, specification.buckets])
    return found


def refuse_other_partitions(typed: DecodedTable, decoder: Decoder) -> None:
    """Raise WrongTable if the table is partitioned in another way than is specified."""
    there = tuple(typed.delta.metadata().partition_columns)
    if there != decoder.partition_columns():
        names = ", ".join(there) or "nothing"
        raise WrongTable(f"{typed.location} is partitioned by {names}; tables do not change that.")
    wanted = decoder.specification.bucket_by, decoder.specification.buckets
    if typed.buckets is not None and typed.buckets != wanted:
        name, count = typed.buckets
        raise WrongTable(f"{typed.location} has {count} buckets of {name}; tables do not change that.")


def refuse_other_keys(typed: DecodedTable, decoder: Decoder) -> None:
    """Raise WrongTable if the table's rows are identified, or deleted, in another way than is specified."""
    specification = decoder.specification
    wanted = decoder.keys.columns if specification.upsert else ()
    there = typed.keys
    if not there and KEY in typed.schema.names and (specification.upsert or not specification.keep_key):
        there = (KEY,)  # made by an earlier korvet
    if there != wanted:
        made = f"for upsert by {by(there)}" if there else "without upsert"
        raise WrongTable(
            f"{typed.location} was made {made}, not {f'for upsert by {by(wanted)}' if wanted else 'without it'}; "
            "decode to another table."
        )
    is_soft = DELETED in typed.schema.names
    if is_soft != (specification.deletes == "soft"):
        made = "soft" if is_soft else "hard"
        raise WrongTable(
            f"{typed.location} was made with deletes = {made!r}, not {specification.deletes!r}; "
            "decode to another table."
        )


def by(keys: Sequence[str]) -> str:
    return "the record's key" if tuple(keys) == (KEY,) else ", ".join(keys)


def bad_places(dlq: DecodedTable, spans: Sequence[Span]) -> frozenset[tuple[int, int]]:
    """Return (partition, offset) of a dlq table's rows that are in the spans."""
    filesystem = dlq.location.filesystem()
    bounds = {span.partition: span for span in spans}
    places = set()
    with store_errors(dlq.location):
        for row in pa.table(dlq.delta.get_add_actions(flatten=True)).to_pylist():
            file = read_columns(filesystem, f"{dlq.location.path}/{row['path']}", ["partition", "offset"])
            for partition, offset in zip(*(column.to_pylist() for column in file.columns), strict=True):
                span = bounds.get(partition)
                if span is not None and span.start <= offset < span.end:
                    places.add((partition, offset))
    return frozenset(places)
