"""Logins, requests from other sites, and the addresses that a page may use."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from korvet.client import Record, open_client
from korvet.client.security import Sasl, Security
from korvet.testing.broker import ServedBroker, serving
from korvet.web import sessions
from korvet.web.app import application
from korvet.web.options import PageOptions, PageRefused, parse_listen
from tests.web.asgi import Browser
from tests.web.conftest import NewPage
from tests.web.test_pages import token

ADMIN, ANNA = ("admin", "admin-secret"), ("anna", "anna-secret")


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[ServedBroker]:
    users = tmp_path / "users"
    users.write_text("".join(f"{name} = {password}\n" for name, password in (ADMIN, ANNA)))
    users.chmod(0o600)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.plain.users.file": str(users),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
    }
    async with serving(settings=settings) as served:
        yield served


@pytest.fixture
async def browser(secured: ServedBroker, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Browser]:
    monkeypatch.setattr(sessions, "FAILURE_PAUSE_S", 0.0)
    options = PageOptions("0.0.0.0", 8080, secured.bootstrap_servers, login="PLAIN", write=True)
    app = application(options)
    yield Browser(app, host="korvet.example:8080")
    await app.site.sessions.close()


async def log_in(browser: Browser, user: str, password: str, path: str = "/topics") -> int:
    form = (await browser.get(f"/login?next={path}")).text
    fields = {"token": token(form), "user": user, "password": password}
    return (await browser.post(f"/login?next={path}", fields)).status


async def test_every_page_requires_the_login(browser: Browser) -> None:
    answer = await browser.get("/topics/a?b=c")

    assert (303, "/login?next=%2Ftopics%2Fa%3Fb%3Dc") == (answer.status, answer.headers["location"])
    assert 401 == (await browser.get("/topics.json")).status
    assert 200 == (await browser.get("/static/page.css")).status


async def test_a_login_has_a_strict_cookie_without_the_password(browser: Browser) -> None:
    form = (await browser.get("/login?next=/groups")).text

    answer = await browser.post(
        "/login?next=/groups", {"token": token(form), "user": "admin", "password": ADMIN[1]}
    )

    assert (303, "/groups") == (answer.status, answer.headers["location"])
    assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
    assert "secret" not in answer.headers["set-cookie"]
    assert "Log out admin" in (await browser.get("/topics")).text


@pytest.mark.parametrize("user, password", [("anna", "wrong"), ("nobody", "x"), ("", ""), ("a\0b", "\0")])
async def test_a_wrong_login_is_refused(browser: Browser, user: str, password: str) -> None:
    assert 401 == await log_in(browser, user, password)
    assert "" == browser.cookie


async def test_a_right_login_does_not_wait_for_wrong_ones(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 wrong logins at once made a right one wait for 27 s: the pauses after failures."""
    monkeypatch.setattr(sessions, "FAILURE_PAUSE_S", 3600.0)
    tried = trio.Event()
    opened = 0
    real = sessions.Sessions._open

    async def counted(self: sessions.Sessions, sasl: Sasl | None, user: str) -> sessions.Session:
        nonlocal opened
        opened += 1
        if opened == 100:
            tried.set()
        return await real(self, sasl, user)

    monkeypatch.setattr(sessions.Sessions, "_open", counted)
    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(log_in, browser, "anna", "wrong")
        with trio.fail_after(120):
            assert 303 == await log_in(browser, *ADMIN)
            await tried.wait()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"]
)
async def test_a_login_never_leads_to_another_site(browser: Browser, path: str) -> None:
    form = (await browser.get("/login")).text

    answer = await browser.post(
        f"/login?next={path}", {"token": token(form), "user": "admin", "password": ADMIN[1]}
    )

    assert "/topics" == answer.headers["location"]


async def test_the_acls_of_the_user_apply(browser: Browser, secured: ServedBroker) -> None:
    admin = Security(sasl=Sasl("PLAIN", *ADMIN))
    async with open_client(secured.bootstrap_servers, security=admin) as client:
        await client.create_topic("private")
        await client.produce("private", [Record(b"x")])

    assert 303 == await log_in(browser, *ANNA)
    assert "private" not in (await browser.get("/topics")).text
    assert 403 == (await browser.get("/topics/private/records")).status

    assert 303 == await log_in(browser, *ADMIN)
    assert "private" in (await browser.get("/topics")).text
    assert 200 == (await browser.get("/topics/private/records")).status


async def test_figures_of_the_broker_need_describe_on_the_cluster(secured: ServedBroker) -> None:
    options = PageOptions(
        "0.0.0.0", 8080, secured.bootstrap_servers, login="PLAIN", metrics="http://127.0.0.1:1/metrics"
    )
    app = application(options)
    browser = Browser(app, host="korvet.example:8080")
    await log_in(browser, *ANNA)
    assert "The metrics cannot be read: " not in (await browser.get("/brokers")).text
    assert 403 == (await browser.get("/brokers/figures.json")).status
    await log_in(browser, *ADMIN)
    assert "The metrics cannot be read: " in (await browser.get("/brokers")).text
    assert 200 == (await browser.get("/brokers/figures.json")).status
    await app.site.sessions.close()


