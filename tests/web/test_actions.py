"""Actions of a page with --web-write: forms, confirmations that name what is lost, and their execution."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from urllib.parse import urlencode

import pytest

from korvet.client import Client, OffsetAndMetadata, Record, TopicPartition
from korvet.client.administration import TOPIC, Resource, describe_settings, describe_users
from korvet.client.groups import list_groups
from korvet.protocol.errors import UnknownTopicOrPartition
from korvet.testing.broker import ServedBroker
from korvet.web.app import application
from korvet.web.options import PageOptions
from tests.web.asgi import Browser
from tests.web.conftest import NewPage
from tests.web.test_login import ADMIN, ANNA, log_in, secured

__all__ = ["secured"]


@pytest.fixture
def browser(new_page: NewPage) -> Browser:
    return new_page(write=True)


def hidden(text: str) -> dict[str, str]:
    """Return the hidden fields of a confirmation."""
    form = text[text.rindex('<form class="fields" method="post">') :]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)">', form)
    return {name: html.unescape(value) for name, value in found}


async def confirmation(browser: Browser, path: str, **fields: str) -> str:
    """Return the text of a confirmation, and assert that it is one."""
    answer = await browser.get(f"{path}?{urlencode({'preview': 'yes', **fields})}")
    assert 200 == answer.status, answer.text
    assert "Nothing has been altered yet" in answer.text
    return html.unescape(answer.text)


async def confirmed(browser: Browser, path: str, more: Mapping[str, str] | None = None, **fields: str) -> str:
    """Preview an action, execute it, and return the text of its confirmation."""
    answer = await browser.get(f"{path}?{urlencode({'preview': 'yes', **fields})}")
    assert 200 == answer.status, answer.text
    done = await browser.post(path, {**hidden(answer.text), **(more or {})})
    assert 303 == done.status, done.text
    return html.unescape(answer.text)


async def test_topic_is_created_altered_and_deleted(browser: Browser, client: Client) -> None:
    created = {"name": "orders", "partitions": "2", "settings": "retention.ms=1000\r\n"}
    await confirmation(browser, "/create-topic", **created)
    with pytest.raises(UnknownTopicOrPartition):
        await client.topic("orders")
    assert "Nothing will be lost" in await confirmed(browser, "/create-topic", **created)
    assert 2 == len((await client.topic("orders")).partitions)

    text = await confirmed(
        browser, "/topics/orders/alter", partitions="5", settings="retention.ms=77\nmax.message.bytes="
    )
    assert "retention.ms: from 1000 to 77" in text
    assert "records that retention.ms = 77 does not keep any more" in text
    assert "3 partitions are added to 2" in text
    assert "the order of records with the same key" in text
    assert 5 == len((await client.topic("orders")).partitions)
    (setting,) = await describe_settings(client, Resource(TOPIC, "orders"), ["retention.ms"])
    assert "77" == setting.value

    await client.produce("orders", [Record(b"x")] * 3)
    text = await confirmed(browser, "/topics/orders/delete")
    assert "5 partitions of topic orders" in text
    assert "3 records, " in text
    with pytest.raises(UnknownTopicOrPartition):
        await client.topic("orders")


@pytest.mark.parametrize(
    "fields, said",
    [
        ({"name": ""}, "the name is missing"),
        ({"name": "a/b"}, "INVALID_TOPIC_EXCEPTION"),
        ({"name": "orders"}, "TOPIC_ALREADY_EXISTS"),
        ({"name": "t", "partitions": "many"}, "partitions is 'many'; accepted: a number from 1"),
        ({"name": "t", "settings": "retention.ms"}, "the line 'retention.ms' has no name and ="),
        ({"name": "t", "settings": "retention.ms=soon"}, "INVALID_CONFIG"),
    ],
)
async def test_form_is_kept_with_the_fault(
    browser: Browser, client: Client, fields: dict[str, str], said: str
) -> None:
    await client.create_topic("orders")
    answer = await browser.get(f"/create-topic?{urlencode({'preview': 'yes', **fields})}")

    assert 400 == answer.status
    assert said in html.unescape(answer.text)
    for text in fields.values():
        assert text in answer.text


async def test_records_are_deleted_up_to_an_offset(browser: Browser, client: Client) -> None:
    await client.create_topic("t", partitions=2)
    await client.produce("t", [Record(b"x", partition=0)] * 10)
    tp = TopicPartition("t", 0)

    text = await confirmed(browser, "/topics/t/delete-records", partition="0", before="4")
    assert "the records of t-0 from offset 0 to 3" in text
    assert 4 == (await client.list_offsets({tp: -2}))[tp].offset
    beyond = await browser.get("/topics/t/delete-records?preview=yes&partition=0&before=11")
    assert "accepted: up to 10, the end of the log" in beyond.text
    assert "the records of t-0 from offset 4 to 9" in await confirmed(browser, "/topics/t/delete-records")
    assert 10 == (await client.list_offsets({tp: -2}))[tp].offset


async def test_group_is_deleted_with_its_offsets(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    await client.produce("t", [Record(b"x")] * 10)
    await client.commit("billing", {TopicPartition("t", 0): OffsetAndMetadata(7)})

    assert "the committed offset 7 of t-0" in await confirmed(browser, "/group/delete", id="billing")
    assert [] == await list_groups(client)


async def test_user_is_added_replaced_and_deleted(browser: Browser, client: Client) -> None:
    who = {"user": "alice", "mechanism": "SCRAM-SHA-256"}
    text = await confirmed(browser, "/access/user", {"password": "hush"}, **who)
    assert "Add user alice" in text
    assert {"alice": {1: 4096}} == await describe_users(client)
    assert "alice" in (await browser.get("/access")).text

    text = await confirmed(browser, "/access/user", {"password": "hush2"}, **who)
    assert "the password that alice has for SCRAM-SHA-256 now" in text
    text = await confirmed(browser, "/access/user/delete", **who)
    assert "new logins with it fail" in text
    assert {} == await describe_users(client)


async def test_password_is_required_and_never_in_an_address(browser: Browser) -> None:
    path = "/access/user?preview=yes&user=alice&mechanism=SCRAM-SHA-256&password=hush"
    answer = await browser.get(path)
    assert "hush" not in answer.text
    refused = await browser.post("/access/user", hidden(answer.text))

    assert 400 == refused.status
    assert "the password is missing" in refused.text


async def test_quota_is_set_and_removed(browser: Browser) -> None:
    quota = {"user": "alice", "key": "producer_byte_rate"}
    text = await confirmed(browser, "/access/quota", value="1000", **quota)
    assert "producer_byte_rate of user alice: from no quota to 1,000" in text
    assert "1,000" in (await browser.get("/access")).text
    text = await confirmed(browser, "/access/quota", value="", **quota)
    assert "the quota producer_byte_rate = 1,000 of user alice" in text
    assert "There are no quotas" in (await browser.get("/access")).text
    answer = await browser.get("/access/quota?preview=yes&user=alice&key=producer_byte_rate&value=-1")
    assert 400 == answer.status
    assert "Traceback" not in answer.text


async def test_page_that_is_read_only_refuses_actions(new_page: NewPage, client: Client) -> None:
    await client.create_topic("t")
    page = new_page()

    for path in ("/create-topic", "/topics/t/delete", "/access/acl", "/group/delete?id=g"):
        answer = await page.get(path)
        assert 403 == answer.status
        assert "read-only" in answer.text
    assert "Delete the topic" not in (await page.get("/topics/t")).text


async def test_confirmation_of_another_site_is_refused(browser: Browser, client: Client) -> None:
    await client.create_topic("t")
    fields = hidden((await browser.get("/topics/t/delete")).text)

    for origin in ("http://evil.example", "http://[::1", "null", ""):
        assert 403 == (await browser.post("/topics/t/delete", fields, origin=origin)).status
    assert 403 == (await browser.post("/topics/t/delete", {**fields, "token": "x"})).status
    await client.topic("t")


async def test_acls_are_edited_and_decide_about_actions(
    secured: ServedBroker,
) -> None:
    app = application(PageOptions("0.0.0.0", 8080, secured.bootstrap_servers, login="PLAIN", write=True))
    try:
        admin, anna = (Browser(app, host="korvet.example:8080") for _ in range(2))
        await log_in(admin, *ADMIN)
        await log_in(anna, *ANNA)
        await confirmed(admin, "/create-topic", name="orders", partitions="1")
        acl = {"principal": "User:anna", "operation": "describe", "resource": "topic", "name": "orders"}
        assert "this is the first one of this pattern" in await confirmed(admin, "/access/acl", **acl)
        assert "AUTHORIZATION_FAILED" in (await anna.get("/create-topic?preview=yes&name=t")).text
        text = (await anna.get("/topics/orders/delete")).text
        refused = await anna.post("/topics/orders/delete", hidden(text))
        assert 400 == refused.status
        assert "TOPIC_AUTHORIZATION_FAILED" in refused.text

        await confirmed(admin, "/access/acl", **{**acl, "operation": "delete"})
        text = await confirmed(admin, "/access/acl/delete", **acl)
        assert "this ACL: User:anna on host * is allowed describe on literal topic orders" in text
        await confirmed(anna, "/topics/orders/delete")
        faulty = await admin.get("/access/acl?preview=yes&principal=anna&name=orders")
        assert "principal is &#39;anna&#39;; accepted: User:NAME" in faulty.text
    finally:
        await app.site.sessions.close()
