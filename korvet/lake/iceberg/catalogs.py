"""Open a catalogue: one that PyIceberg knows (rest, sql, hive, glue, …), or none, for paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog import load_catalog

from korvet.lake.errors import LakeError, described
from korvet.lake.iceberg.path_catalog import PathCatalog
from korvet.lake.location import Location
from korvet.lake.mirrored import FOLDER

if TYPE_CHECKING:
    from korvet.lake.iceberg.mirror import Catalogue


class NoCatalogue(LakeError):  # noqa: N818  the name states the fault
    """The catalogue cannot be opened."""


def open_catalogue(lake: Location, name: str | None, properties: Mapping[str, str]) -> Catalogue:
    """Open the catalogue `name` of PyIceberg's configuration, with these properties on top, or paths without any.

    The store's options are those of the lake. Raises NoCatalogue and InvalidLocation.
    """
    if name is None and not properties:
        return PathCatalog(lake, FOLDER)
    named = name or "korvet"
    try:
        return load_catalog(named, **{**store_properties(lake), **properties})
    except Exception as error:  # catalogues raise the errors of their libraries, without a class in common
        raise NoCatalogue(f"the catalogue {named} cannot be opened: {described(error)}") from error


def store_properties(lake: Location) -> dict[str, Any]:
    """Return PyIceberg's properties for the store of a lake."""
    return {} if lake.is_local else lake.store.iceberg_properties(lake.url)
