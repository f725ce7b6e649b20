"""How work that takes long gets on, on stderr: one line, rewritten at a terminal, elsewhere a line for each change."""

from __future__ import annotations

import sys

import click
from attrs import define

OVERWRITE = "\r\x1b[K"


@define
class ProgressLine:
    """The line. Whoever shows one ends it, before stdout is written to."""

    _last: str = ""

    def show(self, text: str) -> None:
        """What is so now; the same again shows nothing."""
        if text == self._last:
            return
        self._last = text
        if sys.stderr.isatty():
            click.echo(f"{OVERWRITE}{text}", err=True, nl=False)
        else:
            click.echo(text, err=True)

    def say(self, text: str) -> None:
        """Something that stays."""
        self.end()
        click.echo(text, err=True)

    def end(self) -> None:
        """Leave the line empty."""
        if self._last and sys.stderr.isatty():
            click.echo(OVERWRITE, err=True, nl=False)


def size_text(count: float) -> str:
    """Bytes, in the unit that leaves few digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration_text(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
