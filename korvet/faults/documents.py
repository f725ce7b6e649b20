"""Faults as JSON objects, for programs in other languages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from korvet.faults.injection import Injected
from korvet.faults.kinds import KINDS, Fault

NAMES = {cls: name for name, cls in KINDS.items()}


class InvalidFault(ValueError):  # noqa: N818  names the condition
    """An object is not a fault. The message is one line."""


def read_fault(document: object) -> Fault:
    """Return the fault that an object describes: its kind as `fault`, then its arguments and filters by name.

    Raises InvalidFault.
    """
    if not isinstance(document, Mapping):
        raise InvalidFault("a fault is a JSON object")
    arguments = dict(document)
    kind = arguments.pop("fault", None)
    cls = KINDS.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise InvalidFault(f"there is no fault {kind!r}; there are {', '.join(KINDS)}")
    check_names(kind, cls, arguments)
    try:
        return cls(**arguments)
    except (TypeError, ValueError) as error:
        raise InvalidFault(f"{kind}: {error.args[0]}") from None


def check_names(kind: object, cls: type[Fault], arguments: Mapping[str, object]) -> None:
    """Raise InvalidFault if an argument is unknown or missing."""
    fields = {each.name: each for each in attrs.fields(cls) if each.init}
    if unknown := sorted(arguments.keys() - fields.keys()):
        raise InvalidFault(f"{kind} has no {unknown[0]!r}; it has {', '.join(fields)}")
    if missing := [n for n, each in fields.items() if each.default is attrs.NOTHING and n not in arguments]:
        raise InvalidFault(f"{kind} needs {missing[0]!r}")


def written_fault(injected: Injected) -> dict[str, Any]:
    """Return the object of a fault, with its number of hits. Filters that are not set are left out."""
    fault = injected.fault
    given = attrs.asdict(fault, filter=lambda each, value: each.init and value != each.default)
    return {"fault": NAMES[type(fault)], **given, "hits": injected.hits, "active": injected.is_active}
