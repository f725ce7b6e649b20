"""A broker that notes which turns of its event loop take long: what one request can do to all others.

`watched_broker` starts `python -m bench.turns …`, which serves as `korvet serve` does, with an instrument of Trio's in
it. Turns are measured in the processor time of the loop's own thread, so that other processes on the machine do not
count. A step of a task is a turn of its own; what the garbage collector does in between belongs to the step it
interrupts, and is told apart.
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
from korvet.cli.serve import read_config, serve

# Steps that take longer are noted with what the task was doing.
LONG_MS = 2.0
REPORT_LIMIT_S = 10.0


@define(eq=False)
class LongTurns(trio.abc.Instrument):
    """Notes the steps of tasks that take longer than `LONG_MS`."""

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
        """For `gc.callbacks`."""
        if phase == "start":
            self._collecting_ns = time.thread_time_ns()
        else:
            self._collected_ns += time.thread_time_ns() - self._collecting_ns

    def report(self) -> dict[str, object]:
        """What was noted since the last report."""
        found: dict[str, object] = {
            "turns": self.turns,
            "longest_ms": self.longest_ms,
            "places": self.places,
        }
        self.turns, self.longest_ms, self.places = 0, 0.0, {}
        return found


def place_of(task: trio.lowlevel.Task) -> str:
    """Where a task waits after its step: functions of korvet's, the innermost first."""
    names = []
    for frame, _ in task.iter_await_frames():
        frames = [frame]
        # `korvet.serving.watched` awaits by hand what it is given.
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
    """What the loop of a broker did in some time."""

    turns: int
    longest_ms: float
    places: Mapping[str, list[float]]

    def lines(self) -> Iterator[str]:
        """A line for the loop, and one for each place where long turns ended."""
        number = sum(map(len, self.places.values()))
        yield f"{self.turns:,} turns, the longest {self.longest_ms:.1f} ms; {number} above {LONG_MS:g} ms"
        for place, times in sorted(self.places.items(), key=lambda each: -sum(each[1])):
            yield f"    {len(times):5} × up to {max(times):6.1f} ms  {place}"

    def total(self) -> Counter[str]:
        """How many long turns ended where."""
        return Counter({place: len(times) for place, times in self.places.items()})


@frozen
class WatchedBroker:
    """A broker whose turns can be asked for."""

    broker: Broker
    report: Path
    process: subprocess.Popen[bytes]

    def turns(self) -> Turns:
        """What was noted since the last time."""
        self.report.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + REPORT_LIMIT_S
        while not self.report.exists():
            if time.monotonic() > deadline:
                raise DidNotStart("the broker does not report its turns")
            time.sleep(0.002)  # it is another process that we wait for: nothing tells us
        found = json.loads(self.report.read_text())
        return Turns(found["turns"], found["longest_ms"], found["places"])


@contextmanager
def watched_broker(storage: str, *settings: str) -> Iterator[WatchedBroker]:
    """Run a broker on that storage, on a loopback port of its own, and stop it at the end."""
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
    """Serve, and write a report when asked by SIGUSR1."""
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