async def test_a_logout_ends_the_session(browser: Browser) -> None:
    await log_in(browser, *ADMIN)
    cookie = browser.cookie
    text = (await browser.get("/topics")).text

    assert 303 == (await browser.post("/logout", {"token": token(text)})).status
    browser.cookie = cookie
    assert 303 == (await browser.get("/topics")).status


async def test_a_session_ends_after_a_time_without_requests(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    await log_in(browser, *ADMIN)
    assert 200 == (await browser.get("/topics")).status
    monkeypatch.setattr(sessions, "IDLE_S", -1.0)

    assert 303 == (await browser.get("/topics")).status


async def test_the_number_of_sessions_is_bounded(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    cookies = []
    for _ in range(3):
        browser.cookie = ""
        await log_in(browser, *ADMIN)
        cookies.append(browser.cookie)

    statuses = []
    for browser.cookie in cookies:
        statuses.append((await browser.get("/topics")).status)
    assert [303, 200, 200] == statuses


async def test_a_next_page_that_is_no_url_is_ignored(browser: Browser) -> None:
    form = await browser.get("/login?next=//[::1")

    assert (200, False) == (form.status, "[::1" in form.text)


# --- Writes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://[::1"},
        {"origin": ""},
        {"origin": "http://localhost:8081"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
async def test_forms_from_other_sites_are_refused(
    new_page: NewPage, broker: ServedBroker, headers: dict[str, str]
) -> None:
    topic = await broker.create_topic()
    browser = new_page(write=True)
    form = (await browser.get(f"/topics/{topic}/produce")).text

    answer = await browser.post(f"/topics/{topic}/produce", {"token": token(form), "value": "x"}, **headers)

    assert 403 == answer.status
    assert [] == await broker.records(topic)


@pytest.mark.parametrize("value", ["", "0" * 64, "é"])
async def test_forms_without_the_token_are_refused(
    new_page: NewPage, broker: ServedBroker, value: str
) -> None:
    topic = await broker.create_topic()

    answer = await new_page(write=True).post(f"/topics/{topic}/produce", {"token": value, "value": "x"})

    assert 403 == answer.status
    assert [] == await broker.records(topic)


async def test_a_page_without_permission_to_write_does_not_write(
    new_page: NewPage, broker: ServedBroker
) -> None:
    topic = await broker.create_topic()
    browser = new_page()
    form = (await new_page(write=True).get(f"/topics/{topic}/produce")).text

    assert not re.search('method="post', (await browser.get(f"/topics/{topic}/produce")).text)
    assert (
        403 == (await browser.post(f"/topics/{topic}/produce", {"token": token(form), "value": "x"})).status
    )
    assert 403 == (await browser.post("/group/reset", {"token": token(form), "id": "g"})).status
    assert [] == await broker.records(topic)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "PATCH"])
async def test_pages_that_only_show_take_no_other_method(new_page: NewPage, method: str) -> None:
    assert 405 == (await new_page(write=True).send(method, "/topics", {})).status


async def test_other_names_of_the_machine_are_refused(new_page: NewPage) -> None:
    browser = new_page()

    for host in ("evil.example", "evil.example:8080", "[", ""):
        browser.host = host
        assert 421 == (await browser.get("/topics")).status
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080"):
        browser.host = host
        assert 200 == (await browser.get("/topics")).status


@pytest.mark.parametrize("path", ["/topics", "/nothing", "/static/page.js", "/topics.json", "/"])
async def test_every_response_has_a_strict_content_security_policy(new_page: NewPage, path: str) -> None:
    headers = (await new_page().get(path)).headers

    assert "default-src 'self'; " in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "nosniff" == headers["x-content-type-options"]


# --- Addresses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "korvet.example", ""])
def test_a_page_that_others_can_reach_requires_a_login(host: str) -> None:
    with pytest.raises(PageRefused, match="would have no login"):
        PageOptions(host, 8080).refuse_unsafe()
    PageOptions(host, 8080, login="PLAIN").refuse_unsafe()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1"])
def test_a_page_on_loopback_requires_no_login(host: str) -> None:
    PageOptions(host, 8080).refuse_unsafe()


@pytest.mark.parametrize(
    "text, host, port",
    [("localhost:0", "localhost", 0), (":8080", "0.0.0.0", 8080), ("[::1]:80", "::1", 80), ("h:1", "h", 1)],
)
def test_addresses_are_parsed(text: str, host: str, port: int) -> None:
    assert (host, port) == parse_listen(text)


@pytest.mark.parametrize("text", ["", "8080", "h:x", "h:99999", "::1:80", "h:-1"])
def test_invalid_addresses_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="accepted"):
        parse_listen(text)
