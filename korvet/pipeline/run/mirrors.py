"""The mirrors and registrations of a run's tables. A catalogue is opened when the first table needs it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from attrs import define, field, frozen

from korvet.lake.errors import InvalidLocation, LakeError
from korvet.lake.location import Location
from korvet.lake.registration.rounds import Rounds as Registration
from korvet.lake.registration.target import Target
from korvet.pipeline.run.policy import NAMESPACE, NAMESPACES, TYPED_NAMESPACE

if TYPE_CHECKING:
    from korvet.lake.iceberg.rounds import Rounds
    from korvet.pipeline.run.tables import MirrorOutcome

# The names of namespaces, unless a section has others.
KORVET, TYPED = "korvet", "typed"
# A name in [catalog] that is not for PyIceberg.
NAME = "name"
KEEP = timedelta(hours=24)


@frozen
class NotMirrored:
    """The outcome of a mirror whose catalogue could not be opened."""

    error: str | None
    may_pass: bool
    version: int | None = None


@define
class CatalogueMirrors:
    """Mirrors tables in a catalogue. Only one thread at a time may use it."""

    lake: Location
    name: str | None
    properties: Mapping[str, str]
    namespace: str
    _rounds: Rounds | None = field(default=None, init=False)

    @classmethod
    def of(cls, catalog: Mapping[str, str], lake: Location, *, is_typed: bool) -> Self:
        """Return the mirrors for the section [catalog]."""
        properties = {name: value for name, value in catalog.items() if name not in (NAME, *NAMESPACES)}
        return cls(lake, catalog.get(NAME), properties, _namespace(catalog, is_typed=is_typed))

    def one(self, topic: str) -> MirrorOutcome | None:
        """Mirror a table once. Return None if it is left out."""
        if self._rounds is None:
            try:
                self._rounds = self._opened()
            except ModuleNotFoundError as error:
                if error.name is None or error.name.startswith("korvet"):
                    raise
                return NotMirrored(
                    f"the mirror, for {error.name}, requires: pip install 'korvet[iceberg]'", may_pass=False
                )
            except LakeError as error:
                return NotMirrored(str(error), may_pass=not isinstance(error, InvalidLocation))
        return self._rounds.one(topic)

    def _opened(self) -> Rounds:
        from korvet.lake.iceberg.catalogs import open_catalogue  # noqa: PLC0415  only policies with iceberg need it
        from korvet.lake.iceberg.mirror import Mirror  # noqa: PLC0415
        from korvet.lake.iceberg.rounds import Rounds  # noqa: PLC0415

        mirror = Mirror(open_catalogue(self.lake, self.name, self.properties), self.namespace)
        return Rounds(mirror, self.lake, KEEP)


def registration(given: Mapping[str, str], lake: Location, *, is_typed: bool) -> Registration | None:
    """Return the registration of tables for the section [register], None without one. Raises InvalidTarget."""
    if not given:
        return None
    target = Target.of({name: text for name, text in given.items() if name not in NAMESPACES})
    return Registration(target, _namespace(given, is_typed=is_typed), lake)


def _namespace(section: Mapping[str, str], *, is_typed: bool) -> str:
    return section.get(TYPED_NAMESPACE, TYPED) if is_typed else section.get(NAMESPACE, KORVET)
