"""A catalogue without a server, for lakes in local folders: the table's folder says which metadata is the newest.

Version N of a table is `metadata/vN.metadata.json`, created by a hard link, so that only one of several writers creates
it. `metadata/version-hint.text` names the newest one for readers that open a table by its path (DuckDB's
`iceberg_scan`, Spark's Hadoop tables); writers list the folder instead, since a writer may be killed before it writes
the hint.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pyarrow as pa
from attrs import frozen
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import load_file_io
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import TableRequirement, TableUpdate, update_table_metadata

from korvet.lake.errors import InvalidLocation
from korvet.lake.location import Location, sync

VERSION = re.compile(r"v(\d+)\.metadata\.json")
HINT = "version-hint.text"


@frozen
class PathCatalog:
    """The Iceberg tables in the folder of a lake: `<lake>/<topic>/<folder>`. There are no namespaces."""

    lake: Location
    folder: str

    def __attrs_post_init__(self) -> None:
        if not self.lake.is_local:
            raise InvalidLocation(
                f"{self.lake}: Iceberg tables in an object store need a catalogue; name one with --catalog."
            )

    def create_namespace(self, namespace: str) -> None:
        """Do nothing: paths have no namespaces."""

    def load_table(self, identifier: tuple[str, str]) -> Table:
        """Open a table. Raises NoSuchTableError."""
        folder = self._metadata_folder(identifier)
        version = self._newest(folder)
        if version is None:
            raise NoSuchTableError(f"There is no Iceberg table at {folder.parent}")
        path = (folder / f"v{version}.metadata.json").as_uri()
        io = load_file_io(location=path)
        return self._table(identifier, FromInputFile.table_metadata(io.new_input(path)), path)

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
        folder = self._metadata_folder(identifier)
        folder.mkdir(parents=True, exist_ok=True)
        columns = Catalog._convert_schema_if_needed(schema)  # noqa: SLF001  as other catalogues do
        metadata = new_table_metadata(columns, partition_spec, UNSORTED_SORT_ORDER, location, properties)
        try:
            path = self._write(folder, 1, metadata)
        except FileExistsError:
            raise TableAlreadyExistsError(f"There is an Iceberg table at {folder.parent}") from None
        return self._table(identifier, metadata, path)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit updates as the next version. Raises CommitFailedException if the requirements do not hold."""
        identifier = cast(tuple[str, str], table.name())
        current = self.load_table(identifier)
        for requirement in requirements:
            requirement.validate(current.metadata)
        folder = self._metadata_folder(identifier)
        metadata = update_table_metadata(
            current.metadata, updates, enforce_validation=False, metadata_location=current.metadata_location
        )
        try:
            path = self._write(folder, _version_of(current.metadata_location) + 1, metadata)
        except FileExistsError:
            raise CommitFailedException(f"another writer has committed to {folder.parent}") from None
        return CommitTableResponse.model_validate({"metadata": metadata, "metadata-location": path})

    def drop_table(self, identifier: tuple[str, str]) -> None:
        """Remove the versions of a table, and no data. Raises NoSuchTableError."""
        folder = self._metadata_folder(identifier)
        if self._newest(folder) is None:
            raise NoSuchTableError(f"There is no Iceberg table at {folder.parent}")
        with suppress(FileNotFoundError):
            (folder / HINT).unlink()
        for path in folder.iterdir():
            if VERSION.fullmatch(path.name):
                path.unlink()

    # PyIceberg's Table asks its catalogue for these.
    _delete_old_metadata = staticmethod(Catalog._delete_old_metadata)  # noqa: SLF001

    def supports_server_side_planning(self) -> bool:
        """Return False: there is no server."""
        return False

    def _metadata_folder(self, identifier: tuple[str, str]) -> Path:
        return Path(self.lake.path) / identifier[-1] / self.folder / "metadata"

    def _newest(self, folder: Path) -> int | None:
        if not folder.is_dir():
            return None
        return max(
            (_version_of(path.name) for path in folder.iterdir() if VERSION.fullmatch(path.name)),
            default=None,
        )

    def _table(self, identifier: tuple[str, str], metadata: TableMetadata, path: str) -> Table:
        return Table(identifier, metadata, path, load_file_io(location=path), cast(Catalog, self))

    def _write(self, folder: Path, version: int, metadata: TableMetadata) -> str:
        """Write a version, and the hint. Raises FileExistsError."""
        path = folder / f"v{version}.metadata.json"
        draft = folder / f".{uuid4().hex}"
        try:
            ToOutputFile.table_metadata(
                metadata, load_file_io(location=draft.as_uri()).new_output(draft.as_uri())
            )
            sync(str(draft))
            os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)
        hint = folder / f".{uuid4().hex}"
        hint.write_text(str(version))
        hint.replace(folder / HINT)
        sync(str(folder))
        return path.as_uri()


def _version_of(location: str) -> int:
    return int(location.rpartition("/")[2].removeprefix("v").partition(".")[0])
