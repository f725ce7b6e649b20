"""`python -m korvet serve` as a separate process, on a port that the system picks.

The port is read from the start line of the process, so that it is certainly the one that this process has bound.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import psutil
from attrs import define, field

from tests.support.logged import LoggedProcess

START_LIMIT_S = 60.0
STOP_LIMIT_S = 30.0
ADDRESS = re.compile(r"clients connect to (?:[A-Z_]+://)?(?:127\.0\.0\.1|localhost|\[::1\]):(\d+)")


@define
class KorvetProcess(LoggedProcess):
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
    earlier_log: list[str] = field(factory=list, repr=False)  # of the processes before this one

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
        self.earlier_log += self.log
        self.launch(self._command(), env={**os.environ, "PYTHONUNBUFFERED": "1", **self.environment})
        self.port = int(self.wait_for_log(ADDRESS, limit_s=self.start_limit_s)[1])

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
