"""Ten clients over their quota beside one below it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from statistics import median

import pytest
import trio

from tests.processes import KorvetProcess
from tests.soak import greedy_producers
from tests.soak.greedy_producers import TOPIC, exchange, request

QUOTA = 50_000
CLIENTS = 10
SECONDS = 30
WARM_UP_S = 10
PAUSE_S = 0.01
# One phase without the others, one beside them, in turn, so that other programs disturb both.
PHASES = 3


def run_korvet(broker: KorvetProcess, *arguments: str) -> None:
    command = [sys.executable, "-m", "korvet", *arguments, "--bootstrap-servers", broker.bootstrap_servers]
    subprocess.run(command, check=True, timeout=60)


async def latencies(port: int, until: Callable[[], bool]) -> list[float]:
    """Return the round trips of small requests of a client below its quota, in seconds."""
    found = []
    frame = request("below", b"x" * 100)
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        while not until():
            began = trio.current_time()
            await exchange(stream, frame)
            found.append(trio.current_time() - began)
            await trio.sleep(PAUSE_S)
    return found


async def beside_greedy_clients(port: int, prefix: str) -> tuple[list[float], list[int]]:
    """Return the latencies of the client below its quota, and the bytes of the others in SECONDS."""
    arguments = [str(port), str(CLIENTS), prefix, str(WARM_UP_S), str(SECONDS)]
    command = [sys.executable, "-m", greedy_producers.__name__, *arguments]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    await trio.sleep(WARM_UP_S)
    found = await latencies(port, lambda: process.poll() is not None)
    output = b"".join([part async for part in process.stdout])
    return found, [int(count) for count in output.split()]


async def without(port: int) -> list[float]:
    end = trio.current_time() + SECONDS / 2
    return await latencies(port, lambda: trio.current_time() > end)


async def test_client_below_its_quota_keeps_its_latency(report: Callable[[str], None]) -> None:
    with KorvetProcess(settings={"quota.window.num": "2"}) as broker:
        run_korvet(broker, "topics", "create", TOPIC)
        run_korvet(broker, "quotas", "set", "--default-client-id", f"producer_byte_rate={QUOTA}")
        alone: list[float] = []
        beside: list[float] = []
        rates: list[float] = []
        for phase in range(PHASES):
            alone += await without(broker.port)
            found, produced = await beside_greedy_clients(broker.port, f"greedy-{phase}-")
            beside += found
            rates += [count / SECONDS / QUOTA for count in produced]
    ratio = median(beside) / median(alone)
    report(
        f"latency alone {median(alone) * 1000:.2f} ms, beside ten clients over quota {median(beside) * 1000:.2f} ms"
        f" ({ratio:.2f}); their rates are {min(rates):.3f} to {max(rates):.3f} of the quota"
    )

    assert ratio < 1.1
    assert len(rates) == PHASES * CLIENTS
    assert rates == [pytest.approx(1, abs=0.05)] * len(rates)
