"""Measurements of a broker under attack: its memory, and the longest wait of a client that does no harm."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

import trio
from attrs import define

from korvet.protocol.messages.api_versions import ApiVersionsRequest
from tests.processes import KorvetProcess
from tests.talk import Client

API_VERSIONS = ApiVersionsRequest(client_software_name="test", client_software_version="1")
PAUSE_S = 0.002


def highest_bytes(pid: int) -> int:
    """Return the most memory that the process has had since it was last reset."""
    return _status(pid, "VmHWM")


def resident_bytes(pid: int) -> int:
    """Return the memory that the process has."""
    return _status(pid, "VmRSS")


def reset_highest(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def _status(pid: int, name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@define
class Waits:
    """Times that a client waited for answers."""

    longest_s: float = 0.0
    count: int = 0


@asynccontextmanager
async def neighbour(client: Client) -> AsyncIterator[Waits]:
    """Ask for something small all the time, while the block runs."""
    waits = Waits()
    is_ending = False

    async def ask() -> None:
        while not is_ending:
            began = perf_counter()
            await client.ask(API_VERSIONS, 3)
            waits.longest_s = max(waits.longest_s, perf_counter() - began)
            waits.count += 1
            await trio.sleep(PAUSE_S)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        yield waits
        is_ending = True


@asynccontextmanager
async def client_of(broker: KorvetProcess) -> AsyncIterator[Client]:
    """Connect to a broker."""
    async with await trio.open_tcp_stream(broker.host, broker.port) as stream:
        yield Client(stream)
