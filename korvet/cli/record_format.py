r"""Format strings of `korvet consume --format`, with kcat's tokens.

    %t topic     %o offset             %k key         %s value                %h headers: name=value,…
    %p partition %T timestamp in ms    %K its length  %S its length in bytes  %% a percent sign

The length of null is -1. `\n`, `\t`, `\r`, `\\`, `\0` and `\xHH` are escape sequences. No line end is added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import click

from korvet.client.model import ConsumedRecord

PIECE = re.compile(r"%(?P<token>.?)|\\(?P<escape>x[0-9a-fA-F]{2}|.?)|(?P<text>[^%\\]+)", re.DOTALL)
ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
NULL = b"NULL"

Part = Callable[[ConsumedRecord], bytes]


def compiled(text: str, null: bytes = NULL) -> Part:
    """Return the function that formats a record. Raises BadParameter for an unknown token or escape sequence."""
    parts = [part(match, null) for match in PIECE.finditer(text)]
    return lambda record: b"".join(each(record) for each in parts)


def part(match: re.Match[str], null: bytes) -> Part:
    """Return the function for a token, an escape sequence or other text."""
    if match["text"] is not None:
        return constant(match["text"].encode())
    if match["token"] is not None:
        return token(match["token"], null)
    escape = match["escape"]
    if len(escape) == 3:
        return constant(bytes.fromhex(escape[1:]))
    if escape not in ESCAPES:
        raise click.BadParameter(
            f"there is no \\{escape}; accepted: \\n \\t \\r \\0 \\\\ \\xHH", param_hint="--format"
        )
    return constant(ESCAPES[escape])


def token(name: str, null: bytes) -> Part:
    tokens: dict[str, Part] = {
        "t": lambda record: record.topic.encode(),
        "p": lambda record: b"%d" % record.partition,
        "o": lambda record: b"%d" % record.offset,
        "T": lambda record: b"%d" % record.timestamp,
        "k": lambda record: null if record.key is None else record.key,
        "s": lambda record: null if record.value is None else record.value,
        "K": lambda record: length(record.key),
        "S": lambda record: length(record.value),
        "h": lambda record: headers(record.headers, null),
        "%": constant(b"%"),
    }
    if name not in tokens:
        accepted = " ".join(f"%{each}" for each in tokens)
        raise click.BadParameter(f"there is no %{name}; accepted: {accepted}", param_hint="--format")
    return tokens[name]


def constant(data: bytes) -> Part:
    return lambda _: data


def length(data: bytes | None) -> bytes:
    return b"%d" % (-1 if data is None else len(data))


def headers(pairs: Sequence[tuple[str, bytes | None]], null: bytes) -> bytes:
    return b",".join(name.encode() + b"=" + (null if value is None else value) for name, value in pairs)
