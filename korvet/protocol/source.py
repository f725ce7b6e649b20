"""The common part of generated readers and writers: lines of source, names, runs of fixed fields."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from korvet.protocol.schema import FIXED_FORMATS, Field, schema_of

#: Elements per step; reading or writing them takes 0.1 ms.
ELEMENTS_A_STEP = 64


@attrs.define
class FunctionSource:
    """A builder of Python source, and the objects that the source refers to."""

    signature: str
    in_steps: bool = False  # the function is a generator of `Steps`
    names: dict[str, object] = attrs.Factory(dict)
    lines: list[str] = attrs.Factory(list)
    indent: int = 1
    count: int = 0

    def emit(self, *lines: str) -> None:
        """Add lines at the current indentation."""
        self.lines.extend("    " * self.indent + line for line in lines)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head`, and indent the lines that are emitted inside the `with` block."""
        self.emit(head)
        self.indent += 1
        yield
        self.indent -= 1

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """Add a loop over elements, which pauses between them in functions that work in steps."""
        with self.block(head):
            yield
            if self.in_steps:
                self.emit("done += 1", f"if not done % {ELEMENTS_A_STEP}: yield None")

    def variable(self, stem: str) -> str:
        """Return a new local name."""
        self.count += 1
        return f"{stem}{self.count}"

    def name(self, stem: str, value: object) -> str:
        """Return the global name by which the source refers to `value`: the stem itself."""
        self.names[stem] = value
        return stem

    def text(self) -> str:
        """Return the source of the function."""
        start = ["    done = 0", "    if done: yield None"] if self.in_steps else []
        return "\n".join([f"def run({self.signature}):", *start, *self.lines, ""])


def fields_of(cls: type[Any], version: int) -> tuple[list[Field], list[Field], list[Field]]:
    """Return a struct's fields in a version: untagged ones, tagged ones sorted by tag, and those not in the version."""
    present = [field for field in schema_of(cls).fields if version in field.versions]
    plain = [field for field in present if field.tag is None]
    tagged = sorted((field for field in present if field.tag is not None), key=lambda field: field.tag or 0)
    absent = [field for field in schema_of(cls).fields if version not in field.versions]
    return plain, tagged, absent


def smallest_size(field: Field, version: int, *, flexible: bool) -> int:
    """Return the minimum size of an array's element in bytes."""
    if field.struct is None:
        if field.kafka_type in FIXED_FORMATS:
            return fixed_size(field.kafka_type)
        return length_size(field, flexible=flexible, of_element=True)
    size = 1 if flexible else 0
    for inner in fields_of(field.struct, version)[0]:
        if inner.is_array:
            size += length_size(inner, flexible=flexible)
        elif inner.struct is not None and version in inner.nullable:
            size += 1
        else:
            size += smallest_size(inner, version, flexible=flexible)
    return size


def length_size(field: Field, *, flexible: bool, of_element: bool = False) -> int:
    """Return the minimum size of the length of a string, an array and so on, or of an array's element, in bytes."""
    if flexible and field.compact:
        return 1
    return 2 if field.kafka_type == "string" and (of_element or not field.is_array) else 4


def fixed_size(kafka_type: str) -> int:
    """Return the size of a fixed-width type in bytes."""
    return {"b": 1, "?": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8, "16s": 16}[FIXED_FORMATS[kafka_type]]
