"""The pages of topics, records, groups and brokers, without a browser."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
import trio

from korvet.client import Client, OffsetAndMetadata, Record, TopicPartition
from korvet.config import Config
from korvet.metrics.gather import Gatherer
from korvet.metrics.page import page as metrics_page
from korvet.metrics.recorder import Recorder
from korvet.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from korvet.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.protocol.messages.share_fetch import (
    FetchPartition,
    FetchTopic,
    ShareFetchRequest,
    ShareFetchResponse,
)
from korvet.protocol.messages.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from korvet.testing.broker import ServedBroker
from korvet.transactions.states import TRANSACTION
from tests.handlers.transactional import TransactionalProducer
from tests.web.asgi import Browser, rows
from tests.web.conftest import NewPage

EVIL = '<script>alert("x")</script>'
HEADERS = ((EVIL, EVIL.encode()),)


def token(text: str) -> str:
    return re.search(r'name="token" value="(\w+)"', text)[1]


async def test_the_first_page_is_the_list_of_topics(browser: Browser, client: Client) -> None:
    await client.create_topic("orders", partitions=3)

    assert "/topics" == (await browser.get("/")).headers["location"]
    text = (await browser.get("/topics")).text
    assert '<a href="/topics/orders" data-row>orders</a>' in text
    assert "1 topic" in text


async def test_topics_are_filtered_sorted_and_paged_by_the_server(browser: Browser, client: Client) -> None:
    for index in range(60):
        await client.create_topic(f"many-{index:02}", partitions=1 + (index == 7))
    await client.create_topic("other")

    def names(text: str) -> list[str]:
        return re.findall(r'data-topic="([^"]+)"', text)

    assert 50 == len(names((await browser.get("/topics?q=MANY")).text))
    assert 10 == len(names((await browser.get("/topics?q=many&page=2")).text))
    assert 10 == len(names((await browser.get("/topics?q=many&page=99")).text))
    assert ["other", "many-59"] == names((await browser.get("/topics?order=down")).text)[:2]
    assert "many-07" == names((await browser.get("/topics?sort=partitions&order=down")).text)[0]
    await client.produce("other", [Record(b"x" * 1000)])
    assert "other" == names((await browser.get("/topics?sort=size&order=down")).text)[0]


async def test_a_topic_has_partitions_offsets_and_settings(browser: Browser, client: Client) -> None:
    await client.create_topic("orders", partitions=2, settings={"retention.ms": "12345"})
    await client.produce("orders", [Record(b"x", partition=1)] * 3)

    text = (await browser.get("/topics/orders")).text
    assert "12345" in text
    assert "<dd>3</dd>" in text
    assert {"1": 3, "0": 0} == {
        key: value["end"]
        for key, value in (await browser.get("/topics/orders/topic.json")).json["partitions"].items()
    }


async def test_contents_of_records_never_become_html(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce("t", [Record(EVIL.encode(), key=EVIL.encode(), headers=HEADERS)])

    for path in (
        "/topics/t/records",
        "/topics/t/records/0/0",
        f"/topics/t/records?q={quote(EVIL)}",
        f"/topics?q={quote(EVIL)}",
    ):
        answer = await browser.get(path)
        assert 200 == answer.status
        assert EVIL not in answer.text
        assert html.escape(EVIL, quote=False)[:15] in answer.text


async def test_text_that_is_no_unicode_is_shown(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce("t", [Record(b'"\\ud800"'), Record(b"\xff\xfe")])

    assert 200 == (await browser.get("/topics/t/records?value=json")).status
    assert 200 == (await browser.get("/topics/t/records?value=text")).status


async def test_records_are_read_from_each_start(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce(
        "t", [Record(f"value-{i}".encode(), timestamp=1_700_000_000_000 + i) for i in range(10)]
    )

    async def values(query: str) -> list[str]:
        text = (await browser.get(f"/topics/t/records?limit=2&{query}")).text
        return re.findall(r'class="value text">value-(\d)<', text)

    assert ["9", "8"] == await values("from=newest")
    assert ["0", "1"] == await values("from=start")
    assert ["4", "5"] == await values("from=offset&offset=4")
    assert ["3", "4"] == await values("from=time&time=1700000000003")
    assert ["3", "4"] == await values("from=time&time=2023-11-14T22:13:20.003")
    assert ["7"] == await values("q=value-7")
    assert [] == await values("q=nothing")


async def test_older_records_follow_by_a_link(browser: Browser, client: Client) -> None:
    await client.create_topic("t", partitions=3)
    await client.produce(
        "t", [Record(str(i).encode(), partition=i % 3, timestamp=1_700_000_000_000 + i) for i in range(30)]
    )
    path: str | None = "/topics/t/records?limit=7"
    seen: list[int] = []

    while path:
        text = (await browser.get(path)).text
        seen += map(int, re.findall(r'class="value json">(\d+)<', text))
        link = re.search(r'<a rel="next" href="([^"]+)"', text)
        path = html.unescape(link[1]) if link else None

    assert list(range(29, -1, -1)) == seen


async def test_one_record_has_a_page_and_files(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce("t", [Record(b"\x00binary", key=b"k")])

    assert "00 62 69 6e 61 72 79" in (await browser.get("/topics/t/records/0/0")).text
    found = await browser.get("/topics/t/records/0/0?download=value")
    assert (b"\x00binary", "application/octet-stream") == (found.body, found.headers["content-type"])
    assert "attachment" in found.headers["content-disposition"]
    assert 404 == (await browser.get("/topics/t/records/0/1")).status


async def test_records_are_downloaded_as_json_lines(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce(
        "t", [Record(b"a", timestamp=5), Record(b"\xff", key=b"", headers=(("h", None),), timestamp=6)]
    )

    found = await browser.get("/topics/t/download?from=start")

    base = '{"topic": "t", "partition": 0, "offset": '
    assert [
        base + '0, "timestamp": 5, "key": null, "value": "a", "headers": []}',
        base
        + '1, "timestamp": 6, "key": "", "value_base64": "/w==", "headers": [{"name": "h", "value": null}]}',
    ] == found.text.splitlines()


async def test_transactions_are_listed_filtered_and_described(browser: Browser, client: Client) -> None:
    assert "There are no transactional ids yet." in (await browser.get("/transactions")).text
    await client.create_topic("t", partitions=2)
    producer = await client.retrying(lambda: initialized(client, EVIL))
    await initialized(client, "idle")
    adding = AddPartitionsToTxnTransaction(
        transactional_id=EVIL,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        topics=[AddPartitionsToTxnTopic(name="t", partitions=[1])],
    )
    added = await client.request(AddPartitionsToTxnRequest(transactions=[adding]), AddPartitionsToTxnResponse)
    assert 0 == added.error_code

    text = (await browser.get("/transactions")).text.replace("&#34;", "&quot;")
    assert (1, 1) == (text.count(html.escape(EVIL)), text.count(">idle<"))
    assert ">idle<" not in (await browser.get("/transactions?state=Ongoing")).text
    assert "No transactional id matches." in (await browser.get("/transactions?q=nobody")).text
    text = (await browser.get(f"/transaction?id={quote(EVIL)}")).text
    assert "<dd>Ongoing</dd>" in text
    assert re.search(r"<dd>\d+\.\d s</dd>", text)
    assert re.search(r'data-row>t</a></th><td class="number">1</td>', text)
    assert "No transaction is open." in (await browser.get("/transaction?id=idle")).text
    assert 400 == (await browser.get("/transaction")).status
    assert 404 == (await browser.get("/transaction?id=nobody")).status


async def test_open_transactions_are_listed_and_those_that_hang_are_marked(
    browser: Browser, broker: ServedBroker
) -> None:
    await broker.create_topic("t", partitions=2)
    inner = broker.server.broker
    producer = TransactionalProducer(inner, EVIL)
    await producer.init()
    await producer.send(b"a", b"b", tp=TopicPartition("t", 1))
    assert ["t", "1", "0", "open"] == rows((await browser.get("/transactions")).text)[0][:4]

    store = inner.transactions.storage
    saved = await store.load(TRANSACTION, EVIL)
    assert saved is not None
    visitor = await browser.app.site.sessions.visitor("")
    visitor.open_transactions.patience_ms = 0
    found = rows((await browser.get("/transactions")).text)[0]
    assert ("Ongoing", EVIL) == (found[3], found[5])
    await store.save(TRANSACTION, EVIL, None, expected_version=saved.version)
    text = (await browser.get("/transactions")).text

    state, idle, *rest = rows(text)[0][3:]
    assert ("hanging", ["–", str(producer.producer_id)]) == (state, rest)
    assert re.fullmatch(r"\d+ s", idle)
    assert '<span class="tag bad">hanging</span>' in text
    assert "wait for transactions that hang, in t-1." in text


async def initialized(client: Client, transactional_id: str) -> InitProducerIdResponse:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=60_000)
    answer = await client.request(request, InitProducerIdResponse)
    assert 0 == answer.error_code
    return answer


async def test_a_group_whose_broker_assigns_shows_targets_and_epochs(
    new_page: NewPage, client: Client
) -> None:
    await client.create_topic("t")
    request = ConsumerGroupHeartbeatRequest(
        group_id="assigned",
        member_id="first",
        member_epoch=0,
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=["t"],
        topic_partitions=[],
    )
    answer = await client.request(request, ConsumerGroupHeartbeatResponse, group_id="assigned")
    page = (await new_page().get("/group?id=assigned")).text

    assert 0 == answer.error_code
    assert '<td>t-0</td><td>reached</td><td class="number">2</td><td>consumer</td>' in page


async def test_a_share_group_shows_partitions_and_members(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    request = ShareGroupHeartbeatRequest(
        group_id="workers",
        member_id="AAAAAAAAAAAAAAAAAAAAAQ",
        member_epoch=0,
        subscribed_topic_names=["t"],
    )
    answer = await client.request(request, ShareGroupHeartbeatResponse, group_id="workers")
    page = (await browser.get("/group?id=workers")).text

    assert 0 == answer.error_code
    assert "<dt>Type</dt><dd>share</dd>" in page
    assert f'<td>t-0</td><td class="number">{answer.member_epoch}</td>' in page
    assert "type=share" in (await browser.get("/groups")).text
    assert {"lag": None, "more": False} == (await browser.get("/group/lag.json?id=workers&type=share")).json


async def test_a_share_group_shows_who_holds_which_records(browser: Browser, client: Client) -> None:
    await client.create_topic("t", settings={"offset.mapping": "dense"})
    member = "AAAAAAAAAAAAAAAAAAAAAQ"
    joining = ShareGroupHeartbeatRequest(
        group_id="workers", member_id=member, member_epoch=0, subscribed_topic_names=["t"]
    )
    joined = await client.request(joining, ShareGroupHeartbeatResponse, group_id="workers")
    assert joined.assignment is not None
    topic_id = joined.assignment.topic_partitions[0].topic_id
    for epoch in range(2):  # the group begins at the end of the log with the first one
        partitions = [FetchPartition(partition_index=0, acknowledgement_batches=[])]
        request = ShareFetchRequest(
            group_id="workers",
            member_id=member,
            share_session_epoch=epoch,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1_000_000,
            max_records=3,
            batch_size=3,
            topics=[FetchTopic(topic_id=topic_id, partitions=partitions)],
            forgotten_topics_data=[],
        )
        await client.request(request, ShareFetchResponse, node_id=next(iter(client.brokers)))
        await client.produce("t", [Record(b"x", partition=0)] * 3)

    page = (await browser.get("/group?id=workers")).text

    assert "<h2>Records in flight</h2>" in page
    row = f"<td>0–2</td><td>3</td><td>1</td><td>{member}</td><td>korvet</td>"
    assert row in re.sub(r' class="number"|\n\s*', "", page)


async def test_a_group_has_lag_and_a_reset_with_preview(new_page: NewPage, client: Client) -> None:
    browser = new_page(write=True)
    tp = TopicPartition("t", 0)
    await client.create_topic("t")
    await client.produce("t", [Record(b"x")] * 10)
    group = 'a/b "c"'
    await client.commit(group, {tp: OffsetAndMetadata(4)})

    assert html.escape(group) in (await browser.get("/groups")).text.replace("&#34;", "&quot;")
    assert {"lag": 6, "more": False} == (await browser.get(f"/group/lag.json?id={quote(group)}")).json
    assert "<dd>6</dd>" in (await browser.get(f"/group?id={quote(group)}")).text
    preview = (await browser.get(f"/group/reset?id={quote(group)}&to=shift&value=-3")).text
    assert "-3</td>" in preview
    assert 4 == (await client.committed(group))[tp].offset
    fields = {"token": token(preview), "id": group, "to": "shift", "value": "-3"}
    assert 303 == (await browser.post("/group/reset", fields)).status
    assert 1 == (await client.committed(group))[tp].offset


async def test_a_record_is_produced(new_page: NewPage, client: Client) -> None:
    browser = new_page(write=True)
    await client.create_topic("t", partitions=2)
    form = (await browser.get("/topics/t/produce")).text
    fields = {
        "token": token(form),
        "partition": "1",
        "key": "k",
        "key_kind": "text",
        "value": "00ff",
        "value_kind": "hex",
        "headers": "a: b",
    }

    answer = await browser.post("/topics/t/produce", fields)

    assert "/topics/t/records/1/0" == answer.headers["location"]
    async for record in client.consume({TopicPartition("t", 1): 0}, until={TopicPartition("t", 1): 1}):
        assert (b"k", b"\x00\xff", (("a", b"b"),)) == (record.key, record.value, record.headers)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"value": "{", "value_kind": "json"}, "the value is not JSON"),
        ({"value": "0", "value_kind": "hex"}, "the value is not hex"),
        ({"partition": "7"}, "partition is 7; accepted: 0 to 0"),
        ({"headers": "no colon"}, "has no colon"),
        ({"value": "x", "value_kind": "null"}, "is null and has text"),
    ],
    ids=["json", "hex", "partition", "header", "null"],
)
async def test_invalid_records_are_refused_in_one_line(
    new_page: NewPage, client: Client, fields: dict[str, str], message: str
) -> None:
    browser = new_page(write=True)
    await client.create_topic("t")
    form = (await browser.get("/topics/t/produce")).text

    answer = await browser.post("/topics/t/produce", {"token": token(form), "key_kind": "null", **fields})

    assert 400 == answer.status
    assert message in answer.text


async def test_the_live_view_sends_new_records(
    browser: Browser, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.web.pages.live.STREAM_LIMIT_S", 1.0)
    await client.create_topic("t")
    answers = []

    async def watch() -> None:
        answers.append(await browser.get("/topics/t/events"))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            while not answers:
                await client.produce("t", [Record(EVIL.encode())])
                await trio.sleep(0.05)

    assert "event: records" in answers[0].text
    assert '"value": "<script>' in answers[0].text


@pytest.mark.parametrize(
    "path", ["/brokers", "/brokers/1", "/access", "/groups", "/transactions", "/static/page.css"]
)
async def test_other_pages_answer(browser: Browser, path: str) -> None:
    assert 200 == (await browser.get(path)).status


async def test_brokers_show_what_the_metrics_say(new_page: NewPage) -> None:
    recorder = Recorder(10)
    async with metrics_page(Config(metrics_listener="127.0.0.1:0"), Gatherer(recorder)) as port:
        browser = new_page(metrics=f"http://127.0.0.1:{port}/metrics")
        shown = await browser.get("/brokers")
        again = json.loads((await browser.get("/brokers/figures.json")).text)

    assert "resident memory" in shown.text
    assert ["processes", "1"] == again["sections"]["Broker"][0]
    assert "" == again["fault"]


async def test_brokers_without_metrics_have_no_panels(browser: Browser) -> None:
    assert "data-figures" not in (await browser.get("/brokers")).text
    assert 404 == (await browser.get("/brokers/figures.json")).status


async def test_brokers_say_why_the_metrics_are_missing(new_page: NewPage) -> None:
    browser = new_page(metrics="http://127.0.0.1:1/metrics")

    assert "The metrics cannot be read: " in (await browser.get("/brokers")).text


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/topics/nope",
        "/topics/nope/records",
        "/group?id=nope",
        "/brokers/7",
        "/static/nope",
        "/topics/a\0b",
    ],
)
async def test_missing_things_are_404(browser: Browser, path: str) -> None:
    assert 404 == (await browser.get(path)).status


@pytest.mark.parametrize(
    "query",
    [
        "from=x",
        "partition=9",
        "offset=-1&from=offset",
        "time=soon&from=time",
        "limit=501",
        "at=1",
        "value=xml",
    ],
)
async def test_invalid_queries_are_400(browser: Browser, client: Client, query: str) -> None:
    await client.create_topic("t")

    answer = await browser.get(f"/topics/t/records?{query}")

    assert 400 == answer.status
    assert "accepted" in answer.text


async def test_form_of_a_record_is_kept_with_the_fault_beside_its_field(
    new_page: NewPage, client: Client
) -> None:
    browser = new_page(write=True)
    await client.create_topic("t")
    form = (await browser.get("/topics/t/produce")).text
    fields = {"token": token(form), "key_kind": "text", "key": "k1", "value": "kept", "headers": "a: 1\nb"}
    answer = await browser.post("/topics/t/produce", fields)

    assert 400 == answer.status
    text = html.unescape(answer.text)
    assert '\na: 1\nb</textarea><span class="fault" role="alert">the line \'b\' has no colon' in text.replace(
        "\n<span", "<span"
    )
    assert "\nkept</textarea>" in text
    assert 'name="key" autocomplete="off" value="k1"' in text
    assert "<option selected>text</option>" in text


@pytest.mark.parametrize(
    "query, said",
    [
        ("partition=7", "partition is 7; accepted: 0 to 1."),
        ("limit=0", "limit is '0'; accepted: a number from 1 to 500."),
        ("from=time&time=soon", "time is 'soon'; accepted: a time such as"),
        ("key=runes", "key is 'runes'; accepted: auto, text"),
    ],
)
async def test_form_of_a_search_is_kept_with_the_fault(
    browser: Browser, client: Client, query: str, said: str
) -> None:
    await client.create_topic("t", partitions=2)
    answer = await browser.get(f"/topics/t/records?q=needle&{query}")

    assert 400 == answer.status
    assert f'<span class="fault" role="alert">{said}' in html.unescape(answer.text)
    assert 'value="needle"' in answer.text


async def test_missing_partition_is_named(browser: Browser, client: Client) -> None:
    await client.create_topic("t", partitions=6)
    answer = await browser.get("/topics/t/records/77/0")

    assert 404 == answer.status
    assert "There is no partition 77; t has the partitions 0 to 5." in answer.text


async def test_null_key_has_no_size_and_no_download(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce("t", [Record(b"x")])
    text = (await browser.get("/topics/t/records/0/0")).text

    assert "<dt>Key</dt><dd>null</dd>" in text
    assert "Download the value" in text
    assert "Download the key" not in text
    assert 404 == (await browser.get("/topics/t/records/0/0?download=key")).status


async def test_values_in_hexadecimal_have_a_reason(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce("t", [Record(b"ab\xff"), Record(b"a\x01"), Record(b"\0\0\0\0\x07{")])
    text = (await browser.get("/topics/t/records")).text

    assert "neither JSON nor text: byte 2 is not UTF-8" in text
    assert "neither JSON nor text: character 1 is a control character" in text
    assert "the bytes begin with 0 and 7, as with the id of a schema; there is no schema registry" in text


async def test_plots_show_rates_and_lags_of_the_last_hour(browser: Browser, client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await client.commit("billing", {TopicPartition("t", 0): OffsetAndMetadata(0)})
    await browser.get("/topics")
    site = browser.app.site
    history = site.histories.of(await site.sessions.visitor(""))
    now = 0.0
    history.clock = lambda: now
    assert "the plot begins in a minute" in (await browser.get("/topics/t")).text
    for count in (0, 60, 300):
        await client.produce("t", [Record(b"x", partition=0)] * count)
        await history.sample(client)
        now += 30
    now = 60.0

    assert ((30.0, 2.0), (0.0, 10.0)) == history.rate("t").points
    assert ((60.0, 0), (30.0, 60), (0.0, 360)) == history.lag("billing").points
    assert {0: 10.0, 1: 0.0} == history.partition_rates("t")
    text = (await browser.get("/topics/t")).text
    assert 'aria-label="Rate: now 10 records/s, at most 10 records/s in the last hour"' in text
    assert "<title>partition 0: 10 records/s</title>" in text
    assert 'aria-label="Rate of t: now 10 records/s' in (await browser.get("/topics")).text
    assert 'aria-label="Lag: now 360 records' in (await browser.get("/group?id=billing")).text
    assert 'aria-label="Lag of billing: now 360 records' in (await browser.get("/groups")).text


async def test_form_of_a_reset_is_kept_with_the_fault(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.commit("billing", {TopicPartition("t", 0): OffsetAndMetadata(0)})
    answer = await browser.get("/group/reset?id=billing&topic=t&to=time&value=soon")

    assert 400 == answer.status
    assert '<span class="fault" role="alert">value is \'soon\'; accepted: a time' in html.unescape(
        answer.text
    )
    assert 'value="soon"' in answer.text
    assert "<option selected>time</option>" in answer.text


async def test_lag_is_in_seconds_if_offsets_follow_the_clock(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.commit("billing", {TopicPartition("t", 0): OffsetAndMetadata(1 << 20)})
    await browser.get("/groups")
    site = browser.app.site
    history = site.histories.of(await site.sessions.visitor(""))
    history._bits["t"] = 10

    ends = {TopicPartition("t", 0): (1 << 20) + (5000 << 10)}
    assert 5.0 == history._lag("billing", await client.committed("billing"), ends)
    assert "s" == history.lag("billing").unit


async def test_sampling_ends_without_a_visitor_and_begins_again(
    browser: Browser, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("korvet.web.history.INTERVAL_S", 0.01)
    await client.create_topic("t")
    await browser.get("/topics")
    site = browser.app.site
    visitor = await site.sessions.visitor("")

    async def has(condition: Callable[[], bool]) -> None:
        with trio.fail_after(30):
            while not condition():  # noqa: ASYNC110  no event
                await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        site.histories.nursery = nursery
        history = site.histories.of(visitor)
        await has(lambda: len(history._samples) > 2)
        monkeypatch.setattr("korvet.web.history.SHOWN_S", -1.0)
        await has(lambda: not history.is_followed)
        monkeypatch.undo()
        site.histories.of(visitor)
        assert history.is_followed
        nursery.cancel_scope.cancel()
