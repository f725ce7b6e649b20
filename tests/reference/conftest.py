"""A broker for each backend, layout and mapping, and a connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack

import pytest

from korvet.storage.interface import Storage
from korvet.storage.memory import MemoryStorage
from korvet.storage.redis_streams import open_redis_storage
from tests.reference.conversation import Conversation, conversing
from tests.reference.places import MEMORY, REDIS, Place, parameters
from tests.servers import RedisServer, ServerKind, start_server

ServerOf = Callable[[ServerKind], RedisServer]


@pytest.fixture(params=parameters(MEMORY + REDIS))
def place(request: pytest.FixtureRequest) -> Place:
    """Each place in turn."""
    place: Place = request.param
    return place


@pytest.fixture(scope="session")
def server_of() -> Iterator[ServerOf]:
    """Returns the one server of a kind, emptied."""
    started: dict[ServerKind, RedisServer] = {}
    with ExitStack() as stack:

        def server_of(kind: ServerKind) -> RedisServer:
            if kind not in started:
                started[kind] = start_server(kind)
                stack.callback(started[kind].remove)
            with started[kind].client() as client:
                client.flushall()
            return started[kind]

        yield server_of


@pytest.fixture
async def broker(place: Place, server_of: ServerOf) -> AsyncIterator[Conversation]:
    """A connection to a broker on that place."""
    async with AsyncExitStack() as stack:
        storage: Storage = MemoryStorage()
        client = None
        if place.kind is not None:
            server = server_of(place.kind)
            storage = await stack.enter_async_context(open_redis_storage(server.url))
            client = stack.enter_context(server.client(decode_responses=True, encoding_errors="replace"))
        yield await stack.enter_async_context(conversing(storage, place, client))
