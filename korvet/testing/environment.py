"""The interface by which the contract suite and the state machine access the store under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from attrs import define

from korvet.storage.interface import Storage, StorageDefaults, TopicPartition
from korvet.testing.records import StoredRecord


@define
class ManualClock:
    """A clock in milliseconds since 1970 that tests set, forward or back."""

    now_ms: int = 1_750_000_000_000

    def __call__(self) -> int:
        return self.now_ms


Disturbance = Callable[[Storage], Awaitable[None]]


class Environment(ABC):
    """One store, empty at first.

    `settings` and `open` are mandatory. The other members are optional abilities of the store; without them, the
    machine leaves out the steps that need them. `ClockContract` requires a `clock`.
    """

    #: Settings of every topic in the tests: layout, mapping, …
    settings: Mapping[str, str]

    #: The store's clock, if tests can set it.
    clock: ManualClock | None = None

    @abstractmethod
    def open(self, defaults: StorageDefaults | None = None) -> AbstractAsyncContextManager[Storage]:
        """Open the store as a broker does. A second call while it is open stands for another broker on the store.

        If only one broker can use the store, both calls yield the same object.
        """

    def disturbances(self) -> Mapping[str, Disturbance]:
        """Return disturbances that a storage must hide from its users: a lost connection, an emptied script cache, …"""
        return {}

    #: True if other programs can add and remove entries without the broker. Then override the next two methods.
    has_plain_writers: bool = False

    async def write_by_hand(self, tp: TopicPartition, value: bytes) -> StoredRecord:
        """Add an entry as a client without korvet does. Return the record that consumers must receive."""
        raise NotImplementedError

    async def trim_by_hand(self, tp: TopicPartition, offset: int) -> None:
        """Remove every entry below `offset` as such a client does; the log start stays where it is."""
        raise NotImplementedError
