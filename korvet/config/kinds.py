"""The kinds of values that settings have: numbers in a range, one of several words, lists.

The topic settings use the same kinds, see `korvet.broker.topics`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import attrs
from attrs import evolve, frozen

from korvet.urls import without_password

T = TypeVar("T")

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1


class ConfigError(Exception):
    """Settings are invalid. `errors` contains one line for each fault."""

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(self.errors))

    def __reduce__(self) -> tuple[type[ConfigError], tuple[tuple[str, ...]]]:
        return ConfigError, (self.errors,)


# --- Kinds of values -----------------------------------------------------------------------------------------


@frozen
class Kind(Generic[T]):
    """The kind of a setting's value. `parse` converts a string or a value of a TOML file, or raises ValueError."""

    type: str  # Kafka's name: boolean, int, long, double, string, list, password
    accepted: str
    parse: Callable[[Any], T]
    hides_passwords: bool = False  # the value is a URL, which may contain a password

    def shown(self, value: Any) -> Any:
        """Return a value for messages: a URL without its password."""
        return without_password(value) if self.hides_passwords and isinstance(value, str) else value

    @property
    def is_secret(self) -> bool:
        """True if the broker must not show the value to anyone."""
        return self.type == "password"


def integer(*, at_least: int = -MAX_INT - 1, at_most: int = MAX_INT) -> Kind[int]:
    """Return the kind of whole numbers in a range. Its type is long if the range exceeds 32 bits, otherwise int."""

    def parse(value: Any) -> int:
        if isinstance(value, bool) or not re.fullmatch(r"\s*[+-]?[0-9]{1,19}\s*", str(value)):
            raise ValueError(f"{value!r} is not a whole number")
        number = int(value)
        if not at_least <= number <= at_most:
            raise ValueError(f"{number} is out of range")
        return number

    return Kind("int" if at_most <= MAX_INT else "long", _range(at_least, at_most), parse)


def long(*, at_least: int = -MAX_LONG - 1, at_most: int = MAX_LONG) -> Kind[int]:
    """Return the kind of whole numbers of 64 bits."""
    return attrs.evolve(integer(at_least=at_least, at_most=at_most), type="long")


def double(*, at_least: float, at_most: float) -> Kind[float]:
    """Return the kind of numbers in a range, which includes its bounds."""

    def parse(value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f"{value!r} is not a number") from None
        if isinstance(value, bool) or not at_least <= number <= at_most:
            raise ValueError(f"{value!r} is out of range")
        return number

    return Kind("double", f"a number from {at_least:g} to {at_most:g}", parse)


def boolean() -> Kind[bool]:
    """Return the kind of true and false."""

    def parse(value: Any) -> bool:
        word = str(value).strip().lower()
        if word not in ("true", "false"):
            raise ValueError(f"{value!r} is neither true nor false")
        return word == "true"

    return Kind("boolean", "true, false", parse)


def one_of(*values: str) -> Kind[str]:
    """Return the kind of strings that are one of `values`."""

    def parse(value: Any) -> str:
        if value not in values:
            raise ValueError(f"{value!r} is not one of them")
        return str(value)

    return Kind("string", ", ".join(values), parse)


def text(accepted: str, pattern: str = r"[^\x00-\x1f]+") -> Kind[str]:
    """Return the kind of strings that match `pattern`, which `accepted` describes to users."""

    def parse(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} does not have that form")
        return value

    return Kind("string", accepted, parse)


def storage_url(accepted: str) -> Kind[str]:
    """Return the kind of storage URLs. "memory" stands for memory://."""
    url = text(accepted)

    def parse(value: Any) -> str:
        return "memory://" if value == "memory" else url.parse(value)

    return Kind("string", accepted, parse)


def url(kind: Kind[T]) -> Kind[T]:
    """Return the kind of another kind's values, which are URLs, with errors that do not contain passwords."""

    def parse(value: Any) -> T:
        try:
            return kind.parse(value)
        except ValueError:
            raise ValueError(f"{without_password(str(value))!r} does not have that form") from None

    return evolve(kind, parse=parse, hides_passwords=True)


def web_url(accepted: str) -> Kind[str]:
    """Return the kind of http:, https: and file: URLs."""
    form = text(accepted, r"(https?|file)://[^\x00-\x20]+")

    def parse(value: Any) -> str:
        parts = urlsplit(form.parse(value))
        if parts.scheme != "file" and not (
            parts.hostname and parts.port != 0
        ):  # reading an invalid port raises
            raise ValueError(f"{value!r} names no host")
        return str(value)

    return url(Kind("string", accepted, parse))


def list_of(kind: Kind[T]) -> Kind[tuple[T, ...]]:
    """Return the kind of lists of another kind: an array in the file, separated by commas elsewhere."""

    def parse(value: Any) -> tuple[T, ...]:
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list | tuple):
            raise ValueError(f"{value!r} is not a list")  # noqa: TRY004  all faults of a value are ValueErrors
        return tuple(kind.parse(part) for part in value)

    return Kind("list", f"a list of: {kind.accepted}", parse)


def optional(kind: Kind[T]) -> Kind[T | None]:
    """Return the kind of another kind's values, and of None for a setting that is not set."""

    def parse(value: Any) -> T | None:
        return None if value is None else kind.parse(value)

    return Kind(kind.type, kind.accepted, parse, kind.hides_passwords)


def secret(kind: Kind[T]) -> Kind[T]:
    """Return the kind of another kind's values, with errors that do not contain the value."""

    def parse(value: Any) -> T:
        try:
            return kind.parse(value)
        except ValueError:
            raise ValueError("the value, which is hidden, does not have that form") from None

    return evolve(kind, type="password", parse=parse)


def _range(at_least: int, at_most: int) -> str:
    if at_most >= MAX_INT:
        return "a whole number" if at_least < -MAX_INT else f"a whole number, at least {at_least}"
    return f"a whole number from {at_least} to {at_most}"
