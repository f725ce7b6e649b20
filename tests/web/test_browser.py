"""The page in Chromium: scripts, keys, phone width, dark mode and names for screen readers.

SCREENSHOTS=docs/images writes the screenshots of the documentation.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trio
from confluent_kafka import Producer

from korvet.client import Client, OffsetAndMetadata, Record, TopicPartition, open_client
from korvet.client.lake_tables import ARCHIVE, TYPED, Report, ReportedTable
from tests.processes import KorvetProcess
from tests.web.browsing import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("web-browser")]

EVIL = "<img src=x onerror=\"document.title='evil'\"><script>document.title='evil'</script>"
PHONE = {"width": 390, "height": 844}
BEGIN_MS = 1_790_000_000_000
# Lines of an accessibility tree with a role and no name.
ROLES = "button|link|textbox|searchbox|combobox|checkbox|region|navigation"
UNNAMED = re.compile(rf"^\s*- (?:{ROLES})(?::|$| \[)", re.MULTILINE)
PATHS = (
    "/topics",
    "/topics/orders",
    "/topics/orders/records",
    "/topics/orders/records/0/1",
    "/topics/orders/live",
    "/topics/orders/produce",
    "/groups",
    "/transactions",
    "/group?id=billing",
    "/group/reset?id=billing&to=earliest",
    "/brokers",
    "/brokers/1",
    "/access",
    "/lake",
    "/nothing",
)


async def fill(servers: str) -> None:
    async with open_client(servers) as client:
        for name in ("clicks", "orders", "payments", "shipments"):
            await client.create_topic(name, partitions=3)
        await client.produce("orders", [order(i) for i in range(90)])
        await client.produce(
            "payments", [Record(EVIL.encode(), key=EVIL.encode(), headers=((EVIL, EVIL.encode()),))]
        )
        offsets = {TopicPartition("orders", p): OffsetAndMetadata(10 + 5 * p) for p in range(3)}
        await client.commit("billing", offsets)
        await client.commit("dashboard", {TopicPartition("orders", 0): OffsetAndMetadata(0)})
        table = ReportedTable(ARCHIVE, "s3://bucket/lake/orders", BEGIN_MS, 12, 48_000_000)
        report = Report(round(time.time() * 1000), "failed", (table,), EVIL)
        archived = OffsetAndMetadata(20, metadata=report.to_text())
        await client.commit("korvet-lake", {TopicPartition("orders", 0): archived})
        now_ms = round(time.time() * 1000)
        shipments = (
            ReportedTable(ARCHIVE, "s3://bucket/lake/shipments", now_ms, 12, 48_000_000),
            ReportedTable(TYPED, "s3://bucket/lake-typed/shipments", now_ms, 3, 31_000_000, 0),
        )
        current = OffsetAndMetadata(0, metadata=Report(now_ms, "current", shipments).to_text())
        await client.commit("korvet-lake", {TopicPartition("shipments", 0): current})


def order(number: int) -> Record:
    value = {"id": number, "customer": f"c-{number % 7}", "total": number * 1.5, "note": "<b>rush</b>"}
    return Record(
        json.dumps(value).encode(),
        key=f"c-{number % 7}".encode(),
        headers=(("trace-id", f"{number:08x}".encode()),),
        timestamp=BEGIN_MS + 1000 * number,
        partition=number % 3,
    )


@pytest.fixture(scope="module")
def korvet() -> Iterator[KorvetProcess]:
    options = ["--web", "localhost:0", "--web-write", "--metrics", "localhost:0"]
    with KorvetProcess(options=options) as process:
        trio.run(fill, process.bootstrap_servers)
        yield process


@pytest.fixture(scope="module")
def base(korvet: KorvetProcess) -> str:
    return korvet.wait_for_log(r"web page is at (http://localhost:\d+)")[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser: Browser, base: str) -> Iterator[Page]:
    """A page whose console must stay empty: a violation of the policy for contents is an error there."""
    context = browser.new_context(base_url=base, viewport={"width": 1100, "height": 700})
    opened = context.new_page()
    errors: list[str] = []
    opened.on(
        "console",
        lambda message: errors.append(message.text) if message.type in ("error", "warning") else None,
    )
    opened.on("pageerror", lambda error: errors.append(str(error)))
    yield opened
    context.close()
    assert [] == [error for error in errors if "status of 404" not in error]


def in_client(korvet: KorvetProcess, use: Callable[[Client], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        async with open_client(korvet.bootstrap_servers) as client:
            return await use(client)

    return trio.run(main)


def keep(page: Page, name: str) -> None:
    """Write a screenshot for the documentation, if it was requested."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_pages_fit_on_a_phone_and_name_every_control(page: Page) -> None:
    page.set_viewport_size(PHONE)
    for path in PATHS:
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        assert 1 == page.locator("h1").count(), path
        snapshot = page.locator("body").aria_snapshot()
        unnamed = UNNAMED.findall(snapshot)
        assert [] == unnamed, (path, snapshot)
    page.goto("/topics/orders/records")
    keep(page, "web-phone")


