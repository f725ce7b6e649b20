"""The page of the tables of `korvet lake run`."""

from __future__ import annotations

import time

from korvet.client import Client, OffsetAndMetadata, Record, TopicPartition
from korvet.client.lake_tables import ARCHIVE, TYPED, Report, ReportedTable
from tests.web.asgi import Browser, rows

EVIL = "<script>document.title='evil'</script>"


async def report(client: Client, topic: str, *, age_ms: int = 0, **changes: object) -> None:
    """Commit the report of a run, which has archived 5 records of the first partition."""
    now_ms = round(time.time() * 1000)
    tables = (
        ReportedTable(ARCHIVE, f"/lake/{topic}", now_ms - 90_000, 3, 2_500),
        ReportedTable(TYPED, f"/typed/{topic}", now_ms - 90_000, 1, 900, behind=2),
    )
    made = Report(**{"at_ms": now_ms - age_ms, "state": "current", "tables": tables, **changes})
    await client.commit("lake", {TopicPartition(topic, 0): OffsetAndMetadata(5, metadata=made.to_text())})


async def test_tables_have_their_lag_files_and_state(browser: Browser, client: Client) -> None:
    await client.create_topic("orders")
    await client.produce("orders", [Record(b"x")] * 8)
    await report(client, "orders")

    page = (await browser.get("/lake")).text

    assert 'aria-current="page">Lake</a>' in page
    archive, typed = rows(page)
    assert ["orders", "archive  /lake/orders", "current"] == archive[:3]
    assert ["3", "2 min", "3", "2.5 kB"] == archive[4:8]
    assert ["5", "2 min", "1", "900 B"] == typed[4:8]
    assert "No <code>korvet lake run</code>" in (await browser.get("/lake?q=nothing")).text


async def test_run_without_reports_is_not_shown_as_current(browser: Browser, client: Client) -> None:
    await client.create_topic("orders")
    await report(client, "orders", age_ms=3_600_000, error=EVIL)

    page = (await browser.get("/lake")).text

    assert "no report" == rows(page)[0][2]
    assert "1 h ago" == rows(page)[0][8]
    assert EVIL not in page
    assert [EVIL] == rows(page)[1]


async def test_deleted_topic_has_no_table(browser: Browser, client: Client) -> None:
    await client.create_topic("orders")
    await client.create_topic("other")
    await report(client, "orders")
    await report(client, "other")
    await client.delete_topic("orders")

    assert {"other"} == {row[0] for row in rows((await browser.get("/lake")).text)}


async def test_without_a_run_there_is_no_table(browser: Browser) -> None:
    assert "No <code>korvet lake run</code>" in (await browser.get("/lake")).text
