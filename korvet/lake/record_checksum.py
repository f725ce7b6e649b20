"""Count and checksum of rows, summed while reading, for comparison with a commit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from attrs import define

from korvet.lake.errors import DamagedFile
from korvet.lake.file_writing import checksum
from korvet.lake.range_checksums import MODULUS
from korvet.lake.schema import Int64s


@define
class RecordChecksum:
    """Number and checksum of a partition's rows (see `writing.checksum`)."""

    partition: int
    count: int = 0
    checksum: int = 0

    def add(self, rows: pa.Table) -> None:
        self.count += rows.num_rows
        self.checksum = (self.checksum + checksum(rows)) % MODULUS

    def add_in_order(self, rows: pa.Table, last: int, name: str) -> int:
        """Add rows of the partition, all after the offset `last`. Return the last offset. Raises DamagedFile."""
        if not rows.num_rows:
            return last
        offsets: Int64s = rows["offset"].to_numpy()
        if not (rows["partition"].to_numpy() == self.partition).all():
            raise DamagedFile(f"{name} is damaged: it has rows that are not of partition {self.partition}.")
        if offsets[0] <= last or (np.diff(offsets) <= 0).any():
            raise DamagedFile(f"{name} is damaged: its rows are not in the order of their offsets.")
        self.add(rows)
        return int(offsets[-1])
