"""Fixtures: a broker in this process, and its page without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from korvet.client import Client, open_client
from korvet.testing.broker import ServedBroker, serving
from korvet.web.app import application
from korvet.web.options import PageOptions
from tests.web.asgi import Browser

NewPage = Callable[..., Browser]


@pytest.fixture
async def broker() -> AsyncIterator[ServedBroker]:
    async with serving() as served:
        yield served


@pytest.fixture
async def client(broker: ServedBroker) -> AsyncIterator[Client]:
    async with open_client(broker.bootstrap_servers) as opened:
        yield opened


@pytest.fixture
async def new_page(broker: ServedBroker) -> AsyncIterator[NewPage]:
    """Returns a browser for the page with some options."""
    apps = []

    def new(**options: object) -> Browser:
        apps.append(application(PageOptions("localhost", 8080, broker.bootstrap_servers, **options)))
        return Browser(apps[-1])

    yield new
    for app in apps:
        await app.site.sessions.close()


@pytest.fixture
def browser(new_page: NewPage) -> Browser:
    return new_page()
