"""A table of APIs whose handlers are replaced, for faults and for traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import define, evolve, field

from korvet.protocol.connection import Api


@define
class WrappedApis(Mapping[int, Api]):
    """The APIs of another table. `wrap` returns the new handler of an API, when the API is first used."""

    apis: Mapping[int, Api]
    wrap: Callable[[Api], Any]
    _made: dict[int, Api] = field(factory=dict)

    def __getitem__(self, key: int) -> Api:
        if key not in self._made:
            api = self.apis[key]
            self._made[key] = evolve(api, handle=self.wrap(api))
        return self._made[key]

    def __iter__(self) -> Iterator[int]:
        return iter(self.apis)

    def __len__(self) -> int:
        return len(self.apis)
