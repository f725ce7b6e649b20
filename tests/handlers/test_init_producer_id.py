from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.broker.producer_ids import BLOCK
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from korvet.storage.interface import DocumentConflict
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import Shim, ask, away, install, new_broker


async def init(
    broker: Broker, transactional_id: str | None = None, producer: tuple[int, int] = (-1, -1)
) -> InitProducerIdResponse:
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=60_000,
        producer_id=producer[0],
        producer_epoch=producer[1],
    )
    response = await ask(broker, 22, 5, request)
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


@pytest.mark.parametrize(
    "transactional_id, error",
    [("x", ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), ("", ErrorCode.INVALID_REQUEST)],
    ids=["some", "empty"],
)
async def test_transactional_ids_are_refused(broker: Broker, transactional_id: str, error: ErrorCode) -> None:
    answer = await init(broker, transactional_id)

    assert (error, -1) == (answer.error_code, answer.producer_id)


async def test_unreachable_storage_is_a_retriable_error(broker: Broker) -> None:
    install(broker, Shim(broker._storage, load=away))

    assert ErrorCode.KAFKA_STORAGE_ERROR == (await init(broker)).error_code


async def test_repeated_conflicts_are_coordinator_not_available(broker: Broker) -> None:
    async def lose(*_: object, **__: object) -> int:
        raise DocumentConflict

    install(broker, Shim(broker._storage, save=lose))

    assert ErrorCode.COORDINATOR_NOT_AVAILABLE == (await init(broker)).error_code
