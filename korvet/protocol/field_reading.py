"""Generate the source of functions that read one version of a message.

These choices were measured (Fetch v12 with 100 partitions in 25 us): objects are created by `object.__new__` and filled
slot by slot. One precompiled Struct unpacks adjacent fixed-width fields, the length that follows them and the first
byte of a tag section. Everything is inline in one function: nested loops, and the one-byte case of variable-width
lengths.
"""

from __future__ import annotations

from struct import Struct, unpack_from
from typing import Any
from uuid import UUID

import attrs

from korvet.protocol.schema import FIXED_FORMATS, ZERO_UUID, Field, is_flexible
from korvet.protocol.source import FunctionSource, fields_of, fixed_size, smallest_size

#: Limit of the total number of elements in all arrays of a message; Kafka 4.4 limits each array. The largest clusters
#: send far fewer. An element can take two bytes on the wire and a hundred in memory, so the limit of a frame's size is
#: not enough.
MAX_ELEMENTS = 1_000_000

#: Limit of the number of tagged fields in a message; Kafka 4.4 limits those of a struct (CVE-2026-111115). They precede
#: authentication.
MAX_TAGGED_FIELDS = 10_000

ZERO = bytes(16)


def reader_source(cls: type[Any], version: int, *, in_steps: bool = False) -> tuple[str, dict[str, object]]:
    """Return the source of `run(data, pos) -> (message, end)`, and the objects that it refers to, by name.

    With `in_steps`, `run` is a generator of `Steps` that returns the same.
    """
    reader = ReaderSource(version=version, flexible=is_flexible(cls, version))
    reader.source.in_steps = in_steps
    return reader.function(cls), reader.source.names


