"""Which quota applies to a client, and how long it makes the client wait."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from korvet.broker import quotas as module
from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.security.quotas import CLIENT_ID, IP, USER
from tests.handlers.quotas import Names, set_quotas
from tests.handlers.support import new_broker

LEVELS: list[Names] = [
    {USER: "u", CLIENT_ID: "c"},
    {USER: "u", CLIENT_ID: None},
    {USER: "u"},
    {USER: None, CLIENT_ID: "c"},
    {USER: None, CLIENT_ID: None},
    {USER: None},
    {CLIENT_ID: "c"},
    {CLIENT_ID: None},
]


def request(user: str = "u", client_id: str | None = "c", **values: Any) -> RequestContext:
    return RequestContext(1, client_id, f"User:{user}", peer="127.0.0.1:1", **values)


def produce(broker: Broker, size: int, **values: Any) -> int:
    """Charge a Produce, and return for how many ms its client is throttled."""
    context = request(request_bytes=size, **values)
    broker.quotas.produced(context, is_time_exempt=False)
    return context.throttle_ms


@pytest.mark.parametrize("first", range(len(LEVELS)))
async def test_most_specific_quota_applies(first: int, autojump_clock: MockClock) -> None:
    broker = await new_broker()
    for number, names in enumerate(LEVELS[first:], first + 1):
        await set_quotas(broker, names, producer_byte_rate=number * 1000)

    assert 1000 == produce(broker, (first + 1) * 11_000)


@pytest.mark.parametrize(
    "names, other, is_shared",
    [
        ({USER: "u"}, ("u", "d"), True),
        ({USER: None}, ("v", "c"), False),
        ({USER: None}, ("u", "d"), True),
        ({CLIENT_ID: "c"}, ("v", "c"), True),
        ({CLIENT_ID: None}, ("u", "d"), False),
        ({USER: "u", CLIENT_ID: None}, ("u", "d"), False),
        ({USER: None, CLIENT_ID: None}, ("v", "c"), False),
    ],
)
async def test_clients_share_the_quota_of_an_entity_and_have_own_ones_by_a_default(
    names: Names, other: tuple[str, str], is_shared: bool, autojump_clock: MockClock
) -> None:
    broker = await new_broker()
    await set_quotas(broker, names, producer_byte_rate=1000)
    produce(broker, 10_000)

    assert (1000 if is_shared else 0) == produce(broker, 1000, user=other[0], client_id=other[1])


@pytest.mark.parametrize("client_id", [None, "", "d"])
async def test_other_clients_are_not_limited(client_id: str | None) -> None:
    broker = await new_broker()
    await set_quotas(broker, {CLIENT_ID: "c"}, producer_byte_rate=1000)
    await set_quotas(broker, {USER: "v"}, producer_byte_rate=1000)
    await set_quotas(broker, {USER: "u"}, consumer_byte_rate=1000)

    assert 0 == produce(broker, 10**9, client_id=client_id)


async def test_client_without_an_id_has_the_quota_of_its_user() -> None:
    broker = await new_broker()
    await set_quotas(broker, {USER: None, CLIENT_ID: None}, producer_byte_rate=1)
    await set_quotas(broker, {USER: None}, producer_byte_rate=1000)

    assert 1000 == produce(broker, 11_000, client_id=None)


@pytest.mark.parametrize("samples, seconds", [(2, 30), (11, 180)])
async def test_rate_of_an_eager_client_is_its_quota(
    samples: int, seconds: int, autojump_clock: MockClock
) -> None:
    """With eleven samples, as by default, Kafka's rate allows bursts of ten seconds' bytes, so it needs more time."""
    broker = await new_broker(quota_window_num=samples)
    await set_quotas(broker, {USER: "u"}, producer_byte_rate=100_000)
    began, total = trio.current_time() + 20, 0
    while (now := trio.current_time()) < began + seconds:
        total += 20_000 if now >= began else 0
        await trio.sleep(0.001 + produce(broker, 20_000) / 1000)

    assert 100_000 == pytest.approx(total / seconds, rel=0.05)


async def test_quota_that_is_changed_or_removed_takes_effect_at_once(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await set_quotas(broker, {USER: "u"}, producer_byte_rate=1000)
    first = produce(broker, 20_000)
    await set_quotas(broker, {USER: "u"}, producer_byte_rate=2000)
    second = produce(broker, 2000)
    is_enforced = broker.quotas.is_enforced
    await set_quotas(broker, {USER: "u"}, producer_byte_rate=None)

    assert (10_000, 1000, 0) == (first, second, produce(broker, 10**9))
    assert (True, False) == (is_enforced, broker.quotas.is_enforced)


async def test_number_of_meters_is_limited(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_METERS", 100)
    broker = await new_broker()
    await set_quotas(broker, {CLIENT_ID: None}, producer_byte_rate=1000)
    meters = broker.quotas._keys["producer_byte_rate"]._meters
    for number in range(1000):
        produce(broker, 1, client_id=f"c{number}")
        produce(broker, 1, client_id="kept")
    at_once = len(meters)
    is_kept = ("", "kept") in meters
    await trio.sleep(11)
    produce(broker, 1, client_id="new")

    assert (100, True) == (at_once, is_kept)
    assert [("", "new")] == list(meters)


async def test_number_of_remembered_clients_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_CLIENTS", 10)
    broker = await new_broker()
    await set_quotas(broker, {USER: None}, producer_byte_rate=1000)
    for number in range(25):
        produce(broker, 1, client_id=f"c{number}")

    assert 5 == len(broker.quotas._keys["producer_byte_rate"]._found)
    assert 10_000 == produce(broker, 20_000 - 25, client_id="c0")


async def test_quota_of_an_address_throttles_no_request() -> None:
    broker = await new_broker()
    await set_quotas(broker, {IP: None}, connection_creation_rate=1)

    assert not broker.quotas.is_enforced


async def test_time_in_which_a_request_waits_is_not_charged(autojump_clock: MockClock) -> None:
    broker = await new_broker()
    await set_quotas(broker, {USER: "u"}, request_percentage=1e-9)
    context = request()
    broker.quotas.exempt(context)
    exempt_ms = broker.quotas.settle(context)
    throttled = request()
    await trio.sleep(100)
    throttled_ms = broker.quotas.settle(throttled)
    spent_s = broker.quotas._times.take() if broker.quotas._times else 0.0

    assert (0, 1000) == (exempt_ms, throttled_ms)
    assert spent_s < 1
