"""Keep an Iceberg table in step with a Delta table of korvet's: the same files, described in a catalogue.

Delta's log remains the only truth. The mirror compares sets: what the newest Delta version has, and what the Iceberg
table's snapshot has. The difference is right from any snapshot, so nothing that was lost or repeated before matters.

One commit makes the Iceberg table equal to a Delta version. It requires that the snapshot is still the one that was
compared, adds snapshots also if no file differs, and is never repeated by PyIceberg (`commit.retry.num-retries=0`):
with a retry, a mirror that lost against another one would add the same files again. The property `korvet.delta` names
the Delta table and the version; the snapshots carry it as well, so that a mirror notices a foreign snapshot.

| event | outcome |
|---|---|
| two mirrors commit | one is refused, and compares again |
| killed before the commit | manifests without a snapshot, which `korvet.lake.iceberg.upkeep` removes |
| killed after the commit, its answer lost | the next round reads the property |
| files are joined, dropped, erased, merged | snapshots `replace`, `delete`, `overwrite` |
| a foreign snapshot, another Delta table, an older version | Diverged; nothing is written until the table is rebuilt |

The Iceberg table lies in `_iceberg` inside the Delta table: cleaning up a Delta table leaves folders with an underscore
alone, and cleaning up the Iceberg table's own folder finds no file of the Delta table.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from enum import StrEnum
from typing import Any, Protocol

import pyarrow as pa
from attrs import frozen
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles

from korvet.lake.errors import LakeError
from korvet.lake.files import FileRange, file_range
from korvet.lake.iceberg.original import (
    RESERVED,
    TYPE_ERRORS,
    Original,
    delta_name,
    iceberg_name,
    refused_types,
)
from korvet.lake.iceberg.table_schema import SCHEMA
from korvet.lake.mirrored import FOLDER, MIRRORED

logger = logging.getLogger(__name__)

#: The property with a hash of the Delta schema that the Iceberg table's was made of.
SCHEMA_HASH = "korvet.schema"
NAME_MAPPING = "schema.name-mapping.default"
ROUNDS = 5
PROPERTIES = {
    "format-version": "2",
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class Diverged(LakeError):  # noqa: N818  the name states the fault
    """The Iceberg table is not a mirror of this Delta table, or another program has written to it."""


class CatalogueRefused(LakeError):  # noqa: N818  the name states the fault
    """The catalogue refuses the commit, or cannot be reached; nothing or everything of it was done."""


class Change(StrEnum):
    """The kinds of change that a round makes to an Iceberg table."""

    CREATED = "created"
    COMMITTED = "committed"
    NONE = "up to date"


@frozen
class Mirrored:
    """The result of a round: the Delta version that the Iceberg table shows now, and the difference it made."""

    version: int
    change: Change
    added: int = 0
    removed: int = 0


class Catalogue(Protocol):
    """The part of a catalogue that a mirror uses. `PathCatalog` has just this, PyIceberg's have more."""

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace. Raises NamespaceAlreadyExistsError."""

    def load_table(self, identifier: tuple[str, str]) -> Table:
        """Open a table. Raises NoSuchTableError."""

    def create_table(
        self,
        identifier: tuple[str, str],
        schema: Schema | pa.Schema,
        *,
        location: str,
        partition_spec: PartitionSpec,
        properties: dict[str, Any],
    ) -> Table:
        """Create a table. Raises TableAlreadyExistsError."""

    def drop_table(self, identifier: tuple[str, str]) -> None:
        """Remove a table, and no data. Raises NoSuchTableError."""


@frozen
class Mirror:
    """The Iceberg table `namespace`.<name of the topic> in a catalogue."""

    catalog: Catalogue
    namespace: str

    def update(self, original: Original) -> Mirrored:
        """Make the Iceberg table equal to the original's version, or to a newer one.

        Raises Diverged, NotMirrored, CatalogueRefused, and LakeError for faults of the original.
        """
        for _ in range(ROUNDS):
            table, change = self._opened(original)
            known = mirrored_version(table, original)
            if known == original.version:
                return Mirrored(original.version, change)
            if known is not None and known > original.version:
                original = original.reopened()
                if known <= original.version:
                    continue
                raise Diverged(
                    f"{_named(table)} shows version {known} of {original.location}, whose newest version is"
                    f" {original.version}; --rebuild makes it again."
                )
            try:
                added, removed = _commit(table, original, known)
            except CommitFailedException:
                continue  # another mirror was first
            except CommitStateUnknownException:
                logger.info(
                    "%(table)s: the catalogue did not answer a commit; it is looked up",
                    {"table": _named(table)},
                )
                continue
            if change is Change.NONE:
                change = Change.COMMITTED
            return Mirrored(original.version, change, added, removed)
        raise CatalogueRefused(
            f"{self.namespace}.{original.name}: the catalogue refused {ROUNDS} commits in a row; try again."
        )

    def rebuild(self, original: Original) -> Mirrored:
        """Remove the Iceberg table from the catalogue, which deletes no data, and make it again."""
        with suppress(NoSuchTableError):
            self.catalog.drop_table((self.namespace, original.name))
        return self.update(original)

    def table(self, topic: str) -> Table:
        """Open the Iceberg table of a topic. Raises NoSuchTableError."""
        return self.catalog.load_table((self.namespace, topic))

    def _opened(self, original: Original) -> tuple[Table, Change]:
        identifier = (self.namespace, original.name)
        with suppress(NoSuchTableError):
            return self.catalog.load_table(identifier), Change.NONE
        with suppress(NamespaceAlreadyExistsError):
            self.catalog.create_namespace(self.namespace)
        try:
            table = self.catalog.create_table(
                identifier,
                original.schema,
                location=f"{original.location.url}/{FOLDER}",
                partition_spec=original.spec,
                properties={**PROPERTIES, MIRRORED: _mark(original, -1), SCHEMA_HASH: original.schema_hash},
            )
        except TYPE_ERRORS as error:
            raise refused_types(original, error) from error
        except TableAlreadyExistsError:
            return self.catalog.load_table(identifier), Change.NONE
        return table, Change.CREATED


def mirrored_version(table: Table, original: Original) -> int | None:
    """Return the Delta version that the Iceberg table shows, None if it shows none yet. Raises Diverged."""
    again = "--rebuild makes it again."
    mark = table.properties.get(MIRRORED)
    if mark is None:
        raise Diverged(
            f"{_named(table)} is a table of the catalogue, but no mirror of korvet's; choose --namespace."
        )
    owner, _, version = mark.rpartition(":")
    if owner != original.id:
        raise Diverged(f"{_named(table)} mirrors another table than {original.location}; {again}")
    has_columns = not original.is_archive or table.schema().as_struct() == SCHEMA.as_struct()
    if not has_columns or not original.is_partitioned_as(table.spec()):
        raise Diverged(f"{_named(table)} has other columns or partitions than {original.location}; {again}")
    snapshot = table.current_snapshot()
    if snapshot is not None and (snapshot.summary is None or snapshot.summary.get(MIRRORED) != mark):
        raise Diverged(
            f"another program has written snapshot {snapshot.snapshot_id} to {_named(table)}; {again}"
        )
    if snapshot is None and int(version) >= 0:
        raise Diverged(f"another program has removed the snapshots of {_named(table)}; {again}")
    return None if snapshot is None else int(version)


def live_files(table: Table) -> dict[str, DataFile]:
    """Return the data files of the Iceberg table's snapshot by their URLs."""
    snapshot = table.current_snapshot()
    if snapshot is None:
        return {}
    return {
        entry.data_file.file_path: entry.data_file
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def _commit(table: Table, original: Original, known: int | None) -> tuple[int, int]:
    """Commit the difference, also if there is none. Return the number of files that were added and removed.

    `known` is the version that the Iceberg table shows.
    """
    transaction = Transaction(table)
    _describe_columns(transaction, original)
    wanted, live = original.data_files(transaction.table_metadata.schema()), live_files(table)
    new = [file for path, file in wanted.items() if path not in live]
    gone = [file for path, file in live.items() if path not in wanted]
    mark = {MIRRORED: _mark(original, original.version)}
    if gone:
        moved = None if known is None else original.moved_since(known)
        replacing, new = _split(new, gone, moved)
        operation = _operation(replacing, gone, is_moved=moved is not None)
        removal = _Replacing(operation, transaction, table.io, snapshot_properties=mark)
        for file in gone:
            removal.delete_data_file(file)
        for file in replacing:
            removal.append_data_file(file)
        removal.commit()
    if new or not gone:
        # An empty snapshot lets the commit of a mirror fail that compares an older version at the same time.
        addition = _MergeAppendFiles(Operation.APPEND, transaction, table.io, snapshot_properties=mark)
        for file in new:
            addition.append_data_file(file)
        addition.commit()
    transaction.set_properties(mark)
    transaction.commit_transaction()
    return len(wanted.keys() - live.keys()), len(gone)


def _describe_columns(transaction: Transaction, original: Original) -> None:
    """Add the columns that the original has gained, and name all columns for files, which have no field ids."""
    properties = transaction.table_metadata.properties
    reserved = RESERVED.intersection(transaction.table_metadata.schema().column_names)
    if reserved:  # by an earlier korvet
        with transaction.update_schema() as update:
            for name in sorted(reserved):
                update.rename_column(name, iceberg_name(name))
    if properties.get(SCHEMA_HASH) != original.schema_hash:
        try:
            with transaction.update_schema() as update:
                update.union_by_name(original.schema)
        except TYPE_ERRORS as error:
            raise refused_types(original, error) from error
        transaction.set_properties({SCHEMA_HASH: original.schema_hash})
    mapping = _name_mapping(transaction.table_metadata.schema())
    if properties.get(NAME_MAPPING) != mapping:
        transaction.set_properties({NAME_MAPPING: mapping})


def _name_mapping(schema: Schema) -> str:
    """Return the names that the columns have in files, as Iceberg's JSON."""
    fields = json.loads(schema.name_mapping.model_dump_json())
    return json.dumps([{**each, "names": [delta_name(name) for name in each["names"]]} for each in fields])


def _split(
    new: Iterable[DataFile], gone: Collection[DataFile], moved: Collection[str] | None
) -> tuple[list[DataFile], list[DataFile]]:
    """Return the new files that have rows of files that are gone, and the others. `moved` names them, if known."""
    ranges = [held for file in gone if (held := file_range(file.file_path)) is not None]
    replacing: list[DataFile] = []
    others: list[DataFile] = []
    for file in new:
        if moved is not None:
            is_replacement = file.file_path in moved
        else:
            held = file_range(file.file_path)
            is_replacement = held is None or any(_overlap(held, each) for each in ranges)
        (replacing if is_replacement else others).append(file)
    return replacing, others


def _overlap(one: FileRange, other: FileRange) -> bool:
    return one.partition == other.partition and one.start < other.end and other.start < one.end


def _operation(new: Collection[DataFile], gone: Collection[DataFile], *, is_moved: bool) -> Operation:
    """Return what a snapshot does: readers of changes may ignore `replace`, whose rows are the same."""
    if not new:
        return Operation.DELETE
    # Joined files may also have rows of files that were never mirrored, and then have more rows.
    is_same = sum(file.record_count for file in new) == sum(file.record_count for file in gone)
    is_moved = is_moved or all(file_range(file.file_path) is not None for file in new)
    return Operation.REPLACE if is_same and is_moved else Operation.OVERWRITE


class _Replacing(_OverwriteFiles):
    """Removes files and adds others. PyIceberg itself writes no `replace`."""

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006  PyIceberg's signature
        operation, self._operation = self._operation, Operation.OVERWRITE
        summary = super()._summary(snapshot_properties)
        self._operation = operation
        values: dict[str, Any] = summary.additional_properties
        return Summary(operation=operation, **values)


def _mark(original: Original, version: int) -> str:
    return f"{original.id}:{version}"


def _named(table: Table) -> str:
    return ".".join(table.name())
