"""`python -m tests.top.screenshot`: write docs/top.svg, a picture of `korvet top` with a real broker under load."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import trio
from textual.widgets import Input

from korvet.client import Record, open_client
from korvet.client.model import OffsetAndMetadata, TopicPartition
from korvet.client.security import PLAINTEXT
from korvet.top.app import Top, WatchedCluster
from tests.processes import KorvetProcess

PICTURE = Path(__file__).parents[2] / "docs" / "top.svg"
RATES = {"clicks": 900, "orders": 40, "payments": 25, "shipments": 10}


async def fill(servers: str) -> None:
    """Create the topics, and a group that is behind in each of them."""
    async with open_client(servers) as client:
        for name, rate in RATES.items():
            await client.create_topic(name, partitions=3)
            await client.produce(name, [Record(b"x" * 100) for _ in range(10 * rate)])
            await client.commit(f"{name}-archive", {TopicPartition(name, 0): OffsetAndMetadata(rate)})


async def produce(servers: str) -> None:
    """Produce to all topics until cancelled."""
    async with open_client(servers) as client:
        while True:
            for name, rate in RATES.items():
                await client.produce(name, [Record(b"x" * 100) for _ in range(rate // 5)])
            await trio.sleep(0.2)


async def take(servers: str) -> None:
    """Run the application until it has rates, and save its picture."""
    app = Top(WatchedCluster(servers, PLAINTEXT, 2.0))
    async with app.run_test(size=(100, 16)) as pilot:
        while app.tables is None or app.tables.before is None:
            await pilot.pause(0.1)
        await pilot.press("s", "s")
        assert not app.query_one("#find", Input).has_class("open")
        picture = app.export_screenshot(title="korvet top", simplify=True)
        # Without fonts from other sites, which browsers do not load in pictures.
        PICTURE.write_text(re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL), encoding="utf-8")


async def main() -> None:
    with KorvetProcess() as process:
        await fill(process.bootstrap_servers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, process.bootstrap_servers)
            await trio.to_thread.run_sync(asyncio.run, take(process.bootstrap_servers))
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
