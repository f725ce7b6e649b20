"""`python -m korvet serve` as a separate process, on a port that the system picks.

The port is read from the start line of the process, so that it is certainly the one that this process has bound.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import psutil
from attrs import define, field

START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
ADDRESS = re.compile(r"clients connect to (?:[A-Z_]+://)?(?:127\.0\.0\.1|localhost|\[::1\]):(\d+)")


@define
class KorvetProcess:
    """One broker. `start` and `kill` may alternate: the first start picks the port, later ones keep it.

    A context manager: it starts on entering, and nothing of it is left on leaving.
    """

    storage: str = "memory://"
    settings: Mapping[str, str] = field(factory=dict)  # given as --set name=value
    options: Sequence[str] = ()  # any other arguments of `korvet serve`
    environment: Mapping[str, str] = field(factory=dict)
    runner: Sequence[str] = ()  # the program that executes the command, such as nohup
    host: str = "127.0.0.1"
    port: int = 0
    start_limit_s: float = START_LIMIT_S
    process: subprocess.Popen[str] | None = None
    log: list[str] = field(factory=list, repr=False)
    earlier_log: list[str] = field(factory=list, repr=False)  # of the processes before this one
    _changed: threading.Condition = field(factory=threading.Condition, repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap address for clients."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def workers(self) -> list[int]:
        """The ids of the processes that serve now, of a broker with several, in any order."""
        (forker,) = [each for each in psutil.Process(self.pid).children() if each.name() == "korvet forker"]
        return [each.pid for each in forker.children()]

    def start(self) -> None:
        """Start the process, and return once it has printed its address."""
        with self._changed:
            self.earlier_log += self.log
            self.log.clear()
        self.process = subprocess.Popen(
            self._command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment},
        )
        threading.Thread(target=self._collect_log, args=(self.process,), daemon=True).start()
        self.port = int(self.wait_for_log(ADDRESS, limit_s=self.start_limit_s)[1])

    def wait_for_log(
        self, pattern: str | re.Pattern[str], *, limit_s: float = START_LIMIT_S, after: int = 0
    ) -> re.Match[str]:
        """Return the first match in the output of the running process, except in its first `after` lines.

        Raise with the output if there is none.
        """
        found: list[re.Match[str]] = []

        def decided() -> bool:
            found.extend(match for line in self.log[after:] if (match := re.search(pattern, line)))
            return bool(found) or self.log[-1:] == ["<end>"]

        with self._changed:
            if not self._changed.wait_for(decided, limit_s) or not found:
                raise RuntimeError(f"korvet never printed {pattern!r}:\n" + "\n".join(self.log))
            return found[0]

    def kill(self) -> None:
        """Kill the process with SIGKILL, as a crash would, and assert that it ended by that."""
        assert -signal.SIGKILL == self.end(signal.SIGKILL), "\n".join(self.log)

    def stop(self) -> int:
        """Drain the process with SIGTERM, and return its exit status."""
        return self.end(signal.SIGTERM)

    def end(self, number: signal.Signals) -> int:
        """Send a signal and wait for the end. Return the exit status, negative for a signal's number."""
        process = self._running()
        self.process = None
        process.send_signal(number)
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if self.process is not None:
            self.stop()

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            raise RuntimeError("korvet is not running")
        return self.process

    def _command(self) -> list[str]:
        command = [*self.runner, sys.executable, "-m", "korvet", "serve", "--storage", self.storage]
        command += ["--listeners", f"{self.host}:{self.port}"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        return [*command, *self.options]

    def _collect_log(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            return
        for line in process.stdout:
            self._note(process, line.rstrip("\n"))
        self._note(process, "<end>")
        process.stdout.close()

    def _note(self, process: subprocess.Popen[str], line: str) -> None:
        with self._changed:
            if process is self.process:
                self.log.append(line)
                self._changed.notify_all()