def test_tables_are_seen_whole_on_a_small_screen(page: Page) -> None:
    page.set_viewport_size({"width": 1024, "height": 700})
    hidden = "Array.from(document.querySelectorAll('.scroll'), (each) => each.scrollWidth - each.clientWidth)"
    for path in PATHS:
        page.goto(path)
        assert {0} >= {*page.evaluate(hidden)}, path


def test_tables_of_the_lake_are_listed_with_their_errors(page: Page) -> None:
    page.goto("/topics")
    page.get_by_role("link", name="Lake").click()

    row = page.get_by_role("row").nth(1)
    assert ["failed", "12", "48 MB"] == [
        row.get_by_role("cell").nth(number).inner_text() for number in (1, 5, 6)
    ]
    assert EVIL == page.locator("td.fault").inner_text()
    assert "Lake · korvet" == page.title()
    page.set_viewport_size({"width": 1240, "height": 500})
    page.goto("/lake?q=shipments")
    assert 2 == page.get_by_role("row", name="shipments").count()
    keep(page, "web-lake")


def test_open_transaction_leads_to_its_topic(page: Page, korvet: KorvetProcess) -> None:
    producer = Producer({"bootstrap.servers": korvet.bootstrap_servers, "transactional.id": "payments-1"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("clicks", b"x", partition=1)
    producer.flush()

    page.goto("/transactions")
    row = page.get_by_role("region", name="Open transactions").get_by_role("row").nth(1)
    assert ["1", "open"] == [row.get_by_role("cell").nth(number).inner_text() for number in (0, 2)]
    row.get_by_role("link", name="clicks").click()
    page.wait_for_url("**/topics/clicks")
    producer.abort_transaction()


def test_contents_of_records_run_no_script(page: Page) -> None:
    for path in ("/topics/payments/records", "/topics/payments/records?value=text"):
        page.goto(path)
        page.locator("summary").first.click()
        assert EVIL in page.locator("pre").last.inner_text()
        assert "evil" not in page.title()
        assert 0 == page.locator("main img, main script").count()


def test_the_live_view_shows_new_records_as_text(page: Page, korvet: KorvetProcess) -> None:
    page.goto("/topics/shipments/live")
    page.get_by_text("Waiting for records").wait_for()

    in_client(korvet, lambda client: client.produce("shipments", [Record(EVIL.encode(), key=b"live")]))

    row = page.locator("#live li").first
    row.wait_for()
    assert EVIL == row.locator(".value").inner_text()
    assert "evil" not in page.title()
    row.click()
    assert re.search(r"/topics/shipments/records/\d/0$", page.url)


def test_the_live_view_of_a_fast_topic_stays_small(page: Page, korvet: KorvetProcess) -> None:
    page.goto("/topics/clicks/live")
    page.get_by_text("Waiting for records").wait_for()

    async def produce(client: Client) -> None:
        for _ in range(20):
            await client.produce("clicks", [order(i) for i in range(5000)])

    in_client(korvet, produce)

    page.get_by_text("more arrive than are shown").wait_for()
    assert page.locator("#live li").count() <= 200
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Paused.").wait_for()


def test_keys_move_through_the_page(page: Page) -> None:
    page.goto("/topics")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert "payments" == page.evaluate("document.activeElement.textContent")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders")
    page.keyboard.press("g")
    page.wait_for_url("**/groups")
    page.keyboard.press("/")
    page.keyboard.type("tjk?")
    assert "tjk?" == page.get_by_label("Filter").input_value()
    page.keyboard.press("Tab")
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.get_by_role("dialog", name="Keys").is_visible()
    page.keyboard.press("Escape")
    assert not page.get_by_role("dialog").is_visible()


def test_records_are_searched_and_opened(page: Page) -> None:
    page.goto("/topics/orders/records")
    page.get_by_role("combobox", name="From").select_option("start")
    page.get_by_label("Search").fill('"id": 42,')
    page.get_by_role("button", name="Show").click()
    page.get_by_text("1 found in").wait_for()
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    keep(page, "web-records")
    assert '"total": 63.0' in page.locator("pre").last.inner_text()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download up to").click()
    assert "orders.jsonl" == download.value.suggested_filename
    assert 42 == json.loads(json.loads(Path(download.value.path()).read_text())["value"])["id"]


def test_fields_of_the_start_appear_when_they_are_needed(page: Page) -> None:
    page.goto("/topics/orders/records")
    assert not page.get_by_label("Offset", exact=True).is_visible()
    page.get_by_role("combobox", name="From").select_option("offset")
    page.get_by_label("Offset", exact=True).fill("3")
    page.get_by_label("Partition").fill("1")
    page.get_by_role("button", name="Show").click()
    assert "1@3" == page.locator("summary .where").first.inner_text()


def test_a_record_is_produced_by_the_form(page: Page) -> None:
    page.goto("/topics/shipments/produce")
    page.get_by_label("Key", exact=True).fill("k-1")
    page.get_by_label("Value", exact=True).fill('{"weight": 12}')
    page.get_by_label("Headers").fill("source: form")
    page.get_by_role("button", name="Produce").click()
    page.wait_for_url(re.compile(r"/records/\d/\d+$"))
    assert ["k-1", '{\n  "weight": 12\n}', "form"] == page.locator("pre").all_inner_texts()


def test_a_group_is_reset_after_a_preview(page: Page, korvet: KorvetProcess) -> None:
    tp = TopicPartition("orders", 2)
    page.goto("/groups")
    page.locator("[data-lag]", has_text=re.compile(r"\d")).first.wait_for()
    page.get_by_role("link", name="billing").click()
    keep(page, "web-group")
    page.get_by_role("combobox", name="To", exact=True).select_option("shift")
    page.get_by_label("Time, offset or number").fill("-4")
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("Nothing has been altered yet").wait_for()
    before = in_client(korvet, lambda client: client.committed("billing"))
    page.get_by_role("button", name="Commit these offsets").click()
    page.get_by_text("The offsets were reset.").wait_for()
    after = in_client(korvet, lambda client: client.committed("billing"))
    assert (20, 16) == (before[tp].offset, after[tp].offset)


def test_the_list_of_topics_computes_growth(page: Page, korvet: KorvetProcess) -> None:
    page.goto("/topics")
    row = page.locator('[data-topic="shipments"]')
    row.locator("[data-rate]", has_text=re.compile("B/s$")).wait_for()
    keep(page, "web-topics")


def test_dark_mode_follows_the_system(page: Page) -> None:
    def luminance() -> int:
        page.goto("/topics/orders")
        return sum(
            map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))
        )

    assert luminance() > 600
    page.emulate_media(color_scheme="dark")
    assert luminance() < 150
    keep(page, "web-dark")


def test_korvet_web_serves_the_page_of_another_broker(browser: Browser, korvet: KorvetProcess) -> None:
    command = [
        sys.executable,
        "-m",
        "korvet",
        "web",
        "-b",
        korvet.bootstrap_servers,
        "--listen",
        "localhost:0",
        "--metrics",
        korvet.wait_for_log(r"metrics: (http://\S+)")[1],
    ]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = re.search(r"http://\S+", process.stdout.readline())[0]
            opened = browser.new_page()
            opened.goto(f"{url}/topics/orders/records")
            assert 50 == opened.locator("summary").count()
            assert opened.get_by_text("read-only").is_visible()
            opened.goto(f"{url}/brokers")
            requests = opened.get_by_role("region", name="Broker").get_by_role("row", name="requests")
            requests.first.filter(has_text="/s").wait_for()
            keep(opened, "web-brokers")
            opened.close()
        finally:
            process.terminate()
