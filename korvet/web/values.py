"""Show keys, values and headers as text. The page escapes the text; nothing here is HTML."""

from __future__ import annotations

import json
import re

from attrs import frozen

FORMATS = ("auto", "text", "json", "hex", "schema")
PREVIEW_CHARACTERS = 300
MAX_SHOWN_BYTES = 256 * 1024
HEX_WIDTH = 16
FRAME_BYTES = 5  # 0, and the id of a schema
# Columns of the bytes in the lines of `hex_dump`.
HEX_BEGIN, HEX_END = 10, 10 + 3 * HEX_WIDTH
# Marks the digits of a number while they are a string.
MARK = "\ue000"
MARKED = re.compile(f'"{MARK}([^"]*)"')
NO_REGISTRY = "there is no schema registry; --web-registry URL (or korvet web --registry) names one"


class Undecodable(ValueError):  # noqa: N818  names the condition
    """The bytes are not what the format requires. The message says why."""


@frozen
class Shown:
    """Bytes as text. `kind` is null, empty, text, json, hex, avro or protobuf."""

    kind: str
    text: str
    size: int = 0
    fault: str = ""
    is_cut: bool = False

    @property
    def preview(self) -> str:
        """The first characters in one line; of hex, the bytes."""
        if self.kind == "hex":
            return self.text[HEX_BEGIN:HEX_END].rstrip() + (" …" if self.size > HEX_WIDTH else "")
        line = " ".join(self.text[: 4 * PREVIEW_CHARACTERS].split())
        return line if len(line) <= PREVIEW_CHARACTERS else line[:PREVIEW_CHARACTERS] + "…"


def shown(data: bytes | None, form: str = "auto", *, fault: str = "") -> Shown:
    """Return bytes in a format. If they are not of that format, return hex or text, and the reason.

    `fault` is the reason why the bytes could not be decoded by a schema.
    """
    if data is None:
        return Shown("null", "null")
    if not data:
        return Shown("empty", "empty")
    if form == "schema" and not fault:
        fault = NO_REGISTRY
    cut = data[:MAX_SHOWN_BYTES]
    is_cut = len(cut) < len(data)
    if form in ("auto", "json", "schema") and not is_cut:
        try:
            return Shown("json", json_text(cut), len(data), fault)
        except Undecodable as error:
            fault = str(error) if form == "json" else fault
    if form != "hex":
        readable_text = readable(cut, is_cut=is_cut)
        if readable_text is not None:
            return Shown("text", readable_text, len(data), fault, is_cut)
        if form == "text":
            return Shown("text", cut.decode("utf-8", "replace"), len(data), fault, is_cut)
    if form != "hex" and not fault:
        fault = why_no_text(cut)
    return Shown("hex", hex_dump(cut), len(data), fault, is_cut)


def why_no_text(data: bytes) -> str:
    """Return the reason why bytes are shown in hexadecimal."""
    if data[0] == 0 and len(data) >= FRAME_BYTES:
        number = int.from_bytes(data[1:FRAME_BYTES], "big")
        return f"the bytes begin with 0 and {number}, as with the id of a schema; {NO_REGISTRY}"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"the bytes are neither JSON nor text: byte {error.start} is not UTF-8"
    place = next(
        (index for index, each in enumerate(text) if not each.isprintable() and each not in "\n\r\t"), 0
    )
    return f"the bytes are neither JSON nor text: character {place} is a control character"


def json_text(data: bytes) -> str:
    """Return JSON with indentation and with the original digits of numbers. Raises Undecodable."""
    try:
        text = data.decode()
        if MARK in text:
            return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        value = json.loads(text, parse_float=lambda digits: f"{MARK}{digits}")
        return MARKED.sub(r"\1", json.dumps(value, indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        raise Undecodable("the bytes are not JSON") from None


def readable(data: bytes, *, is_cut: bool) -> str | None:
    """Return UTF-8 text, or None if the bytes are not text: invalid UTF-8, or control characters in it."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        # A cut may have split the last character.
        if not is_cut or error.start < len(data) - 3:
            return None
        text = data[: error.start].decode()
    return text if all(character.isprintable() or character in "\n\r\t" for character in text) else None


def hex_dump(data: bytes) -> str:
    """Return lines of offset, bytes in hexadecimal, and ASCII."""
    lines = []
    for start in range(0, len(data), HEX_WIDTH):
        row = data[start : start + HEX_WIDTH]
        ascii_ = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start:08x}  {row.hex(' '):<{3 * HEX_WIDTH - 1}}  {ascii_}")
    return "\n".join(lines)
