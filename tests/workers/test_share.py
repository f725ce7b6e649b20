"""Share partitions in a broker of several processes: each state runs in one of them."""

from __future__ import annotations

import inspect
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
import trio

from korvet.cluster.membership import Membership
from korvet.cluster.registration import Registration
from korvet.concurrency.rpc import answer_links, link_to
from korvet.coordination.routing import answer
from korvet.protocol.errors import InvalidRecordState, InvalidRequest
from korvet.share.coordinator import VERBS, LeaderRouting, ShareCoordinator
from korvet.share.partition import Read, Span
from korvet.storage.interface import TopicPartition
from korvet.storage.memory import MemoryStorage
from korvet.storage.shares import UNKNOWN, Acknowledged, AckType, Run, ShareLimits, SharePartitionKey
from korvet.workers.groups import LinkedProcesses
from tests.groups.test_coordinator import parked

PROCESSES = 3
LIMIT_S = 20.0
KEYS = [str(SharePartitionKey(TopicPartition("t", number), UUID(int=1), "g")) for number in range(9)]

# Methods that each process calls without RPC: documents are the truth.
LOCAL = {"run", "stored", "reset", "forget_group", "forget_topic"}


@asynccontextmanager
async def processes(storage: MemoryStorage) -> AsyncIterator[list[ShareCoordinator]]:
    """Run the coordinators of a broker's processes."""
    folder = Path(tempfile.mkdtemp(prefix="kl-"))
    paths = [folder / f"{index}.sock" for index in range(PROCESSES)]
    running: list[ShareCoordinator] = []
    try:
        with trio.fail_after(LIMIT_S):
            async with trio.open_nursery() as nursery:
                for index in range(PROCESSES):
                    links = {
                        each: link_to(paths[each], nursery) for each in range(PROCESSES) if each != index
                    }
                    membership = Membership(Registration(1, "", {"PLAINTEXT": ("localhost", 9092)}))
                    routing = LeaderRouting(membership, LinkedProcesses(index, links), "share:")
                    running.append(ShareCoordinator(storage, routing, lambda _: ShareLimits()))
                for path, coordinator in zip(paths, running, strict=True):
                    await nursery.start(answer_links, path, partial(answer, [coordinator]), parked)
                    nursery.start_soon(coordinator.run)
                yield running
                nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(folder)


def test_every_request_of_the_coordinator_is_sharded_or_local() -> None:
    public = {
        name
        for name, each in vars(ShareCoordinator).items()
        if callable(each) and inspect.iscoroutinefunction(inspect.unwrap(each)) and not name.startswith("_")
    }

    assert {f"share.{name}" for name in public - LOCAL} == set(VERBS.table)


async def test_all_processes_work_on_the_same_states() -> None:
    async with processes(MemoryStorage()) as running:
        first, second, third = running
        for key in KEYS:
            assert (await first.next(key, is_first=True)).offset == UNKNOWN
            await second.begin(key, 5)
            assert (await third.next(key)).offset == 5
            (run,) = await first.acquire(key, "alice", Read(5, 9, [Span(5, 8)]), 3)
            assert run[:4] == (5, 7, 1, "alice")
            await second.acknowledge(key, "alice", [Acknowledged(5, 5, AckType.ACCEPT)])
            with pytest.raises(InvalidRecordState):
                await third.acknowledge(key, "bob", [Acknowledged(6, 6, AckType.ACCEPT)])
            with pytest.raises(InvalidRequest):
                await third.acknowledge(key, "alice", [Acknowledged(6, 9, AckType.ACCEPT)])
            await third.release(key, "alice")
        held = [set(each.runtime.held) for each in running]
        stored = await first.stored("g")

    assert set(KEYS) == held[0] | held[1] | held[2]
    assert len(KEYS) == sum(map(len, held))
    assert all(map(len, held))
    assert set(KEYS) == {str(key) for key in stored}
    assert all(state.runs == [Run(6, 7, 1)] for state in stored.values())


async def test_every_process_sees_a_reset_when_a_session_begins() -> None:
    async with processes(MemoryStorage()) as running:
        key = SharePartitionKey.parsed(KEYS[0])
        await running[0].begin(KEYS[0], 5)
        for number, coordinator in enumerate(running):
            await coordinator.reset(key, number)
            for other in running:
                assert (await other.next(KEYS[0], is_first=True)).offset == number
        await running[1].forget_group("g")
        for other in running:
            assert (await other.next(KEYS[0], is_first=True)).offset == UNKNOWN
