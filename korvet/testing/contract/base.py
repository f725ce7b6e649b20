"""The fixtures and helpers of all parts of the contract suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio

from korvet.storage.interface import Storage, Topic, TopicPartition
from korvet.testing.environment import Environment


class Contract:
    """Fixtures: a store (`environment`), open (`storage`), with a topic of three partitions (`topic`, `tp`)."""

    @pytest.fixture
    def environment(self) -> Environment:
        raise NotImplementedError("override the environment fixture to define the store under test")

    @pytest.fixture
    async def storage(self, environment: Environment) -> AsyncIterator[Storage]:
        async with environment.open() as storage:
            yield storage

    @pytest.fixture
    async def topic(self, storage: Storage, environment: Environment) -> Topic:
        return await storage.create_topic("orders", 3, environment.settings)

    @pytest.fixture
    def tp(self, topic: Topic) -> TopicPartition:
        return TopicPartition(topic.name, 0)


async def eventually(ask: Callable[[], Awaitable[object]], expected: object) -> None:
    """Call `ask` until it returns the expected value, for changes of which another broker is only notified."""
    with trio.move_on_after(5):
        while await ask() != expected:  # noqa: ASYNC110  another process causes the change
            await trio.sleep(0.01)

    assert expected == await ask()
