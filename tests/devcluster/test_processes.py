"""Child processes that do not start, do not end, or end unexpectedly."""

from __future__ import annotations

import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from attrs import define, field

from korvet.concurrency.background import background_nursery
from korvet.devcluster.processes import Child, DevClusterError, ProcessGroup, process_group


@define
class Started:
    """A group for processes, its nursery, and the lines that were reported."""

    nursery: trio.Nursery
    group: ProcessGroup
    folder: Path
    lines: list[str]
    hurry: trio.Event
    reported: trio.Event = field(factory=trio.Event)

    async def run(self, script: str) -> Child:
        child = Child("broker 7", "localhost:1", self.folder / "log")
        await self.group.start(child, ["/bin/sh", "-c", script], self.nursery)
        return child


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Started]:
    lines: list[str] = []
    hurry = trio.Event()

    def report(line: str) -> None:
        lines.append(line)
        running.reported.set()

    with trio.fail_after(30):
        async with process_group(report, hurry, folder) as group, background_nursery() as nursery:
            running = Started(nursery, group, folder, lines, hurry)
            yield running


async def never() -> bool:
    await trio.lowlevel.checkpoint()
    return False


def prints(child: Child, text: str) -> Callable[[], Awaitable[bool]]:
    async def is_so() -> bool:
        await trio.lowlevel.checkpoint()
        return text in child.log.read_text()

    return is_so


async def test_process_that_ends_at_its_start_is_an_error_with_its_last_lines(tmp_path: Path) -> None:
    async with started(tmp_path) as running:
        child = await running.run("for n in 1 2 3 4; do echo line $n; done; exit 3")
        with pytest.raises(DevClusterError) as error:
            await child.wait_ready(never, math.inf)

    expected = "broker 7 does not start: its output ends: line 2; line 3; line 4"
    assert expected == str(error.value)
    assert [] == running.lines


async def test_process_that_is_not_ready_in_time_is_an_error(tmp_path: Path) -> None:
    async with started(tmp_path) as running:
        child = await running.run("exec sleep 1000")
        with pytest.raises(DevClusterError, match="broker 7 is not ready after 0.1 s: it printed nothing"):
            await child.wait_ready(never, 0.1)

    assert -signal.SIGTERM == child.process.returncode


async def test_unexpected_end_is_reported_with_its_status(tmp_path: Path) -> None:
    async with started(tmp_path) as running:
        go = tmp_path / "go"
        script = f"echo ready; while [ ! -e {go} ]; do sleep 0.01; done; echo out of memory; exit 5"
        child = await running.run(script)
        await child.wait_ready(prints(child, "ready"), 30)
        go.touch()
        await running.reported.wait()

    line = f"broker 7 (localhost:1, process {child.pid}) has ended with status 5: "
    assert [f"{line}its output ends: ready; out of memory"] == running.lines


async def test_process_that_ignores_sigterm_is_killed_in_a_hurry(tmp_path: Path) -> None:
    async with started(tmp_path) as running:
        child = await running.run("trap '' TERM; echo ready; while :; do sleep 0.05; done")
        await child.wait_ready(prints(child, "ready"), 30)
        running.hurry.set()

    assert -signal.SIGKILL == child.process.returncode
    assert [] == running.lines


async def test_paused_process_is_stopped_by_sigterm(tmp_path: Path) -> None:
    async with started(tmp_path) as running:
        child = await running.run("trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done")
        await child.wait_ready(prints(child, "ready"), 30)
        child.process.send_signal(signal.SIGSTOP)

    assert 0 == child.process.returncode
