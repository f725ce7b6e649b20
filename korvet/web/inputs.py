"""Parse what a browser sends: queries, forms and times. Errors are BadInput, which becomes a page with status 400."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TypeVar
from urllib.parse import parse_qsl

import trio
from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")

MAX_BODY_BYTES = 2 * 1024 * 1024
MAX_FIELDS = 100
BODY_TIMEOUT_S = 10.0
# The range of int64, in which offsets and timestamps are.
MAX_NUMBER = 2**63 - 1
MAX_DIGITS = 19


class BadInput(ValueError):  # noqa: N818  names the condition
    """The request is invalid. The message is one line: what is wrong, and what is accepted.

    `field` is the name of the field that is wrong, or empty.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class TooLarge(BadInput):
    """The request's body is larger than MAX_BODY_BYTES."""


def number(
    values: Mapping[str, str], name: str, default: T, *, least: int = 0, most: int = MAX_NUMBER
) -> int | T:
    """Return a field as a number from `least` to `most`, or the default if it is missing or empty."""
    text = values.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS and least <= int(text) <= most):
        raise BadInput(f"{name} is {shortened(text)}; accepted: a number from {least} to {most}.", name)
    return int(text)


def signed_number(values: Mapping[str, str], name: str) -> int:
    """Return a field as a number, which may be negative."""
    text = values.get(name, "").strip()
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) < MAX_DIGITS):
        raise BadInput(f"{name} is {shortened(text)}; accepted: a number such as 100 or -100.", name)
    return int(text)


def choice(values: Mapping[str, str], name: str, accepted: tuple[str, ...]) -> str:
    """Return a field that has one of the accepted values; the first one is the default."""
    text = values.get(name, "") or accepted[0]
    if text not in accepted:
        raise BadInput(f"{name} is {shortened(text)}; accepted: {', '.join(accepted)}.", name)
    return text


def moment(values: Mapping[str, str], name: str) -> int:
    """Return a field with a time in milliseconds since 1970. A time without a zone is UTC."""
    text = values.get(name, "").strip()
    if text.isascii() and text.isdecimal() and len(text) < MAX_DIGITS:
        return int(text)
    try:
        parsed = datetime.fromisoformat(text)
        if parsed.tzinfo is None:
            parsed = parsed.replace(tzinfo=UTC)
        return max(round(parsed.timestamp() * 1000), 0)
    except (ValueError, OverflowError):
        raise BadInput(
            f"{name} is {shortened(text)}; accepted: a time such as 2026-03-01T12:30, or milliseconds since 1970.",
            name,
        ) from None


def shortened(text: str, most: int = 60) -> str:
    """Return the text in quotes for an error message, cut if it is long."""
    return repr(text if len(text) <= most else text[:most] + "…")


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form. Raises BadInput if it is no form, and TooLarge."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise BadInput("the body is no form; accepted: application/x-www-form-urlencoded.")
    try:
        text = (await _body(request)).decode()
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"the body is no form in UTF-8; accepted: application/x-www-form-urlencoded with up to {MAX_FIELDS} fields."
        ) from None
    return dict(fields)


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        with trio.fail_after(BODY_TIMEOUT_S):
            async with aclosing(request.stream()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) > MAX_BODY_BYTES:
                        raise TooLarge(f"the body is too large; accepted: up to {MAX_BODY_BYTES} bytes.")
    except trio.TooSlowError:
        raise BadInput(f"the body did not arrive within {BODY_TIMEOUT_S:g} s.") from None
    except ClientDisconnect:
        raise BadInput("the connection was closed before the body was complete.") from None
    return bytes(body)
