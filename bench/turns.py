"""A broker that records long time slices of its event loop: each delays all other requests.

`watched_broker` starts `python -m bench.turns …`, which serves like `korvet serve` with a Trio instrument. A slice is
one step of a task. It is measured in processor time of the loop's thread, so that other processes of the machine do not
count. The time of the garbage collector belongs to the step that it interrupts, and is also reported separately.
"""

from __future__ import annotations

import gc
import json
import logging
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import trio
from attrs import define, field, frozen

from bench.processes import Broker, DidNotStart, await_listening, free_port
from korvet.cli.broker_settings import read_config
from korvet.cli.serve import serve

# Longer steps are recorded with the place where the task was.
LONG_MS = 2.0
REPORT_LIMIT_S = 10.0


@define(eq=False)
class LongTurns(trio.abc.Instrument):
    """Records the steps of tasks that take longer than `LONG_MS`."""

    turns: int = 0
    longest_ms: float = 0.0
    places: dict[str, list[float]] = field(factory=dict)
    _began_ns: int = 0
    _collecting_ns: int = 0
    _collected_ns: int = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002  the interface is Trio's
        self._collected_ns = 0
        self._began_ns = time.thread_time_ns()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took_ms = (time.thread_time_ns() - self._began_ns) / 1e6
        self.turns += 1
        self.longest_ms = max(self.longest_ms, took_ms)
        if took_ms > LONG_MS:
            place = place_of(task)
            if self._collected_ns / 1e6 > took_ms / 2:
                place += " (garbage collection)"
            self.places.setdefault(place, []).append(took_ms)

    def collecting(self, phase: str, _info: Mapping[str, int]) -> None:
        """Measure the garbage collector, as a callback in `gc.callbacks`."""
        if phase == "start":
            self._collecting_ns = time.thread_time_ns()
        else:
            self._collected_ns += time.thread_time_ns() - self._collecting_ns

    def report(self) -> dict[str, object]:
        """Return the steps since the last report."""
        found: dict[str, object] = {
            "turns": self.turns,
            "longest_ms": self.longest_ms,
            "places": self.places,
        }
        self.turns, self.longest_ms, self.places = 0, 0.0, {}
        return found


def place_of(task: trio.lowlevel.Task) -> str:
    """Return where a task waits after its step: korvet's functions, the innermost first."""
    names = []
    for frame, _ in task.iter_await_frames():
        frames = [frame]
        # `korvet.server.connection.watched` drives its coroutine itself, so the coroutine is in a local variable.
        handling = frame.f_locals.get("coroutine") if frame.f_code.co_name == "watched" else None
        while handling is not None and getattr(handling, "cr_frame", None) is not None:
            frames.append(handling.cr_frame)
            handling = handling.cr_await
        names += [
            f"{each.f_globals['__name__'].removeprefix('korvet.')}.{each.f_code.co_name}"
            for each in frames
            if str(each.f_globals.get("__name__", "")).startswith("korvet.")
        ]
    return " < ".join(names[::-1][:4]) or f"{task.name} (ended)"


@frozen
class Turns:
    """The time slices of a broker's event loop within some time."""

    turns: int
    longest_ms: float
    places: Mapping[str, list[float]]

    def lines(self) -> Iterator[str]:
        """Yield a line for the loop, and one for each place where long slices ended."""
        number = sum(map(len, self.places.values()))
        yield f"{self.turns:,} slices, the longest {self.longest_ms:.1f} ms; {number} above {LONG_MS:g} ms"
        for place, times in sorted(self.places.items(), key=lambda each: -sum(each[1])):
            yield f"    {len(times):5} × up to {max(times):6.1f} ms  {place}"

    def total(self) -> Counter[str]:
        """Return the number of long slices by place."""
        return Counter({place: len(times) for place, times in self.places.items()})


@frozen
class WatchedBroker:
    """A broker that reports its time slices."""

    broker: Broker
    report: Path
    process: subprocess.Popen[bytes]

    def turns(self) -> Turns:
        """Return the slices since the last call."""
        self.report.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + REPORT_LIMIT_S
        while not self.report.exists():
            if time.monotonic() > deadline:
                raise DidNotStart("the broker does not report its turns")
            time.sleep(0.002)  # the other process sends no notification
        found = json.loads(self.report.read_text())
        return Turns(found["turns"], found["longest_ms"], found["places"])


@contextmanager
def watched_broker(storage: str, *settings: str) -> Iterator[WatchedBroker]:
    """Run a broker on that storage and a free loopback port, and stop it on exit."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="kb-") as folder, tempfile.TemporaryFile() as output:
        report = Path(folder, "turns.json")
        command = [sys.executable, "-m", "bench.turns", str(report), storage, f"127.0.0.1:{port}", *settings]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            await_listening(process, ("127.0.0.1", port), output.fileno())
            yield WatchedBroker(Broker(port, process.pid, started), report, process)
        finally:
            process.terminate()
            process.wait()
            output.seek(0)
            sys.stderr.write(
                "".join(said for said in _log(output.read()) if "WARNING" in said or "ERROR" in said)
            )


def _log(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines(keepends=True)


def main() -> None:
    """Serve, and write a report on SIGUSR1."""
    report, storage, listeners, *settings = sys.argv[1:]
    noted = LongTurns()
    gc.callbacks.append(noted.collecting)

    def write(_number: int, _frame: FrameType | None) -> None:
        unfinished = Path(f"{report}.new")
        unfinished.write_text(json.dumps(noted.report()))
        unfinished.rename(report)

    signal.signal(signal.SIGUSR1, write)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    config = read_config(None, tuple(settings), storage=storage, listeners=listeners)
    trio.run(serve, config, None, instruments=[noted])


if __name__ == "__main__":
    main()
