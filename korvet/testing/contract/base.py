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
        raise NotImplementedError("whoever inherits the contract says which store is tested")

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
    """Ask until the answer is the one expected: for what a broker learns from another by a signal only.

    A backend with one broker answers rightly at once, and nothing is waited for.
    """
    with trio.move_on_after(5):
        while await ask() != expected:  # noqa: ASYNC110  what is waited for is another process's doing
            await trio.sleep(0.01)

    assert await ask() == expected
