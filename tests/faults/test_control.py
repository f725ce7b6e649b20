"""The port for faults: its requests, what it refuses, and its end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

import pytest
import trio

from korvet.faults.control import fault_port
from korvet.faults.kinds import Error
from korvet.testing import serving

JSON = {"Content-Type": "application/json"}
Answer = tuple[int, Any]


def ask(port: int, method: str, path: str, body: object = None, **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    sent = {name.replace("_", "-"): value for name, value in headers.items()} or JSON
    connection.request(method, path, body if isinstance(body, str) else json.dumps(body), sent)
    response = connection.getresponse()
    answer = json.load(response)
    connection.close()
    return response.status, answer


async def at(port: int, *arguments: Any, **headers: str) -> Answer:
    asked: Callable[[], Answer] = lambda: ask(port, *arguments, **headers)  # noqa: E731  for a thread
    return await trio.to_thread.run_sync(asked)


async def test_fault_is_added_listed_and_ended() -> None:
    async with serving() as broker, fault_port(0, broker.faults, broker.server.broker) as port:
        fault = {"fault": "error", "error": "NOT_COORDINATOR", "group": "g"}
        written = {**fault, "id": "1", "hits": 0, "active": True}

        assert (201, written) == await at(port, "POST", "/faults", fault)
        assert [Error("NOT_COORDINATOR", group="g")] == [each.fault for each in broker.faults.active()]
        assert (200, [written]) == await at(port, "GET", "/faults")
        assert (200, written) == await at(port, "GET", "/faults/1")
        assert (200, []) == await at(port, "DELETE", "/faults/1")
        assert [] == broker.faults.active()
        assert (404, {"error": "there is no fault 1"}) == await at(port, "GET", "/faults/1")


async def test_all_faults_are_ended() -> None:
    async with serving() as broker, fault_port(0, broker.faults, broker.server.broker) as port:
        for _ in range(2):
            await at(port, "POST", "/faults", {"fault": "freeze"})

        assert (200, []) == await at(port, "DELETE", "/faults")
        assert ([], (200, [])) == (broker.faults.active(), await at(port, "GET", "/faults"))


@pytest.mark.parametrize(
    "request_, status, message",
    [
        (("POST", "/faults", {"fault": "fly"}), 400, "there is no fault 'fly'"),
        (("POST", "/faults", "{"), 400, "the body is not JSON"),
        (("POST", "/faults", "[" * 60_000), 400, ""),
        (("POST", "/expire-member", {}), 400, "expire-member needs"),
        (
            ("POST", "/expire-member", {"group": "missing"}),
            400,
            "Group missing not found. (GROUP_ID_NOT_FOUND)",
        ),
        (("GET", "/other"), 404, "GET /other is not served"),
        (("DELETE", "/faults/7"), 404, "there is no fault 7"),
    ],
    ids=["kind", "json", "depth", "arguments", "group", "path", "id"],
)
async def test_invalid_request_is_refused_with_the_reason(
    request_: tuple[Any, ...], status: int, message: str
) -> None:
    async with serving() as broker, fault_port(0, broker.faults, broker.server.broker) as port:
        answered, answer = await at(port, *request_)

    assert status == answered
    assert answer["error"].startswith(message)


async def test_requests_that_a_web_page_could_send_are_refused() -> None:
    fault = {"fault": "freeze"}
    async with serving() as broker, fault_port(0, broker.faults, broker.server.broker) as port:
        assert 415 == (await at(port, "POST", "/faults", fault, Content_Type="text/plain"))[0]
        rebound = {"Content_Type": "application/json", "Host": "attacker.example:80"}
        assert 400 == (await at(port, "POST", "/faults", fault, **rebound))[0]
        assert [] == broker.faults.active()


async def test_port_closes_with_its_block() -> None:
    async with serving() as broker:
        async with fault_port(0, broker.faults, broker.server.broker) as port:
            with pytest.raises(OSError, match="in use"):
                async with fault_port(port, broker.faults, broker.server.broker):
                    pass
        with pytest.raises(ConnectionRefusedError):
            ask(port, "GET", "/faults")
