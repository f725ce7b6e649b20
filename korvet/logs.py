"""Log lines: key=value on a terminal, or JSON.

Modules use the standard library's loggers. A line that has fields passes them as one mapping:

    logger.warning("%(peer)s: connection closed: %(error)s", {"peer": peer, "error": error, "api": "Fetch"})

Its text format is the message, and then the fields that the message does not contain, as key=value. Its JSON format has
all fields. A name with an underscore in front is the form of a field in the message, and no field itself. Fields that
are None or empty are left out. Whatever clients have sent is escaped and bounded in length, so
an event is always one line; only tracebacks of errors in korvet have more.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final

from attrs import define

from korvet.protocol.text import quoted

ROOT: Final = "korvet"
TEXT, JSON = "text", "json"
PLAIN_VALUE: Final = re.compile(r"[\w.:/@+\[\]-]{1,100}", re.ASCII)
LONGEST_MESSAGE: Final = 2000
# Names of fields that each JSON line has.
OWN_FIELDS: Final = ("time", "level", "area", "process", "message", "traceback")


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record."""
    arguments: object = record.args
    if not isinstance(arguments, Mapping):
        return {}
    return {
        name: value
        for name, value in arguments.items()
        if value is not None and value != "" and not name.startswith("_")
    }


def escaped(text: str) -> str:
    """Return the text in one line, without characters that a terminal interprets, and of limited length."""
    if len(text) > LONGEST_MESSAGE:
        text = f"{text[:LONGEST_MESSAGE]}… ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def written(value: object) -> str:
    """Return the value of a field in the text format, quoted unless it is plain."""
    text = str(value)
    return text if PLAIN_VALUE.fullmatch(text) else quoted(text)


@define(eq=False)
class LogLimit:
    """Log at most `lines` messages in `period_s` seconds, and the number left out after that."""

    logger: logging.Logger
    level: int = logging.WARNING
    subject: str = "warnings about connections"
    lines: int = 10
    period_s: float = 60.0
    clock: Callable[[], float] = monotonic  # seconds
    _began_s: float = -float("inf")
    _logged: int = 0
    _left_out: int = 0

    def log(self, message: str, *arguments: object) -> None:
        """Log a message, or count it if there were too many."""
        now_s = self.clock()
        if now_s - self._began_s >= self.period_s:
            if self._left_out:
                fields = {"left_out": self._left_out, "subject": self.subject}
                self.logger.log(self.level, "%(left_out)d %(subject)s were not logged", fields)
            self._began_s, self._logged, self._left_out = now_s, 0, 0
        if self._logged < self.lines:
            self._logged += 1
            self.logger.log(self.level, message, *arguments)
        else:
            self._left_out += 1


class TextFormatter(logging.Formatter):
    """Time, level, number of the process if there are several, message, and fields."""

    def __init__(self, process: int | None = None) -> None:
        name = "" if process is None else f" [{process}]"
        super().__init__(f"%(asctime)s %(levelname)s{name} %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the standard library's name
        """Return the line without a traceback."""
        rest = [
            f"{name}={written(value)}"
            for name, value in fields_of(record).items()
            if not any(form in str(record.msg) for form in (f"%({name})", f"%(_{name})"))
        ]
        record.message = " ".join([escaped(record.message), *rest])
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """One JSON object, in ASCII."""

    def __init__(self, process: int | None = None) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "area": record.name.removeprefix(f"{ROOT}."),
        }
        if self.process is not None:
            line["process"] = self.process
        line["message"] = escaped(record.getMessage())
        for name, value in fields_of(record).items():
            if name not in OWN_FIELDS:
                line[name] = value if isinstance(value, bool | int | float) else bounded(str(value))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


def bounded(text: str) -> str:
    """Return the text with a limited length."""
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}…"


def configure(form: str, levels: Iterable[str], *, process: int | None = None) -> None:
    """Log to standard error in that form, at INFO except for the areas in `levels`, as AREA=LEVEL."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if form == JSON else TextFormatter(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for each in levels:
        area, _, level = each.partition("=")
        logging.getLogger(ROOT if area == "all" else f"{ROOT}.{area}").setLevel(level)
