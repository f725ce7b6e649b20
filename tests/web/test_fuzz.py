"""No path, query, header or body brings an error of the server."""

# ruff: noqa: SIM905  a list of words is easier to read as one text

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from korvet.client import OffsetAndMetadata, Record, TopicPartition, open_client
from korvet.testing.broker import serving
from korvet.web.app import application
from korvet.web.options import PageOptions
from tests.web.asgi import FORM, HOST, Browser

PATHS = (
    "/topics /topics.json /topics/t /topics/t/topic.json /topics/t/records /topics/t/records/0/0"
    " /topics/t/download /topics/t/live /topics/t/produce /groups /group /group/lag.json /group/reset"
    " /brokers /brokers/1 /access /archive /login /logout /static/page.css"
).split()
NUMBERS = st.integers(-(2**70), 2**70).map(str)
WORDS = st.sampled_from(
    (
        "newest start time offset shift earliest latest text json hex auto null schema up down name size"
        " yes g t 0 1 1:0 0:5,1:3 2026-01-01 9999-12-31T23:59 0001-01-01T00:00+23:59 reset value"
    ).split()
)
TEXTS = st.one_of(
    WORDS, NUMBERS, st.text(max_size=30), st.text(min_size=1, max_size=5).map(lambda text: 1100 * text)
)
NAMES = st.sampled_from(
    (
        "q sort order internal page from partition offset time limit key value at download id topic to"
        " value state done next token user password key_kind value_kind headers"
    ).split()
)
FIELDS = st.lists(st.tuples(NAMES | st.text(max_size=5), TEXTS), max_size=6)


def encoded(fields: list[tuple[str, str]]) -> str:
    return urlencode(fields, errors="replace")


@pytest.fixture(scope="module")
def run() -> Callable[[Callable[[Browser], Awaitable[None]]], None]:
    """Runs a function with a browser on a page that may write, whose token is known."""

    def run(visit: Callable[[Browser], Awaitable[None]]) -> None:
        async def main() -> None:
            async with serving() as broker, open_client(broker.bootstrap_servers) as client:
                await client.create_topic("t", partitions=2)
                await client.produce("t", [Record(b"x", key=b"k", headers=(("h", None),))])
                await client.commit("g", {TopicPartition("t", 0): OffsetAndMetadata(0)})
                app = application(PageOptions("localhost", 8080, broker.bootstrap_servers, write=True))
                await visit(Browser(app))
                await app.site.sessions.close()

        trio.run(main)

    return run


PATH = st.one_of(
    st.sampled_from(PATHS),
    st.text(max_size=40).map(lambda text: "/" + text),
    st.tuples(st.sampled_from(PATHS), st.text(max_size=8)).map("/".join),
    st.tuples(NUMBERS, NUMBERS).map(lambda pair: f"/topics/t/records/{pair[0]}/{pair[1]}"),
    NUMBERS.map(lambda number: f"/brokers/{number}"),
    st.text(min_size=1, max_size=4).map(lambda text: 90 * text).map(lambda name: f"/topics/{name}/records"),
)
QUERY = FIELDS.map(encoded) | st.text(st.characters(codec="ascii", exclude_characters="?#"), max_size=60)
BODY = FIELDS.map(lambda fields: encoded(fields).encode()) | st.binary(max_size=100)
GET: st.SearchStrategy[Any] = st.tuples(st.just("GET"), PATH, QUERY, st.just({}), st.just(b""))
OTHER: st.SearchStrategy[Any] = st.tuples(
    st.sampled_from(["POST", "PUT", "HEAD", "OPTIONS", "DELETE", "X"]),
    PATH,
    QUERY,
    st.fixed_dictionaries(
        {},
        optional={
            "content-type": st.sampled_from([FORM, "text/plain", "application/json", ""]),
            "origin": st.sampled_from([f"http://{HOST}", "null", "http://[", ""]),
            "cookie": st.text(st.characters(codec="latin-1", exclude_categories=["Cc"]), max_size=30),
        },
    ),
    BODY,
)


def test_no_request_brings_an_error_of_the_server(run: Callable[..., None]) -> None:
    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(GET | OTHER, max_size=60))
    def every(requests: list[tuple[str, str, str, dict[str, str], bytes]]) -> None:
        async def visit(browser: Browser) -> None:
            for method, path, query, headers, body in requests:
                answer = await browser.send(method, f"{path.replace('?', '')}?{query}", headers, body)
                assert answer.status < 500, (method, path, query, headers, body, answer.text)

        run(visit)

    every()


FORMS = st.tuples(st.sampled_from(["/topics/t/produce", "/group/reset"]), FIELDS)


def test_no_form_brings_an_error_of_the_server(run: Callable[..., None]) -> None:
    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(
            st.tuples(st.sampled_from(["/topics/t/produce", "/group/reset"]), FIELDS),
            min_size=120,
            max_size=120,
        )
    )
    def every(forms: list[tuple[str, list[tuple[str, str]]]]) -> None:
        async def visit(browser: Browser) -> None:
            token = browser.app.site.sessions.token("")
            headers = {"content-type": FORM, "origin": f"http://{HOST}"}
            for path, fields in forms:
                body = encoded([*fields, ("token", token)]).encode()
                answer = await browser.send("POST", path, headers, body)
                assert answer.status < 500, (path, fields, answer.text)
                assert answer.status != 403

        run(visit)

    every()


@pytest.mark.parametrize("path", ["/topics/t/produce", "/group/reset", "/login"])
def test_a_large_body_is_refused(run: Callable[..., None], path: str) -> None:
    async def visit(browser: Browser) -> None:
        headers = {"content-type": FORM, "origin": f"http://{HOST}"}
        answer = await browser.send("POST", path, headers, b"a=" + b"x" * 3_000_000)
        assert 413 == answer.status

    run(visit)
