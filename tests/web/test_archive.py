"""The page of the archive."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import trio

from korvet.client import Client, Record
from korvet.testing.broker import ServedBroker
from korvet.web.lake import open_lake
from korvet.web.options import PageRefused
from tests.web.conftest import NewPage

pytestmark = pytest.mark.slow  # archives a topic, and needs korvet[spark]


async def test_the_archive_has_tables_and_the_records_that_are_not_archived(
    new_page: NewPage, broker: ServedBroker, client: Client, tmp_path: Path
) -> None:
    from tests.pipeline.archiving import archived  # noqa: PLC0415  not installed for the newest Python

    await client.create_topic("orders")
    await client.create_topic("other")
    await client.produce("orders", [Record(b"x")] * 5)
    await trio.to_thread.run_sync(archived, broker.bootstrap_servers, "orders", tmp_path)
    await client.produce("orders", [Record(b"x")] * 3)
    browser = new_page(lake=str(tmp_path))

    text = (await browser.get("/archive")).text

    assert ["0", "5", "8", "3"] == re.findall(r'<td class="number">(\d+)</td>', text)
    assert "1 table" in text
    assert 'aria-current="page">Archive</a>' in text
    assert "There are no tables" in (await browser.get("/archive?q=nothing")).text


async def test_an_archive_that_cannot_be_read_is_a_message(new_page: NewPage, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    answer = await new_page(lake=str(tmp_path / "file")).get("/archive")

    assert 200 == answer.status
    assert "no tables" in answer.text or 'role="alert"' in answer.text


async def test_without_a_location_there_is_no_archive(new_page: NewPage) -> None:
    browser = new_page()

    assert 404 == (await browser.get("/archive")).status
    assert "Archive</a>" not in (await browser.get("/topics")).text


def test_an_invalid_location_is_refused_at_the_start() -> None:
    with pytest.raises(PageRefused, match="no tables at ftp"):
        open_lake("ftp://host/lake")
