"""Progress of long work on stderr: at a terminal one line that is rewritten, elsewhere a line for each change."""

from __future__ import annotations

import sys

import click
from attrs import define

OVERWRITE = "\r\x1b[K"


@define
class ProgressLine:
    """The progress line. The caller must end it before it writes to stdout."""

    _last: str = ""

    def show(self, text: str) -> None:
        """Show the current progress. Do nothing if the text has not changed."""
        if text == self._last:
            return
        self._last = text
        if sys.stderr.isatty():
            click.echo(f"{OVERWRITE}{text}", err=True, nl=False)
        else:
            click.echo(text, err=True)

    def say(self, text: str) -> None:
        """Print a line that is not rewritten."""
        self.end()
        click.echo(text, err=True)

    def end(self) -> None:
        """Clear the line at a terminal."""
        if self._last and sys.stderr.isatty():
            click.echo(OVERWRITE, err=True, nl=False)


def duration_text(seconds: float) -> str:
    """Format seconds as minutes and seconds, and hours if there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
