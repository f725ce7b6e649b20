"""Rows counted and summed up, as they come, to be compared with what was committed."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from attrs import define

from korvet.lake.errors import DamagedFile
from korvet.lake.schema import Int64s
from korvet.lake.told import MODULUS
from korvet.lake.writing import checksum


@define
class Tally:
    """How many rows of a partition there were, and their checksum (see `writing.checksum`)."""

    partition: int
    count: int = 0
    checksum: int = 0

    def add(self, rows: pa.Table) -> None:
        self.count += rows.num_rows
        self.checksum = (self.checksum + checksum(rows)) % MODULUS

    def add_in_order(self, rows: pa.Table, last: int, name: str) -> int:
        """Add rows that must be the partition's, behind the offset `last`; the last one's. Raises DamagedFile."""
        if not rows.num_rows:
            return last
        offsets: Int64s = rows["offset"].to_numpy()
        if not (rows["partition"].to_numpy() == self.partition).all():
            raise DamagedFile(f"{name} is damaged: it has rows that are not of partition {self.partition}.")
        if offsets[0] <= last or (np.diff(offsets) <= 0).any():
            raise DamagedFile(f"{name} is damaged: its rows are not in the order of their offsets.")
        self.add(rows)
        return int(offsets[-1])
