"""The environment of the memory backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from attrs import define, field

from korvet.storage.interface import Storage, StorageDefaults
from korvet.storage.memory import MemoryStorage
from korvet.testing.environment import Environment, ManualClock


@define(eq=False)
class MemoryEnvironment(Environment):
    """One MemoryStorage. Two brokers cannot share it, so every `open` yields the same one."""

    settings: Mapping[str, str] = field(factory=dict)
    clock: ManualClock = field(factory=ManualClock)
    _storage: MemoryStorage | None = None

    @asynccontextmanager
    async def open(self, defaults: StorageDefaults | None = None) -> AsyncIterator[Storage]:
        if self._storage is None:
            self._storage = MemoryStorage(defaults or StorageDefaults(), clock=self.clock)
        yield self._storage
