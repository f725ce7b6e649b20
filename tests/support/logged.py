"""Programs that tests, benchmarks and the conformance runs start, and whose output they read while the programs run."""

from __future__ import annotations

import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from attrs import define, field


class NotLoggedError(RuntimeError):
    """A program did not print an expected line before its end or a limit. The message has its output."""


@define
class LoggedProcess:
    """One program at a time, and the lines that it has printed on its standard output and error."""

    process: subprocess.Popen[str] | None = field(default=None, init=False)
    log: list[str] = field(factory=list, init=False, repr=False)
    _changed: threading.Condition = field(factory=threading.Condition, init=False, repr=False)

    def launch(
        self,
        command: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Start a program with an empty log. A thread collects its lines, and "<end>" after the last one."""
        with self._changed:
            self.log.clear()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=cwd,
            env=env,
        )
        threading.Thread(target=self._collect, args=(self.process,), daemon=True).start()

    def wait_for_log(
        self, pattern: str | re.Pattern[str], *, limit_s: float = 60.0, after: int = 0
    ) -> re.Match[str]:
        """Return the first match in the output of the running program, except in its first `after` lines.

        Raise NotLoggedError if there is none.
        """
        found: list[re.Match[str]] = []

        def decided() -> bool:
            found.extend(match for line in self.log[after:] if (match := re.search(pattern, line)))
            return bool(found) or self.log[-1:] == ["<end>"]

        with self._changed:
            if not self._changed.wait_for(decided, limit_s) or not found:
                raise NotLoggedError(f"no line has {pattern!r}:\n" + "\n".join(self.log))
            return found[0]

    def _collect(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                self._note(process, line.rstrip())
        self._note(process, "<end>")

    def _note(self, process: subprocess.Popen[str], line: str) -> None:
        with self._changed:
            if process is self.process:
                self.log.append(line)
                self._changed.notify_all()
