"""Find the error codes in a response, as Kafka's ErrorsPerSec counts them: one for each partition or resource.

Most responses have error codes in nested arrays. A function is compiled for each class of response, as the codecs are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from korvet.protocol.errors import ErrorCode
from korvet.protocol.schema import schema_of

# Adds the error codes of a response to the list.
Find = Callable[[Any, list[int]], None]

#: The fields with error codes: the second one is that of AddPartitionsToTxn.
ERROR_CODES = ("error_code", "partition_error_code")


def name_of(code: int) -> str:
    """Return Kafka's name of an error code."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def finder(response: type[Any]) -> Find | None:
    """Return a function that appends the error codes other than 0 to a list, or None for a class without any."""
    lines = list(_lines(response, "response", 1))
    if not lines:
        return None
    source = "\n".join(["def find(response, codes):", *lines, ""])
    names: dict[str, Any] = {}
    exec(compile(source, f"<error codes of {response.__name__}>", "exec"), names)  # noqa: S102  our own source
    find: Find = names["find"]
    return find


def _lines(struct: type[Any], variable: str, depth: int) -> list[str]:
    """Return the statements that look at one struct and the structs inside."""
    indent = "    " * depth
    lines: list[str] = []
    for field in schema_of(struct).fields:
        value = f"{variable}.{field.name}"
        if field.name in ERROR_CODES:
            lines += [f"{indent}if {value}: codes.append({value})"]
        elif field.struct is None:
            continue
        elif field.is_array:
            inner = f"each{depth}"
            # Elements that are encoded already are successful: the handlers encode no errors in advance.
            only_lists = f"({value} if {value}.__class__ is list else ())"
            elements = only_lists if field.encodable else f"{value} or ()"
            if found := _lines(field.struct, inner, depth + 1):
                lines += [f"{indent}for {inner} in {elements}:", *found]
        elif found := _lines(field.struct, value, depth + 1):
            lines += [f"{indent}if {value} is not None:", *found]
    return lines
