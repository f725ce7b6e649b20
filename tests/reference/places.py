"""The backends, layouts and mappings that the statements of the reference pages are tested on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from attrs import frozen

from tests.servers import VALKEY, ServerKind, kinds

# The four pairs on one server; on the others, the two that differ in both, as the contract suite.
ALL_PAIRS = (("record", "timestamp"), ("record", "dense"), ("batch", "timestamp"), ("batch", "dense"))
TWO_PAIRS = (("record", "timestamp"), ("batch", "dense"))


@frozen
class Place:
    """A backend, and the layout and mapping of the topics on it."""

    kind: ServerKind | None  # None: memory
    layout: str
    mapping: str

    @property
    def id(self) -> str:
        return "-".join((self.kind.id if self.kind else "memory", self.layout, self.mapping))


MEMORY = [Place(None, "record", mapping) for mapping in ("timestamp", "dense")]
REDIS = [
    Place(kind, layout, mapping)
    for kind in kinds()
    for layout, mapping in (ALL_PAIRS if kind is VALKEY else TWO_PAIRS)
]


def parameters(places: Sequence[Place]) -> list[object]:
    return [
        pytest.param(place, id=place.id, marks=pytest.mark.servers if place.kind else []) for place in places
    ]


def on(places: Sequence[Place]) -> pytest.MarkDecorator:
    """Run a test on these places only."""
    return pytest.mark.parametrize("place", parameters(places), indirect=True)


ON_REDIS = on(REDIS)
BY_TIME = on([place for place in MEMORY + REDIS if place.mapping == "timestamp"])
BY_TIME_ON_REDIS = on([place for place in REDIS if place.mapping == "timestamp"])
DENSE = on([place for place in MEMORY + REDIS if place.mapping == "dense"])
RECORDS_ON_REDIS = on([place for place in REDIS if place.layout == "record"])
