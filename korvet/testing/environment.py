"""A store to be tested, as the contract suite and the state machine see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from attrs import define

from korvet.storage.interface import Storage, StorageDefaults, TopicPartition
from korvet.testing.records import StoredRecord


@define
class ManualClock:
    """Milliseconds since 1970 that pass only when a test says so, and in either direction."""

    now_ms: int = 1_750_000_000_000

    def __call__(self) -> int:
        return self.now_ms


Disturbance = Callable[[Storage], Awaitable[None]]


class Environment(ABC):
    """One store, empty at first.

    The mandatory parts are `settings` and `open`. The others say what else can be done to this store; what it has
    no way to do stays as it is here, and the machine leaves those steps out.
    """

    #: What every topic of the tests is created with: layout, mapping, …; `ClockContract` wants a `clock`.
    settings: Mapping[str, str]

    #: The clock the store goes by, where it can be set.
    clock: ManualClock | None = None

    @abstractmethod
    def open(self, defaults: StorageDefaults | None = None) -> AbstractAsyncContextManager[Storage]:
        """Open the store as a broker does. Opened again meanwhile, it is a second broker on the same store.

        A store that only one broker can have answers with the same object both times.
        """

    def disturbances(self) -> Mapping[str, Disturbance]:
        """What may happen to a storage in use without a trace: a connection lost, a script cache emptied, …"""
        return {}

    #: Whether others can add and remove entries behind the broker's back; then the next two are for real.
    has_plain_writers: bool = False

    async def write_by_hand(self, tp: TopicPartition, value: bytes) -> StoredRecord:
        """Add a record as a client that knows nothing of korvet does; what readers shall see of it."""
        raise NotImplementedError

    async def trim_by_hand(self, tp: TopicPartition, offset: int) -> None:
        """Remove every entry below `offset` as such a client does; the log start stays where it is."""
        raise NotImplementedError
