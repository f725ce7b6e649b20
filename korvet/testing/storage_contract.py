"""The contract suite: tests of everything that `korvet.storage.interface` promises, to inherit.

A test class inherits `StorageContract` and overrides the `environment` fixture, parametrised over the layouts and
mappings of a backend. If the clock of the store can be set, the class inherits `ClockContract` as well; if the store
serves transactions, `TransactionContract` for its log and `StagedOffsetContract` for the offsets of groups.
"""

from __future__ import annotations

from korvet.testing.contract.appending import AppendContract
from korvet.testing.contract.catalogue import CatalogueContract
from korvet.testing.contract.clocks import ClockContract
from korvet.testing.contract.compaction import CompactionContract
from korvet.testing.contract.documents import DocumentContract
from korvet.testing.contract.groups import GroupContract
from korvet.testing.contract.producers import ProducerContract
from korvet.testing.contract.reading import ReadContract
from korvet.testing.contract.retention import RetentionContract
from korvet.testing.contract.sizes import SizeContract
from korvet.testing.contract.staged_offsets import StagedOffsetContract
from korvet.testing.contract.times import TimeContract
from korvet.testing.contract.transactions import TransactionContract
from korvet.testing.contract.watching import WatchContract

__all__ = ["ClockContract", "StagedOffsetContract", "StorageContract", "TransactionContract"]


class StorageContract(
    CatalogueContract,
    AppendContract,
    ProducerContract,
    ReadContract,
    TimeContract,
    RetentionContract,
    CompactionContract,
    SizeContract,
    WatchContract,
    GroupContract,
    DocumentContract,
):
    """All parts of the suite that every backend must pass."""
