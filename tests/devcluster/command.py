"""`korvet dev-cluster` as a separate process, whose temporary files and processes a test can find."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from attrs import define

LIMIT_S = 120.0
GUARD = "korvet-dev-cluster-guard"
ROW = re.compile(r"^((?:broker|node) \d+) +(\S+) +(.*?) +(\d+)$", re.MULTILINE)


def eventually(is_so: Callable[[], object], what: str) -> None:
    """Poll until `is_so` returns a true value; raise with `what` if it takes too long."""
    deadline = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


@define
class DevCluster:
    """The command, with free ports for its brokers. A context manager that leaves no process."""

    folder: Path  # temporary files are in it
    options: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    group: str = ""  # the process group of the children, once `processes` has found it

    def begin(self) -> None:
        """Start the command without waiting until it serves."""
        self.ready_file.unlink(missing_ok=True)
        self.group = ""
        command = [sys.executable, "-m", "korvet", "dev-cluster", "--first-port", "0"]
        command += ["--ready-file", str(self.ready_file), *self.options]
        with self.out_file.open("wb") as out, self.error_file.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env=os.environ | {"TMPDIR": str(self.folder)},
            )

    def start(self) -> None:
        """Start the command, and return once all brokers serve."""
        self.begin()
        began_s = time.monotonic()
        eventually(lambda: self.ready_file.exists() or self.has_ended, "a cluster that serves")
        assert self.ready_file.exists(), self.errors
        self.started_s = time.monotonic() - began_s

    @property
    def ready_file(self) -> Path:
        return self.folder / "ready"

    @property
    def out_file(self) -> Path:
        return self.folder / "out"

    @property
    def error_file(self) -> Path:
        return self.folder / "errors"

    @property
    def out(self) -> str:
        return self.out_file.read_text()

    @property
    def errors(self) -> str:
        return self.error_file.read_text()

    @property
    def bootstrap_servers(self) -> str:
        return self.ready_file.read_text().strip()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids in the printed table, by the process's name."""
        return {name: int(pid) for name, _, _, pid in ROW.findall(self.out)}

    @property
    def roles(self) -> dict[str, str]:
        """The roles in the printed table."""
        return {name: role for name, _, role, _ in ROW.findall(self.out)}

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def end(self, number: signal.Signals) -> int:
        """Send a signal to the command, wait for its end, and return its exit status."""
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait(LIMIT_S)

    def kill(self, name: str) -> None:
        """Kill one of its processes, and return once the command has reported that."""
        os.kill(self.pids[name], signal.SIGKILL)
        eventually(lambda: f"{name} (" in self.errors, f"a report about {name}")

    def processes(self) -> list[str]:
        """Return the running processes of the cluster, without the command itself.

        They are in the process group of the guard, which names the temporary folder. Servers change their titles.
        """
        shown = subprocess.run(
            ["ps", "-axww", "-o", "stat=,pgid=,args="], capture_output=True, text=True, check=True
        )
        processes = [line.split(maxsplit=2) for line in shown.stdout.splitlines()]
        if not self.group:
            guards = [group for _, group, args in processes if GUARD in args and str(self.folder) in args]
            self.group = guards[0] if guards else ""
        return [args for stat, group, args in processes if group == self.group and not stat.startswith("Z")]

    def await_no_process(self) -> None:
        """Return once no process of the cluster runs."""
        eventually(lambda: not self.processes(), "the end of all processes")

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
            self.end(signal.SIGTERM)
