"""Client quotas of a broker with several processes hold for all of them together."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.rpc import Link, Parked, Question, answer_links, link_to
from korvet.security.quotas import CLIENT_ID, IP, USER
from korvet.workers.quotas import USAGE, reporting
from tests.groups.test_coordinator import parked
from tests.handlers.quotas import set_quotas
from tests.handlers.support import new_broker
from tests.processes import KorvetProcess
from tests.soak.greedy_producers import RECORD, exchange, request

LIMIT_S = 20.0


def produce(broker: Broker, size: int) -> int:
    """Charge a Produce, and return for how many ms its client is throttled."""
    context = RequestContext(1, "c", "User:u", peer="127.0.0.1:1", request_bytes=size)
    broker.quotas.produced(context, is_time_exempt=False)
    return context.throttle_ms


@contextmanager
def short_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kq-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@asynccontextmanager
async def answering(broker: Broker, path: Path) -> AsyncIterator[None]:
    async def answered(question: Question, _: Parked) -> object:
        assert USAGE == question.verb
        broker.quotas.add_usage(*question.arguments)
        return None

    async with trio.open_nursery() as nursery:
        await nursery.start(answer_links, path, answered, parked)
        yield
        nursery.cancel_scope.cancel()


async def test_usage_of_one_process_throttles_the_clients_of_another() -> None:
    one, other = await new_broker(), await new_broker()
    for broker in (one, other):
        await set_quotas(broker, {USER: "u"}, producer_byte_rate=1000)
        await set_quotas(broker, {CLIENT_ID: "c"}, controller_mutation_rate=1)
        await set_quotas(broker, {IP: "10.0.0.1"}, connection_creation_rate=1)
    with trio.fail_after(LIMIT_S), short_folder() as folder:
        async with trio.open_nursery() as nursery:
            link = link_to(folder / "other", nursery)
            async with answering(other, folder / "other"), reporting(one.quotas, {1: link}):
                produce(one, 15_000)
                context = RequestContext(1, "c", "User:v", peer="127.0.0.1:1")
                one.quotas.mutated(context, 100, is_strict=False)
                for _ in range(20):
                    one.quotas.connected("10.0.0.1")
                while not produce(other, 1):  # noqa: ASYNC110  reports have no event
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()

        other.quotas.mutated(context := RequestContext(1, "c", "User:v"), 1, is_strict=False)
        assert context.throttle_ms > 10_000
        assert other.quotas.connected("10.0.0.1") > 0


async def test_process_without_an_answer_gets_no_further_reports(autojump_clock: object) -> None:
    broker = await new_broker()
    await set_quotas(broker, {USER: "u"}, producer_byte_rate=1000)
    reports = []

    class Silent(Link):
        async def ask(self, question: Question, parked: Parked | None = None) -> None:
            reports.append(question)
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with reporting(broker.quotas, {1: Silent("silent", None, nursery)}):  # type: ignore[arg-type]
            for _ in range(5):
                produce(broker, 1)
                await trio.sleep(1)
        nursery.cancel_scope.cancel()

    assert 1 == len(reports)


@pytest.mark.servers
def test_connections_of_both_processes_share_a_quota(report: Callable[[str], None]) -> None:
    rate, seconds, connections = 100_000, 4.0, 8
    with short_folder() as folder:
        settings = {"processes": "2", "quota.window.num": "2"}
        with KorvetProcess(f"embedded:{folder / 'data'}", settings) as process:
            quota = ["quotas", "set", "--client-id", "c", f"producer_byte_rate={rate}"]
            servers = ["--bootstrap-servers", process.bootstrap_servers]
            subprocess.run([sys.executable, "-m", "korvet", *quota, *servers], check=True, timeout=LIMIT_S)
            produced = trio.run(partial(produced_in, process.port, seconds, connections))

    report(f"{produced:,} bytes in {seconds:.0f} s with a quota of {rate:,}")
    # Kafka's windows admit the quota of one window at the beginning, and each connection one request above it.
    assert produced < rate * (seconds + 2) + connections * 2 * len(RECORD)
    assert produced > rate * (seconds - 2)


async def produced_in(port: int, seconds: float, connections: int) -> int:
    """Return how many bytes connections with the same client id produce in that time."""
    frame, produced = request("c", RECORD), 0

    async def produce_on_one() -> None:
        nonlocal produced
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            while True:
                await exchange(stream, frame)
                produced += len(frame)

    with trio.move_on_after(seconds):
        async with trio.open_nursery() as nursery:
            for _ in range(connections):
                nursery.start_soon(produce_on_one)
    return produced
