"""The terminal application, with a real broker and without a terminal."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import Static

from korvet.client import Record, open_client
from korvet.client.groups import delete_group
from korvet.client.lake_tables import ARCHIVE, Report, ReportedTable
from korvet.client.model import OffsetAndMetadata, TopicPartition
from korvet.client.security import PLAINTEXT, Sasl, Security
from korvet.protocol.errors import KafkaError
from korvet.top.app import Details, Table, Top, WatchedCluster
from korvet.top.sampling import Sample, Sampler
from korvet.top.tables import row
from tests.processes import KorvetProcess

LIMIT_S = 30.0
GROUP = "billing[red]"

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("test_top")]


@pytest.fixture(scope="module")
def broker() -> Iterator[KorvetProcess]:
    with KorvetProcess() as process:
        trio.run(fill, process.bootstrap_servers)
        yield process


async def fill(servers: str) -> None:
    async with open_client(servers) as client:
        await client.create_topic("orders", partitions=3)
        await client.create_topic("visits", settings={"offset.mapping": "timestamp"})
        for name in ("orders", "visits"):
            await client.produce(name, [Record(b"x", partition=0) for _ in range(5)])
        await client.commit(GROUP, {TopicPartition("orders", 0): OffsetAndMetadata(2)})


def run(source: WatchedCluster, use: Callable[[Top, Pilot[str]], Awaitable[None]]) -> Top:
    """Run the application, and `use` with the keyboard."""
    app = Top(source)

    async def main() -> None:
        async with app.run_test(size=(120, 30)) as pilot:
            await use(app, pilot)

    asyncio.run(main())
    return app


async def until(pilot: Pilot[str], happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < deadline
        await pilot.pause(0.02)


def source(process: KorvetProcess, security: Security = PLAINTEXT) -> WatchedCluster:
    return WatchedCluster(process.bootstrap_servers, security, 0.3)


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)]


def text_of(app: Top, name: str) -> str:
    return str(app.screen_stack[0].query_one(f"#{name}", Static).content)


def test_sample_after_the_widgets_are_removed_is_ignored(broker: KorvetProcess) -> None:
    async def use(app: Top, pilot: Pilot[str]) -> None:
        await until(pilot, lambda: app.tables is not None)
        before = app.tables
        await app.screen_stack[0].remove_children()  # as Textual does while the application closes
        await until(pilot, lambda: app.tables is not before)

    run(source(broker), use)


def test_table_of_many_rows_shows_the_first_ones(broker: KorvetProcess) -> None:
    async def use(app: Top, pilot: Pilot[str]) -> None:
        await until(pilot, lambda: app.tables is not None)
        await pilot.press("p")
        table = app.query_one("#topics-table", Table)

        table.show([row(f"t{number:04}", f"t{number:04}", 1, 2, 3, 4, "records") for number in range(1_200)])
        assert (1_000, 200, "t0000") == (table.row_count, table.left_out, cells(table)[0][0])
        table.find("t119")
        assert (10, 0, "t1190") == (table.row_count, table.left_out, cells(table)[0][0])

    run(source(broker), use)


def test_tables_follow_the_cluster(broker: KorvetProcess) -> None:
    async def use(app: Top, pilot: Pilot[str]) -> None:
        topics = app.query_one("#topics-table", Table)
        await until(pilot, lambda: app.tables is not None and app.tables.before is not None)
        assert [
            ["orders", "3", "5", "0", "-", "records"],
            ["visits", "1", "-", "-", "-", "time"],
        ] == cells(topics)
        assert "1 broker, 2 topics, 1 group" in text_of(app, "summary")
        await asyncio.to_thread(trio.run, produce_more, broker.bootstrap_servers)
        await until(pilot, lambda: "7" == cells(topics)[0][2])

        await pilot.press("2")
        groups = app.query_one("#groups-table", Table)
        assert [GROUP, "Empty", "0", "1", "5", "orders-0 5"] == cells(groups)[0]
        await pilot.press("3")
        assert [["1", broker.bootstrap_servers, "4", "controller"]] == cells(
            app.query_one("#brokers-table", Table)
        )

    run(source(broker), use)


async def produce_more(servers: str) -> None:
    async with open_client(servers) as client:
        await client.produce("orders", [Record(b"x", partition=0) for _ in range(2)])


def test_keys_sort_find_and_open(broker: KorvetProcess) -> None:
    async def use(app: Top, pilot: Pilot[str]) -> None:
        topics = app.query_one("#topics-table", Table)
        await until(pilot, lambda: topics.row_count == 2)
        await pilot.press("r")
        assert "visits" == cells(topics)[0][0]
        await pilot.press("s")
        assert "orders" == cells(topics)[0][0]  # by partitions, the most first
        await pilot.press("down")
        assert "visits" == topics.selected

        await pilot.press("slash", "O", "r", "d", "enter")
        await until(pilot, lambda: 1 == topics.row_count)
        assert "orders" == topics.selected
        await pilot.press("enter")
        await until(
            pilot, lambda: isinstance(app.screen, Details) and 3 == app.screen.query_one(Table).row_count
        )
        await pilot.press("escape")
        assert not isinstance(app.screen, Details)

        await pilot.press("2", "enter")
        await until(
            pilot, lambda: isinstance(app.screen, Details) and 1 == app.screen.query_one(Table).row_count
        )
        assert ["orders", "0", "2"] == cells(app.screen.query_one(Table))[0][:3]
        await pilot.press("1", "p")
        assert app.is_paused
        await pilot.press("q")

    app = run(source(broker), use)
    assert app.return_code == 0


def test_tables_of_a_run_are_shown_until_it_is_lost(broker: KorvetProcess) -> None:
    now_ms = round(time.time() * 1000)
    table = ReportedTable(ARCHIVE, "/lake/orders", now_ms, 3, 2_500)

    async def report(at_ms: int) -> None:
        made = Report(at_ms, "failed", (table,), "no [bold]catalogue")
        at = OffsetAndMetadata(0, metadata=made.to_text())
        async with open_client(broker.bootstrap_servers) as client:
            await client.commit("run", {TopicPartition("orders", 1): at})

    async def use(app: Top, pilot: Pilot[str]) -> None:
        await asyncio.to_thread(trio.run, report, now_ms)
        await pilot.press("6")
        lake = app.query_one("#lake-table", Table)
        await until(pilot, lambda: lake.row_count == 1 and cells(lake)[0][2] == "failed")
        row = cells(lake)[0]
        assert ["orders", "archive", "3", "2.5 kB", "/lake/orders", "no [bold]catalogue"] == [
            *row[:2],
            *row[6:8],
            *row[9:],
        ]
        await asyncio.to_thread(trio.run, report, now_ms - 61_000)
        await until(pilot, lambda: cells(lake)[0][2] == "no report")
        await asyncio.to_thread(trio.run, forget, broker.bootstrap_servers)

    run(source(broker), use)


async def forget(servers: str) -> None:
    async with open_client(servers) as client:
        await delete_group(client, "run")


def test_keys_that_arrive_with_the_one_that_opens_the_search_are_its_text(broker: KorvetProcess) -> None:
    async def use(app: Top, pilot: Pilot[str]) -> None:
        topics = app.query_one("#topics-table", Table)
        await until(pilot, lambda: topics.row_count == 2)
        for key in ("slash", "o", "r", "d", "q", "p", "backspace", "backspace", "enter"):
            # As Textual's reader of a terminal does, which waits for nothing in between.
            app.post_message(Key(key, key if len(key) == 1 else None))
        await until(pilot, lambda: 1 == topics.row_count and not app.query_one("#find").display)
        assert not app.is_paused
        assert "orders" == topics.selected
        await pilot.press("q")

    assert run(source(broker), use).return_code == 0


def test_sample_of_a_broker_that_dies_meanwhile_is_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take(process: KorvetProcess) -> Sample:
        await fill(process.bootstrap_servers)
        async with open_client(process.bootstrap_servers, retry_timeout_s=0) as client:
            found = await client.topics()
            await trio.to_thread.run_sync(process.kill)

            async def topics() -> Any:
                return found

            monkeypatch.setattr(type(client), "topics", lambda _: topics())
            return await Sampler(client).take()

    with KorvetProcess() as process, pytest.raises(KafkaError, match="Connection|closed"):
        trio.run(take, process)


def test_broker_that_is_away_is_asked_again() -> None:
    with KorvetProcess() as process:

        async def use(app: Top, pilot: Pilot[str]) -> None:
            await until(pilot, lambda: app.tables is not None)
            await asyncio.to_thread(process.kill)
            await until(pilot, lambda: "; trying again" in text_of(app, "notes"))
            assert text_of(app, "summary").startswith("not current: ")
            await asyncio.to_thread(process.start)
            await until(pilot, lambda: not text_of(app, "notes"))
            assert "not current" not in text_of(app, "summary")

        run(source(process), use)


def test_wrong_password_ends_the_application() -> None:
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
    }
    with KorvetProcess(settings=settings) as process:

        async def use(app: Top, pilot: Pilot[str]) -> None:
            await until(pilot, lambda: app.return_code == 1)

        app = run(source(process, Security(sasl=Sasl("PLAIN", "alice", "wrong"))), use)
    assert 1 == app.return_code


def test_tables_are_printed_once(broker: KorvetProcess) -> None:
    command = [sys.executable, "-m", "korvet", "top", "--bootstrap-servers", broker.bootstrap_servers]
    printed = subprocess.run(
        [*command, "--once", "--interval", "0.2"], capture_output=True, text=True, check=True, timeout=LIMIT_S
    ).stdout
    assert ["visits", "1", "-", "-", "-", "time"] in [line.split() for line in printed.splitlines()]

    refused = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
        env=os.environ,
    )  # fmt: skip
    assert (2, True) == (refused.returncode, "with --once it prints tables" in refused.stderr)
