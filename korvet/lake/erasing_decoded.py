"""Rows of typed and dlq tables erased, by the places their records had in the topic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from attrs import define, field
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

from korvet.lake.errors import CommitConflict
from korvet.lake.location import Location
from korvet.lake.schema import Int64s
from korvet.lake.table import KIND, TOPIC, first_line, store_errors

# By the kind of a table, the columns that say which record a row was made of.
PLACES = {"typed": ("_partition", "_offset"), "dlq": ("partition", "offset")}
# Of one DELETE.
PLACES_AT_ONCE = 1_000
# How often others may be faster.
CONFLICTS = 100


@define
class DecodedErasure:
    """Erases rows from one table, decoded from `topic`; `places` are the offsets, sorted, of each partition."""

    location: Location
    topic: str
    places: Mapping[int, Int64s] = field(repr=False)

    def is_ours(self) -> bool:
        """Whether it is a table of this topic. Raises LakeError."""
        told = self._opened().metadata().configuration
        return told.get(KIND) in PLACES and told.get(TOPIC) == self.topic

    def find(self) -> int:
        """How many rows there are to erase. Raises LakeError."""
        delta = self._opened()
        return sum(len(offsets) for offsets in self._found(delta).values())

    def run(self) -> int:
        """Erase; how many rows that were. Raises LakeError."""
        total, conflicts = 0, 0
        while True:
            delta = self._opened()
            found = self._found(delta)
            if not found:
                return total
            predicate, count = self._predicate(delta, found)
            with store_errors(self.location):
                try:
                    # Not committed on top of what others do meanwhile: deltalake does not see all that excludes it.
                    delta.delete(predicate, commit_properties=CommitProperties(max_commit_retries=0))
                    total += count
                except CommitFailedError as error:
                    conflicts += 1
                    if conflicts == CONFLICTS:
                        raise CommitConflict(f"{self.location}: {first_line(error)}") from error

    def vacuum(self) -> int:
        """Remove the files of all older versions now; how many there were. Raises LakeError."""
        with store_errors(self.location):
            return len(self._opened().vacuum(0, dry_run=False, enforce_retention_duration=False))

    def _opened(self) -> DeltaTable:
        with store_errors(self.location):
            return DeltaTable(self.location.url, storage_options=self.location.storage_options())

    def _found(self, delta: DeltaTable) -> dict[int, Int64s]:
        """By partition, the offsets of the rows that are to go, each as often as there is a row of it."""
        found: dict[int, list[Int64s]] = {}
        for batch in self._places_in(delta):
            partitions, offsets = (column.to_numpy(zero_copy_only=False) for column in batch.columns)
            for partition, wanted in self.places.items():
                some = offsets[(partitions == partition) & np.isin(offsets, wanted)]
                if len(some):
                    found.setdefault(partition, []).append(some)
        return {partition: np.concatenate(several) for partition, several in found.items()}

    def _places_in(self, delta: DeltaTable) -> Iterator[pa.RecordBatch]:
        with store_errors(self.location):
            yield from delta.to_pyarrow_dataset().scanner(columns=list(self._columns(delta))).to_batches()

    def _columns(self, delta: DeltaTable) -> tuple[str, str]:
        told: Mapping[str, Any] = delta.metadata().configuration
        return PLACES[told[KIND]]

    def _predicate(self, delta: DeltaTable, found: Mapping[int, Int64s]) -> tuple[str, int]:
        """What says of one partition's rows, not too many, that they are meant; and how many these are."""
        partition, offsets = next(iter(found.items()))
        chosen = np.unique(offsets)[:PLACES_AT_ONCE]
        names = self._columns(delta)
        listed = ", ".join(map(str, chosen.tolist()))
        text = f'"{names[0]}" = {partition} AND "{names[1]}" IN ({listed})'
        return text, int(np.isin(offsets, chosen).sum())
