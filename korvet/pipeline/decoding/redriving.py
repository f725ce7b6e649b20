"""Decode the rows of a dlq table again, for example after a change of the specification.

The rows that fit now are added to the typed table in a first commit, and removed from the dlq table in a second one. If
the process is killed in between, they are in both tables. So a row that the typed table has already is only removed.
Two processes cannot add the same rows: each first commit sets the same `txn`, so one of two is refused. Rows at offsets
that the typed table has not reached are left, because an interrupted round will decode them.

A row of an upsert table is merged, so a later row of its key stays. That needs `deletes = "soft"`: only a marked row
shows that a key was deleted later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from attrs import define, evolve, field

from korvet.lake.errors import CommitConflict, LakeError
from korvet.lake.replacing import swap
from korvet.lake.schema import FILE_SCHEMA
from korvet.lake.table_features import refuse_other_features
from korvet.pipeline.decoding import schemas, upserting
from korvet.pipeline.decoding.columns import RESERVED
from korvet.pipeline.decoding.decoded_files import PartWriter
from korvet.pipeline.decoding.rewriting import conformed_rows
from korvet.pipeline.decoding.rounds import Decoding, refuse_other_partitions
from korvet.pipeline.decoding.row_decoding import DLQ_SCHEMA, Decoder, decode, infer_columns, nullable
from korvet.pipeline.decoding.tables import DLQ, TYPED, DecodedFile, DecodedTable

REDRIVEN = "korvet.redriven"
# Bytes of dlq files that are decoded together, in this process.
GROUP_BYTES = 32 * 1024**2
ATTEMPTS = 10

Mask = npt.NDArray[np.bool_]


class NotRedriven(LakeError):  # noqa: N818  the name states the fault
    """The specification does not permit to decode bad rows again."""


@define
class Redriven:
    """The number of rows that were decoded again, of those that fit now, and the columns added for them, as DDL."""

    rows: int = 0
    typed: int = 0
    columns: list[str] = field(factory=list)


def redrive(decoding: Decoding) -> Redriven:
    """Decode all rows of the dlq table again. Raises NotRedriven, SchemaFault, RegistryError and LakeError."""
    specification = decoding.specification
    if specification.upsert and (specification.deletes == "hard" or specification.record is not None):
        raise NotRedriven(
            f"{specification.topic}: rows of a table with upsert are decoded again only with deletes = 'soft' and "
            "without records, or a row could return after its deletion."
        )
    if not decoding.keeps_bad:
        raise NotRedriven(
            f"{specification.topic}: with on_error = {specification.on_error!r} there is no dlq table."
        )
    done = Redriven()
    decoding.open_archive()
    dlq = decoding.find(decoding.dlq_location, DLQ)
    for paths in _groups(dlq.files if dlq else ()):
        for attempt in range(ATTEMPTS):
            try:
                _redrive_files(decoding, paths, done)
                break
            except CommitConflict:
                if attempt == ATTEMPTS - 1:
                    raise
    return done


def _groups(files: Iterable[DecodedFile]) -> Iterator[set[str]]:
    paths: set[str] = set()
    size = 0
    for file in files:
        if paths and size + file.size > GROUP_BYTES:
            yield paths
            paths, size = set(), 0
        paths.add(file.path)
        size += file.size
    if paths:
        yield paths


def _redrive_files(decoding: Decoding, paths: set[str], done: Redriven) -> None:
    """Decode the rows of some files of the dlq table again. Files that it does not have any more are left out."""
    # The dlq table first: what was added to the typed table since then is found there.
    dlq = decoding.find(decoding.dlq_location, DLQ)
    typed = decoding.find(decoding.typed_location, TYPED)
    files = [] if dlq is None else [file for file in dlq.files if file.path in paths]
    if dlq is None or typed is None or not files:
        return
    refuse_other_features(dlq.location, dlq.delta)
    rows = _rows(dlq, files)
    is_upsert = decoding.specification.upsert
    # A merge ignores rows that the table has already, or later rows of their keys.
    there = np.zeros(rows.num_rows, bool) if is_upsert else _in_typed(typed, rows)
    reached = _reached(typed, rows)
    again = rows.filter(pa.array(reached & ~there)).select(FILE_SCHEMA.names).combine_chunks()
    typed, decoder, added = _with_columns(decoding, typed, again)
    if (
        decoder.selection is not None
    ):  # rows of types that have tables by now stay, since these tables have them
        decoder = evolve(decoder, selection=decoder.selection.alone())
    decoded = decode(decoder, again)
    fit = decoded.typed.num_rows
    if fit:
        decoding.on_step("before redrive")
        info, numbers = {REDRIVEN: fit}, {f"{typed.app_id}/redrive": dlq.version}
        if is_upsert:
            upserting.merge(typed, decoded.typed, decoder.keys, (), info=info, transactions=numbers)
        else:
            with PartWriter(typed.location, decoder.partition_columns()) as writer:
                writer.write(decoded.typed)
            typed.write([part.add_action() for part in writer.parts], info, numbers)
        done.columns += [added] if added else []
    decoding.on_step("between commits of redrive")
    if fit or there.any():
        left = pa.concat_tables([rows.filter(pa.array(~reached & ~there)), decoded.bad]).combine_chunks()
        with PartWriter(dlq.location) as writer:
            writer.write(left)
        gone = [file.remove_action(data_change=True) for file in files]
        swap(dlq, gone, [part.add_action() for part in writer.parts], lambda _: {})
    decoding.on_step("after redrive")
    done.rows += again.num_rows
    done.typed += fit


def _rows(dlq: DecodedTable, files: Sequence[DecodedFile]) -> pa.Table:
    """Return the rows of files of the dlq table. Raises DamagedFile, AbsentFile, Unreachable."""
    filesystem = dlq.location.filesystem()
    tables = [rows for file in files for rows in conformed_rows(dlq, file, DLQ_SCHEMA, filesystem)]
    return pa.concat_tables(tables)


def _in_typed(typed: DecodedTable, rows: pa.Table) -> Mask:
    """Return which rows the typed table has."""
    partitions, offsets = (rows[name].to_numpy() for name in ("partition", "offset"))
    found = np.zeros(rows.num_rows, bool)
    near = _near(typed, int(offsets.min()), int(offsets.max()))
    for partition, there in typed.offsets(near).items():
        found |= (partitions == partition) & np.isin(offsets, there)
    return found


def _near(typed: DecodedTable, first: int, last: int) -> list[DecodedFile]:
    """Return the files that may have rows with these offsets, by their statistics."""
    _, name = typed.place
    return [
        file
        for file in typed.files
        if file.least.get(name, first) <= last and file.greatest.get(name, last) >= first
    ]


def _reached(typed: DecodedTable, rows: pa.Table) -> Mask:
    """Return which rows are below the decoded offset of the typed table."""
    partitions, offsets = (rows[name].to_numpy() for name in ("partition", "offset"))
    found = np.zeros(rows.num_rows, bool)
    for partition, end in typed.decoded_up_to.items():
        found |= (partitions == partition) & (offsets < end)
    return found


def _with_columns(
    decoding: Decoding, typed: DecodedTable, rows: pa.Table
) -> tuple[DecodedTable, Decoder, str]:
    """Add the columns that the rows need. Return the table, its decoder, and the new columns."""
    decoder = decoding.decoder(typed)
    refuse_other_partitions(typed, decoder)
    if decoding.specification.unknown == "add":
        decoder = decoding.grown(decoder, [infer_columns(decoder, rows)])
    before = nullable(pa.schema(list(typed.schema)))
    new = [one for one in nullable(decoder.schema) if one not in before]
    if new:
        typed = typed.with_columns(new)
    return typed, decoder, schemas.ddl([one for one in new if one.name not in RESERVED])
