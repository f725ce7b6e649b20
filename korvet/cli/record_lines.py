"""Records as lines, which `korvet produce` reads and `korvet consume` writes.

A text line is a record's value, or key and value around a separator. A JSON line is an object:

    {"key": "UA", "value": "text", "headers": [["trace", "1"]], "timestamp": 1767225600000, "partition": 3}

All fields except the value are optional. Text is UTF-8. Bytes that are not UTF-8 are written as {"base64": "…"}, null
as null. So `produce` reads the output of `consume` back to the same bytes. As a value, JSON other than a string stands
for its compact JSON text: {"value": {"a": 1}} is the seven bytes {"a":1}.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

import click
from attrs import frozen

from korvet.cli.times import parse_time
from korvet.client.model import ConsumedRecord, Record
from korvet.protocol.record import Headers

READ = ("key", "value", "headers", "timestamp", "partition")
# Fields that `consume` writes and `produce` ignores, so that `produce` can read the lines of `consume`.
IGNORED = ("topic", "offset")


class BadLine(click.ClickException):
    """A line of the input is not a record. The message contains the line's number and the reason."""


@frozen
class TextLines:
    """Parses text lines, without their line ends, into records."""

    key_separator: bytes | None = None  # between key and value; a line without it has no key
    key: bytes | None = None  # of all records
    headers: Headers = ()
    partition: int | None = None
    null: bytes | None = None  # a value that stands for null

    def record(self, line: bytes) -> Record:
        key, value = self.key, line
        if self.key_separator is not None:
            before, found, after = line.partition(self.key_separator)
            if found:
                key, value = before, after
        null = value == self.null
        return Record(None if null else value, key, self.headers, partition=self.partition)


def from_json(line: bytes) -> Record:
    """Parse a record from a JSON line. Raises BadLine."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BadLine(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BadLine(f"not a JSON object but {shorten(fields)}")
    for name in fields:
        if name not in READ and name not in IGNORED:
            raise BadLine(f"unknown field {name!r}; there are {', '.join(READ)}")
    return Record(
        value=to_bytes("value", fields.get("value"), any_json=True),
        key=to_bytes("key", fields.get("key"), any_json=True),
        headers=to_headers(fields.get("headers")),
        timestamp=to_timestamp(fields.get("timestamp")),
        partition=to_partition(fields.get("partition")),
    )


def to_bytes(name: str, value: object, *, any_json: bool = False) -> bytes | None:
    if value is None or isinstance(value, str):
        return value if value is None else value.encode("utf-8", "surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"]:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise BadLine(f"{name}: {shorten(value['base64'])} is not base64") from None
    if any_json:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    raise BadLine(f"{name}: text, null or {{'base64': …}} expected, not {shorten(value)}")


def to_headers(value: object) -> Headers:
    """Return headers from a list of [name, value] pairs, or from an object, in which no name can repeat."""
    if value is None:
        return ()
    pairs: object = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list):
        raise BadLine(f"headers: a list of [name, value] or an object expected, not {shorten(value)}")
    return tuple(to_header(pair) for pair in pairs)


def to_header(pair: object) -> tuple[str, bytes | None]:
    match pair:
        case [str(name), content] | (str(name), content):
            return name, to_bytes(f"header {name}", content)
    raise BadLine(f"headers: [name, value] expected, not {shorten(pair)}")


def to_timestamp(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, str):
        try:
            return parse_time(value)
        except click.BadParameter as error:
            raise BadLine(f"timestamp: {error.message}") from None
    raise BadLine(f"timestamp: milliseconds or an ISO time expected, not {shorten(value)}")


def to_partition(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
        return value
    raise BadLine(f"partition: a number from 0 on expected, not {shorten(value)}")


def to_text(record: ConsumedRecord, key_separator: bytes | None = None, null: bytes = b"") -> bytes:
    """Return the text line for a record, without its line end."""
    value = null if record.value is None else record.value
    if key_separator is None:
        return value
    return (null if record.key is None else record.key) + key_separator + value


def to_json(record: ConsumedRecord) -> bytes:
    """Return the JSON line for a record, without its line end."""
    fields = record._asdict() | {"key": readable(record.key), "value": readable(record.value)}
    fields["headers"] = [[name, readable(content)] for name, content in record.headers]
    if not record.headers:
        del fields["headers"]
    return json.dumps(fields, ensure_ascii=False).encode()


def readable(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def shorten(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
