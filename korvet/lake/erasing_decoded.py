"""Erase rows of typed and dlq tables by the partition and offset of their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs
from attrs import define, field
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from korvet.lake.errors import CommitConflict
from korvet.lake.file_reading import checked
from korvet.lake.location import Location
from korvet.lake.parallel import results
from korvet.lake.schema import Int64s
from korvet.lake.store_errors import first_line, store_errors
from korvet.lake.table import KIND, TOPIC
from korvet.lake.table_features import refuse_other_features

# By kind of table, the columns with a row's partition and offset in the topic.
PLACES = {"typed": ("_partition", "_offset"), "dlq": ("partition", "offset")}
# Offsets in the predicate of one DELETE.
PLACES_AT_ONCE = 1_000
# Conflicting commits of other writers before giving up.
CONFLICTS = 100


@define
class DecodedErasure:
    """Erases rows from one table decoded from `topic`. `places` are the sorted offsets of each partition."""

    location: Location
    topic: str
    places: Mapping[int, Int64s] = field(repr=False)

    def is_ours(self) -> bool:
        """Return True if this is a typed or dlq table of the topic. Raises LakeError."""
        properties = self._opened().metadata().configuration
        return properties.get(KIND) in PLACES and properties.get(TOPIC) == self.topic

    def find(self) -> int:
        """Return the number of rows to erase. Raises LakeError."""
        delta = self._opened()
        return sum(len(offsets) for offsets in self._found(delta).values())

    def run(self) -> int:
        """Erase the rows and return their number. Raises LakeError."""
        total, conflicts = 0, 0
        while True:
            delta = self._opened()
            found = self._found(delta)
            if not found:
                return total
            refuse_other_features(self.location, delta)
            with store_errors(self.location):
                try:
                    for predicate, count in self._predicates(delta, found):
                        # No retry on top of other writers' commits: deltalake does not detect every conflict. So the
                        # table stays the version that was searched, apart from the rows deleted here.
                        delta.delete(predicate, commit_properties=CommitProperties(max_commit_retries=0))
                        total += count
                except CommitFailedError as error:
                    conflicts += 1
                    if conflicts == CONFLICTS:
                        raise CommitConflict(f"{self.location}: {first_line(error)}") from error

    def vacuum(self) -> int:
        """Delete the files of all older versions and return their number. Raises LakeError."""
        with store_errors(self.location):
            return len(self._opened().vacuum(0, dry_run=False, enforce_retention_duration=False))

    def _opened(self) -> DeltaTable:
        with store_errors(self.location):
            return DeltaTable(self.location.url, storage_options=self.location.storage_options())

    def _found(self, delta: DeltaTable) -> dict[int, Int64s]:
        """Return, by partition, the offset of each row to erase; an offset repeats if several rows have it."""
        filesystem = self.location.filesystem()
        files = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        found: dict[int, list[Int64s]] = {}
        with store_errors(self.location):
            for _, (partitions, offsets) in results(partial(self._places_in, delta, filesystem), files):
                for partition, wanted in self.places.items():
                    some = offsets[(partitions == partition) & np.isin(offsets, wanted)]
                    if len(some):
                        found.setdefault(partition, []).append(some)
        return {partition: np.concatenate(several) for partition, several in found.items()}

    def _places_in(
        self, delta: DeltaTable, filesystem: pafs.FileSystem, file: Mapping[str, Any]
    ) -> tuple[Int64s, Int64s]:
        """Return partition and offset of each row of a file; partition columns are not in the file itself."""
        names = self._columns(delta)
        inside = [name for name in names if f"partition.{name}" not in file]
        with filesystem.open_input_file(f"{self.location.path}/{unquote(file['path'])}") as source:
            parquet = checked(source)
            count = parquet.metadata.num_rows
            rows = parquet.read(columns=inside)
        partitions, offsets = (
            rows[name].to_numpy() if name in inside else np.full(count, file[f"partition.{name}"])
            for name in names
        )
        return partitions, offsets

    def _columns(self, delta: DeltaTable) -> tuple[str, str]:
        properties: Mapping[str, Any] = delta.metadata().configuration
        return PLACES[properties[KIND]]

    def _predicates(self, delta: DeltaTable, found: Mapping[int, Int64s]) -> Iterator[tuple[str, int]]:
        """Yield predicates for at most PLACES_AT_ONCE offsets of a partition, each with the rows that it selects."""
        names = self._columns(delta)
        for partition, offsets in found.items():
            distinct, counts = np.unique(offsets, return_counts=True)
            for first in range(0, len(distinct), PLACES_AT_ONCE):
                chosen = slice(first, first + PLACES_AT_ONCE)
                listed = ", ".join(map(str, distinct[chosen].tolist()))
                text = f'"{names[0]}" = {partition} AND "{names[1]}" IN ({listed})'
                yield text, int(counts[chosen].sum())
