"""Watches: they never miss growth, whichever broker or program causes it. These tests do not measure idle load."""

from __future__ import annotations

import trio
from trio.testing import wait_all_tasks_blocked

from korvet.storage.interface import Storage, Topic, TopicPartition, Watch
from korvet.testing.contract.base import Contract
from korvet.testing.environment import Environment
from korvet.testing.records import append, numbered, records_from

# Much longer than a wake-up, much shorter than the time limits of tests that hang.
SOON_S = 5


class WatchContract(Contract):
    async def test_append_wakes_a_watcher(self, storage: Storage, tp: TopicPartition) -> None:
        with storage.watch([tp]) as watch:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(append_later, storage, tp)
                with trio.fail_after(SOON_S):
                    await until_written(storage, tp, watch)

        assert 1 == len(await records_from(storage, tp))

    async def test_growth_between_entering_and_waiting_is_not_missed(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        with storage.watch([tp]) as watch:
            await append(storage, tp, numbered(1))
            with trio.fail_after(SOON_S):
                await watch.wait()

    async def test_growth_between_two_waits_is_not_missed(self, storage: Storage, tp: TopicPartition) -> None:
        with storage.watch([tp]) as watch:
            for _ in range(5):
                await append(storage, tp, numbered(1))
                with trio.fail_after(SOON_S):
                    await watch.wait()

    async def test_growth_while_a_wait_was_cancelled_is_not_missed(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        with storage.watch([tp]) as watch:
            with trio.CancelScope() as scope:
                scope.cancel()
                await watch.wait()
            await append(storage, tp, numbered(1))
            with trio.fail_after(SOON_S):
                await watch.wait()

    async def test_append_to_any_watched_partition_wakes_the_watcher(
        self, storage: Storage, topic: Topic
    ) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        for tp in tps:
            with storage.watch(tps) as watch:
                await append(storage, tp, numbered(1))
                with trio.fail_after(SOON_S):
                    await watch.wait()

    async def test_each_growth_is_reported_once(self, storage: Storage, topic: Topic) -> None:
        first, second, third = (TopicPartition(topic.name, number) for number in range(3))
        with storage.watch([first, second, third]) as watch, trio.fail_after(SOON_S):
            await append(storage, first, numbered(1))
            await append(storage, third, numbered(1))
            known = set(watch.grown())
            both = set(await watch.wait())
            nothing = set(watch.grown())
            await append(storage, second, numbered(1))
            one = set(await watch.wait())

        assert ({first, third}, {first, third}, set(), {second}) == (known, both, nothing, one)

    async def test_growth_that_was_taken_is_not_reported_again(self, storage: Storage, topic: Topic) -> None:
        first, second = (TopicPartition(topic.name, number) for number in range(2))
        with storage.watch([first, second]) as watch, trio.fail_after(SOON_S):
            nothing = set(watch.take())
            await append(storage, first, numbered(1))
            taken, again = set(watch.take()), set(watch.grown())
            await append(storage, second, numbered(1))
            one = set(await watch.wait())

        assert (set(), {first}, set(), {second}) == (nothing, taken, again, one)

    async def test_growth_is_noted_without_a_wait(self, storage: Storage, tp: TopicPartition) -> None:
        with storage.watch([tp]) as watch, trio.fail_after(SOON_S):
            watch.expect()
            await append(storage, tp, numbered(1))
            while tp not in watch.grown():  # noqa: ASYNC110  a watch has no event
                await trio.sleep(0.001)

    async def test_append_wakes_all_watchers(self, storage: Storage, tp: TopicPartition) -> None:
        woken = []

        async def wait_for_growth(*, task_status: trio.TaskStatus[None]) -> None:
            with storage.watch([tp]) as watch:
                task_status.started()
                await until_written(storage, tp, watch)
                woken.append(True)

        with trio.fail_after(SOON_S):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    await nursery.start(wait_for_growth)
                await append(storage, tp, numbered(1))

        assert 50 == len(woken)

    async def test_closed_watch_does_not_affect_other_watches(
        self, storage: Storage, tp: TopicPartition
    ) -> None:
        with storage.watch([tp]) as watch:
            with storage.watch([tp, tp]):
                pass
            await append(storage, tp, numbered(1))
            with trio.fail_after(SOON_S):
                await watch.wait()

    async def test_deletion_wakes_a_watcher(self, storage: Storage, topic: Topic, tp: TopicPartition) -> None:
        with storage.watch([tp]) as watch:
            await storage.delete_topic(topic)
            with trio.fail_after(SOON_S):
                await watch.wait()

    async def test_append_by_another_broker_wakes_a_watcher(
        self, storage: Storage, environment: Environment, tp: TopicPartition
    ) -> None:
        async with environment.open() as other:
            for _ in range(3):
                before = len(await records_from(storage, tp))
                with storage.watch([tp]) as watch, trio.fail_after(SOON_S):
                    await append(other, tp, numbered(1))
                    while len(await records_from(storage, tp)) == before:
                        await watch.wait()

    async def test_watch_that_is_held_notices_growth_between_waits(
        self, storage: Storage, environment: Environment, topic: Topic
    ) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        async with environment.open() as other:
            with storage.watch(tps) as watch, trio.fail_after(SOON_S):
                for tp in [*tps, *tps]:
                    for each in tps:
                        await records_from(storage, each)
                    with trio.move_on_after(0.05):  # no longer than reports of the reads before
                        while True:
                            await watch.wait()
                    await append(other, tp, numbered(1))
                    while tp not in watch.grown():  # noqa: ASYNC110  a watch has no event
                        await trio.sleep(0.001)

    async def test_deletion_by_another_broker_wakes_a_watcher(
        self, storage: Storage, environment: Environment, topic: Topic, tp: TopicPartition
    ) -> None:
        async with environment.open() as other:
            await append(other, tp, numbered(1))
            with other.watch([tp]) as watch:
                await storage.delete_topic(topic)
                with trio.fail_after(SOON_S):
                    await watch.wait()

    async def test_thousand_watches_are_opened_and_closed(self, storage: Storage, topic: Topic) -> None:
        tps = [TopicPartition(topic.name, number) for number in range(3)]
        for _ in range(1000):
            with storage.watch(tps):
                pass
        with storage.watch(tps) as watch:
            await append(storage, tps[1], numbered(1))
            with trio.fail_after(SOON_S):
                await watch.wait()


async def append_later(storage: Storage, tp: TopicPartition) -> None:
    await wait_all_tasks_blocked()
    await append(storage, tp, numbered(1))


async def until_written(storage: Storage, tp: TopicPartition, watch: Watch) -> None:
    """Read and wait alternately, as a fetch does."""
    while (await storage.latest(tp)).high_watermark == 0:
        await watch.wait()