@attrs.define
class ReaderSource:
    """A generator of the function that reads one version of a message."""

    version: int
    flexible: bool
    source: FunctionSource = attrs.Factory(lambda: FunctionSource("data, pos"))
    # Fixed-width values to be unpacked together: format and the variable or attribute that takes the value.
    run: list[tuple[str, str]] = attrs.Factory(list)
    # Lines that convert values after they are unpacked.
    after_run: list[str] = attrs.Factory(list)

    def function(self, cls: type[Any]) -> str:
        """Return the complete source."""
        self.source.names |= {
            "new": object.__new__,
            "unpack_from": unpack_from,
            "UUID": UUID,
            "ZERO": ZERO,
            "ZERO_UUID": ZERO_UUID,
            "long_uvarint": long_uvarint,
            "skip_tags": skip_tags,
            "fail": fail,
        }
        self.source.emit("size = len(data)", f"left = {MAX_ELEMENTS}", f"tags_left = {MAX_TAGGED_FIELDS}")
        message = self.read_struct(cls)
        self.flush()
        self.source.emit(f"return {message}, pos")
        return self.source.text()

    def read_struct(self, cls: type[Any]) -> str:
        """Read a struct into a new variable, and return the variable's name."""
        target = self.source.variable("o")
        self.source.emit(f"{target} = new({self.source.name(cls.__name__, cls)})")
        plain, tagged, absent = fields_of(cls, self.version)
        for field in (*absent, *tagged):
            self.source.emit(f"{target}.{field.name} = {self.default(cls, field)}")
        for field in plain:
            self.read_field(field, f"{target}.{field.name}")
        if self.flexible:
            self.read_tags(tagged, target)
        return target

    def default(self, cls: type[Any], field: Field) -> str:
        if field.is_array and field.default is not None:
            return "[]"
        if field.default is None or isinstance(field.default, bool | int | str):
            return repr(field.default)
        return self.source.name(f"default_{cls.__name__}_{field.name}", field.default)

    def read_field(self, field: Field, target: str) -> None:
        if field.is_array:
            self.read_array(field, target)
        elif field.struct is not None:
            self.read_nested(field.struct, target, nullable=self.version in field.nullable)
        else:
            self.read_simple(field, target)

    def read_simple(self, field: Field, target: str) -> None:
        """Read anything but an array or a struct."""
        if field.kafka_type == "uuid":
            value = self.source.variable("u")
            self.run.append(("16s", value))
            self.after_run.append(f"{target} = ZERO_UUID if {value} == ZERO else UUID(bytes={value})")
        elif field.kafka_type in FIXED_FORMATS:
            self.run.append((FIXED_FORMATS[field.kafka_type], target))
        else:
            self.read_sized(field, target)

    def read_sized(self, field: Field, target: str) -> None:
        """Read a string, bytes or records, preceded by their length."""
        convert = {
            "string": f"{target} = str(data[pos:end], 'utf-8')",
            "bytes": f"{target} = bytes(data[pos:end])",
            "records": f"{target} = (data[pos:end],) if n else ()",
        }[field.kafka_type]
        self.read_length(field)
        with self.source.block("if n >= 0:"):
            self.source.emit(
                "end = pos + n",
                f"if end > size: fail('{field.name} is longer than the data')",
                convert,
                "pos = end",
            )
        self.read_null(field, target)

    def read_length(self, field: Field) -> None:
        """Read a length or a number of elements into the variable `n`; -1 is null."""
        if self.flexible and field.compact:
            self.run.append(("B", "n"))
            self.flush()
            self.source.emit("if n > 127: n, pos = long_uvarint(data, pos - 1)", "n -= 1")
        else:
            self.run.append(("h" if field.kafka_type == "string" and not field.is_array else "i", "n"))
            self.flush()

    def read_null(self, field: Field, target: str) -> None:
        """Emit the branches for `n < 0`: null, or an invalid length."""
        if self.version in field.nullable:
            self.source.emit(f"elif n == -1: {target} = None")
        self.source.emit(f"else: fail('{field.name} has a length of %d' % n)")

    def read_array(self, field: Field, target: str) -> None:
        self.read_length(field)
        smallest = smallest_size(field, self.version, flexible=self.flexible)
        with self.source.block("if n >= 0:"):
            self.source.emit(
                "left -= n",
                f"if n > (size - pos) // {smallest} or left < 0: fail('{field.name} has too many elements')",
            )
            self.read_elements(field, target)
        self.read_null(field, target)

    def read_elements(self, field: Field, target: str) -> None:
        if field.struct is None and field.kafka_type in FIXED_FORMATS and field.kafka_type != "uuid":
            self.source.emit(
                f"{target} = list(unpack_from(f'>{{n}}{FIXED_FORMATS[field.kafka_type]}', data, pos))",
                f"pos += n * {fixed_size(field.kafka_type)}",
            )
            return
        elements = self.source.variable("a")
        self.source.emit(f"{target} = {elements} = []")
        with self.source.loop("for _ in range(n):"):
            if field.struct is not None:
                element = self.read_struct(field.struct)
            else:
                element = self.source.variable("v")
                self.read_simple(attrs.evolve(field, is_array=False, nullable=range(0)), element)
            self.flush()
            self.source.emit(f"{elements}.append({element})")

    def read_nested(self, cls: type[Any], target: str, *, nullable: bool) -> None:
        """Read a struct; a nullable one follows a byte that is negative for null (KIP-893)."""
        if not nullable:
            self.source.emit(f"{target} = {self.read_struct(cls)}")
            return
        self.run.append(("b", "n"))
        self.flush()
        with self.source.block("if n >= 0:"):
            nested = self.read_struct(cls)
            self.flush()
            self.source.emit(f"{target} = {nested}")
        self.source.emit(f"else: {target} = None")

    def read_tags(self, tagged: list[Field], target: str) -> None:
        """Read a tag section: a count, then the tag, size and value of each field. Skip unknown tags."""
        self.run.append(("B", "n"))
        self.flush()
        with self.source.block("if n:"):
            self.source.emit(
                "if n > 127: n, pos = long_uvarint(data, pos - 1)",
                "tags_left -= n",
                "if tags_left < 0: fail('too many tagged fields')",
            )
            if tagged:
                with self.source.block("for _ in range(n):"):
                    self.read_tag(tagged, target)
            else:
                self.source.emit("pos = skip_tags(data, pos, n)")

    def read_tag(self, tagged: list[Field], target: str) -> None:
        """Read one of a struct's tagged fields, or skip an unknown one."""
        tag_end = self.source.variable("tag_end")
        self.source.emit(
            "tag, pos = long_uvarint(data, pos)",
            "n, pos = long_uvarint(data, pos)",
            f"{tag_end} = pos + n",
            f"if {tag_end} > size: fail('a tagged field is longer than the data')",
        )
        for number, field in enumerate(tagged):
            with self.source.block(f"{'elif' if number else 'if'} tag == {field.tag}:"):
                self.read_field(field, f"{target}.{field.name}")
                self.flush()
                self.source.emit(f"if pos != {tag_end}: fail('{field.name} does not fill its tag')")
        self.source.emit(f"else: pos = {tag_end}")

    def flush(self) -> None:
        """Unpack the pending run."""
        if not self.run:
            return
        formats = ">" + "".join(format_ for format_, _ in self.run)
        targets = ", ".join(target for _, target in self.run)
        if formats == ">B":
            self.source.emit(f"{targets} = data[pos]", "pos += 1")
        else:
            layout = Struct(formats)
            unpack = self.source.name(f"unpack_{formats[1:].replace('?', 'o')}", layout.unpack_from)
            self.source.emit(f"{targets}, = {unpack}(data, pos)", f"pos += {layout.size}")
        self.source.emit(*self.after_run)
        self.run.clear()
        self.after_run.clear()


# --- Functions for generated source -----------------------------------------------------------------------


def fail(message: str) -> None:
    """Raise ValueError for malformed data, which `codec.decode` converts to ProtocolError."""
    raise ValueError(message)


def long_uvarint(data: memoryview, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most five bytes at `pos`. Return the number and the position of its end."""
    value = 0
    for shift in (0, 7, 14, 21, 28):
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, pos
    message = "a variable-width number has more than five bytes"
    raise ValueError(message)


def skip_tags(data: memoryview, pos: int, count: int) -> int:
    """Skip `count` tagged fields at `pos`. Return the position of their end."""
    for _ in range(count):
        _, pos = long_uvarint(data, pos)
        size, pos = long_uvarint(data, pos)
        pos += size
        if pos > len(data):
            fail("a tagged field is longer than the data")
    return pos
