from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.broker.producer_ids import BLOCK
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.storage.interface import DocumentConflict
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim, ask, away, create, install, new_broker
from tests.handlers.transactional import TransactionalProducer, coordinating, fetched, settled


async def init(
    broker: Broker,
    transactional_id: str | None = None,
    producer: tuple[int, int] = (-1, -1),
    *,
    timeout_ms: int = 60_000,
    version: int = 5,
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    response = await ask(broker, 22, version, request)
    assert isinstance(response, InitProducerIdResponse)
    return response


async def test_producer_ids_are_unique(broker: Broker) -> None:
    answers = [await init(broker) for _ in range(2 * BLOCK + 1)]

    assert {(ErrorCode.NONE, 0)} == {(each.error_code, each.producer_epoch) for each in answers}
    assert 2 * BLOCK + 1 == len({each.producer_id for each in answers})


async def test_producer_ids_of_brokers_on_one_store_are_unique() -> None:
    storage = MemoryStorage()
    brokers = [await new_broker(storage) for _ in range(3)]

    ids = [(await init(broker)).producer_id for _ in range(BLOCK + 1) for broker in brokers]

    assert len(ids) == len(set(ids))


async def test_producer_ids_of_an_emptied_store_differ() -> None:
    first = await init(await new_broker(MemoryStorage()))
    second = await init(await new_broker(MemoryStorage()))

    assert abs(first.producer_id - second.producer_id) > BLOCK


async def test_producer_that_initializes_again_gets_a_new_id(broker: Broker) -> None:
    first = await init(broker)

    again = await init(broker, producer=(first.producer_id, 0))

    assert (ErrorCode.NONE, 0) == (again.error_code, again.producer_epoch)
    assert first.producer_id != again.producer_id


@pytest.mark.parametrize("producer", [(5, -1), (-1, 0)])
async def test_producer_id_and_epoch_are_required_together(broker: Broker, producer: tuple[int, int]) -> None:
    answer = await init(broker, producer=producer)

    assert (ErrorCode.INVALID_REQUEST, -1, -1) == (
        answer.error_code,
        answer.producer_id,
        answer.producer_epoch,
    )


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    install(broker, Shim(broker._storage, load=away))

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await init(broker)).error_code


async def test_repeated_conflicts_are_coordinator_not_available(broker: Broker) -> None:
    async def lose(*_: object, **__: object) -> int:
        raise DocumentConflict

    install(broker, Shim(broker._storage, save=lose))

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (await init(broker)).error_code


# --- Transactional ids ---------------------------------------------------------------------------------------


async def test_transactional_id_keeps_its_producer_id_and_raises_the_epoch(broker: Broker) -> None:
    first = await init(broker, "x", version=0)
    second = await init(broker, "x")
    other = await init(broker, "y")

    assert (ErrorCode.NONE, 0) == (first.error_code, first.producer_epoch)
    assert (first.producer_id, 1) == (second.producer_id, second.producer_epoch)
    assert first.producer_id != other.producer_id


async def test_producer_continues_with_its_epoch(broker: Broker) -> None:
    first = await init(broker, "x")
    second = await init(broker, "x", (first.producer_id, 0))
    repeated = await init(broker, "x", (first.producer_id, 0))

    assert [(first.producer_id, 1)] * 2 == [
        (each.producer_id, each.producer_epoch) for each in (second, repeated)
    ]


@pytest.mark.parametrize(
    "version, error", [(3, ErrorCode.INVALID_PRODUCER_EPOCH), (4, ErrorCode.PRODUCER_FENCED)]
)
async def test_fenced_producer_gets_the_error_that_its_version_knows(
    broker: Broker, version: int, error: ErrorCode
) -> None:
    first = await init(broker, "x")
    await init(broker, "x")
    await init(broker, "x")

    fenced = await init(broker, "x", (first.producer_id, 0), version=version)

    assert (error, -1, -1) == (fenced.error_code, fenced.producer_id, fenced.producer_epoch)


@pytest.mark.parametrize(
    "timeout_ms, error",
    [
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (900_001, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (900_000, ErrorCode.NONE),
    ],
)
async def test_timeouts_are_limited(broker: Broker, timeout_ms: int, error: ErrorCode) -> None:
    assert error == (await init(broker, "x", timeout_ms=timeout_ms)).error_code


@pytest.mark.parametrize("transactional_id", ["", "x" * 32_768], ids=["empty", "too long"])
async def test_invalid_transactional_ids_are_refused(broker: Broker, transactional_id: str) -> None:
    answer = await init(broker, transactional_id)

    assert (ErrorCode.INVALID_REQUEST, -1) == (answer.error_code, answer.producer_id)


async def test_initialization_aborts_an_open_transaction(broker: Broker) -> None:
    await create(broker)
    async with coordinating(broker):
        producer = TransactionalProducer(broker)
        await producer.init()
        await producer.send(b"a")

        first = await init(broker, "x")
        state = await settled(broker)
        second = await init(broker, "x")

    assert (ErrorCode.CONCURRENT_TRANSACTIONS, "CompleteAbort") == (first.error_code, state)
    assert (ErrorCode.NONE, producer.producer_id, 2) == (
        second.error_code,
        second.producer_id,
        second.producer_epoch,
    )
    assert 2 == (await fetched(broker)).last_stable_offset


async def test_unreachable_storage_is_a_retriable_error_of_the_coordinator(broker: Broker) -> None:
    broker.transactions.storage = Shim(broker._storage, load=away)

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (await init(broker, "x")).error_code


@pytest.mark.parametrize(
    "transactional_id, error",
    [("x", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), ("", ErrorCode.INVALID_REQUEST)],
    ids=["some", "empty"],
)
async def test_transactional_ids_are_refused_without_transactions(
    plain: Broker, transactional_id: str, error: ErrorCode
) -> None:
    answer = await init(plain, transactional_id)

    assert (error, -1) == (answer.error_code, answer.producer_id)
