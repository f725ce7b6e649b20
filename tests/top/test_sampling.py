"""Samples of `korvet top`: what is read again in each of them."""

from __future__ import annotations

import pytest

from korvet.client import Record, open_client
from korvet.client.model import OffsetAndMetadata, TopicPartition
from korvet.testing.broker import serving
from korvet.top import sampling
from korvet.top.sampling import Sampler


async def test_starts_are_read_again_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_STARTS", 2)
    async with serving() as broker, open_client(broker.bootstrap_servers) as client:
        await broker.create_topic("orders", partitions=3)
        tps = [TopicPartition("orders", number) for number in range(3)]
        await client.produce("orders", [Record(b"x", partition=tp.partition) for tp in tps for _ in range(5)])
        sampler = Sampler(client)
        found = [await starts(sampler)]
        await client.delete_records(dict.fromkeys(tps, 4))
        found += [await starts(sampler), await starts(sampler)]

    assert [[0, 0, 0], [4, 4, 0], [4, 4, 4]] == found


async def starts(sampler: Sampler) -> list[int]:
    return [each.start for each in (await sampler.take()).topics["orders"].partitions.values()]


async def test_groups_behind_many_lags_have_only_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MOST_LAGS", 2)
    async with serving() as broker, open_client(broker.bootstrap_servers) as client:
        await broker.create_topic("orders", partitions=2)
        for group in ("a", "b", "c"):
            offsets = {TopicPartition("orders", number): OffsetAndMetadata(0) for number in range(2)}
            await client.commit(group, offsets)
        sample = await Sampler(client).take()

    assert [2, None, None] == [
        None if each.lags is None else len(each.lags) for _, each in sorted(sample.groups.items())
    ]
    assert ("members and lag of the first 1 of 3 groups only",) == sample.notes
