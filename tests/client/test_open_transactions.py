"""Open transactions as `korvet top` and the web page show them: open, known to a coordinator, overdue, hanging."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import pytest
from attrs import define, evolve, field

from korvet.client import Client, open_client
from korvet.client.isolation import READ_COMMITTED
from korvet.client.model import LATEST, ListedOffset, TopicPartition
from korvet.client.open_transactions import OpenTransactions, shown
from korvet.client.transactions import ActiveProducer, OpenTransaction, Transaction, find_hanging
from korvet.testing.broker import serving
from korvet.transactions.states import TRANSACTION
from tests.handlers.transactional import TransactionalProducer

TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
MINUTE_MS = 60_000
OPEN = OpenTransaction(TP, ActiveProducer(7, 0, -1, 0, 0, 3))
KNOWN = Transaction("payer", "a:1", "Ongoing", 7, 0, MINUTE_MS, 0, (TP,))


@define
class ObservedClient:
    """A client that keeps the partitions of requests for last stable offsets."""

    client: Client
    asked: list[set[TopicPartition]] = field(factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, isolation_level: int
    ) -> Mapping[TopicPartition, ListedOffset]:
        assert READ_COMMITTED == isolation_level
        self.asked.append({*timestamps})
        return await self.client.list_offsets(timestamps, isolation_level=isolation_level)


async def ends_of(client: Client) -> Mapping[TopicPartition, int]:
    return {tp: at.offset for tp, at in (await client.list_offsets({TP: LATEST, OTHER: LATEST})).items()}


async def test_open_transaction_hangs_if_no_coordinator_has_it() -> None:
    async with serving() as broker:
        await broker.create_topic("orders", partitions=2)
        inner = broker.server.broker
        store = inner.transactions.storage
        producer = TransactionalProducer(inner, "payer")
        await producer.init()
        await producer.send(b"a", b"b", tp=TP)
        async with open_client(broker.bootstrap_servers) as client:
            ends = await ends_of(client)
            (young,) = (await OpenTransactions(client).find(ends)).transactions
            opened = OpenTransactions(client, patience_ms=0)
            (known,) = (await opened.find(ends)).transactions
            saved = await store.load(TRANSACTION, "payer")
            assert saved is not None
            await store.save(TRANSACTION, "payer", None, expected_version=saved.version)
            found = await opened.find(ends)
            (hanging,) = found.transactions

    assert ("open", "", TP, 0, producer.producer_id) == (
        young.state,
        young.transactional_id,
        young.tp,
        young.offset,
        young.producer_id,
    )
    assert ("Ongoing", "payer") == (known.state, known.transactional_id)
    assert "hanging" == hanging.state
    assert [False, True] == [each.is_stuck for each in (known, hanging)]
    assert ["orders-0"] == found.stuck


@pytest.fixture
async def ending(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """Return a client of a broker with an open transaction, which ends while its coordinator is asked for it."""
    async with serving() as broker:
        await broker.create_topic("orders", partitions=2)
        producer = TransactionalProducer(broker.server.broker, "payer")
        await producer.init()
        await producer.send(b"a", b"b", tp=TP)

        async def ends_now(_client: Client, _ids: Collection[int]) -> dict[int, Transaction]:
            await producer.finish()
            return {}

        for module in ("open_transactions", "transactions"):
            monkeypatch.setattr(f"korvet.client.{module}.known_transactions", ends_now)
        async with open_client(broker.bootstrap_servers) as client:
            yield client


async def test_transaction_that_ends_while_it_is_looked_up_does_not_hang(ending: Client) -> None:
    (found,) = (await OpenTransactions(ending, patience_ms=0).find(await ends_of(ending))).transactions

    assert ("open", False) == (found.state, found.is_stuck)


async def test_transaction_that_ends_during_find_hanging_does_not_hang(ending: Client) -> None:
    assert [] == await find_hanging(ending, [TP, OTHER], longer_than_ms=-1, now_ms=0)


async def test_last_stable_offset_is_read_where_a_transaction_may_be_open() -> None:
    async with serving() as broker:
        await broker.create_topic("orders", partitions=2)
        producer = TransactionalProducer(broker.server.broker, "payer")
        await producer.init()
        async with open_client(broker.bootstrap_servers) as client:
            observed = ObservedClient(client)
            opened = OpenTransactions(observed)  # type: ignore[arg-type]
            counts = []
            for step in (None, producer.send(b"a", tp=TP), None, producer.finish(), None):
                if step is not None:
                    await step
                counts.append(len((await opened.find(await ends_of(client))).transactions))

    assert [0, 1, 1, 0, 0] == counts
    assert [{TP, OTHER}, {TP}, {TP}, {TP}, set()] == observed.asked


@pytest.mark.parametrize(
    "known, now_ms, state",
    [
        (KNOWN, 2 * MINUTE_MS, "Ongoing"),
        (KNOWN, 2 * MINUTE_MS + 1, "Ongoing, overdue"),
        (evolve(KNOWN, state="PrepareCommit"), 3 * MINUTE_MS, "PrepareCommit, overdue"),
        (evolve(KNOWN, state="CompleteCommit"), 3 * MINUTE_MS, "open"),
        (None, 3 * MINUTE_MS, "open"),
    ],
)
def test_transaction_is_overdue_a_minute_after_its_timeout(
    known: Transaction | None, now_ms: int, state: str
) -> None:
    found = shown(OPEN, known, now_ms, is_hanging=False)

    assert (state, state.endswith("overdue")) == (found.state, found.is_stuck)
