"""The catalogue in which tables are registered, as settings name it: [register] of lake.toml, or options."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import frozen

from korvet.lake.errors import LakeError
from korvet.urls import without_password

if TYPE_CHECKING:
    from korvet.lake.registration.catalogue import Catalogue

GLUE = (
    "glue.id", "glue.region", "glue.endpoint", "glue.profile-name",
    "glue.access-key-id", "glue.secret-access-key", "glue.session-token",
)  # fmt: skip
#: The settings of each type of catalogue, and those of them that it needs.
SETTINGS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "hive": (("uri",), ("uri",)),
    "glue": (GLUE, ()),
    "unity": (("uri", "catalog", "token"), ("uri", "catalog")),
}
SCHEMES = {"hive": (("thrift",), "thrift://metastore:9083"), "unity": (("http", "https"), "https://host")}


class InvalidTarget(LakeError):  # noqa: N818  the name states the fault
    """The settings do not name a catalogue."""


@frozen
class Target:
    """A catalogue of a type, and its settings."""

    type: str
    settings: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Target:
        """Return the catalogue that settings name. Raises InvalidTarget with their first fault."""
        for name, reason in faults(given):
            raise InvalidTarget(f"{name}: {reason}.")
        return cls(given["type"], {name: text for name, text in given.items() if name != "type"})

    def open(self) -> Catalogue:
        """Return the catalogue. Raises ModuleNotFoundError, and the errors of its library."""
        # Each needs another library.
        if self.type == "hive":
            from korvet.lake.registration.hive import HiveCatalogue  # noqa: PLC0415

            return HiveCatalogue(self.settings["uri"])
        if self.type == "glue":
            from korvet.lake.registration.glue import GlueCatalogue  # noqa: PLC0415

            return GlueCatalogue(self.settings)
        from korvet.lake.registration.unity import UnityCatalogue  # noqa: PLC0415

        return UnityCatalogue(self.settings["uri"], self.settings["catalog"], self.settings.get("token"))


def faults(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the faults of settings, as (name, reason)."""
    kind = given.get("type")
    if kind is None or kind not in SETTINGS:
        what = "is missing" if kind is None else f"there is no {kind!r}"
        yield "type", f"{what}; accepted are {', '.join(SETTINGS)}"
        return
    known, needed = SETTINGS[kind]
    for name in given:
        if name not in known and name != "type":
            near = difflib.get_close_matches(name, known, 1)
            hint = f"is {near[0]} meant?" if near else f"{kind} has {', '.join(known)}"
            yield name, f"there is no such setting; {hint}"
    for name in needed:
        if name not in given:
            yield name, f"is missing; {kind} needs it"
    if kind in SCHEMES and "uri" in given:
        schemes, example = SCHEMES[kind]
        if not _is_url(given["uri"], schemes):
            yield "uri", f"{without_password(given['uri'])!r} is not a URL such as {example}"


def _is_url(text: str, schemes: tuple[str, ...]) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in schemes and bool(parts.hostname)
