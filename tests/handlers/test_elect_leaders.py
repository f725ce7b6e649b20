from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from tests.handlers.support import ask, create

NOT_NEEDED, UNKNOWN = ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def elect(
    broker: Broker, *topics: tuple[str, list[int]], version: int = 2, election_type: int = 0
) -> ElectLeadersResponse:
    asked = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics]
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=asked)
    response = await ask(broker, 43, version, request)
    assert isinstance(response, ElectLeadersResponse)
    return response


def codes(response: ElectLeadersResponse) -> dict[str, list[tuple[int, int]]]:
    return {
        topic.topic: [(each.partition_id, each.error_code) for each in topic.partition_result]
        for topic in response.replica_election_results
    }


@pytest.mark.parametrize("version", range(3))
async def test_no_partition_needs_an_election(broker: Broker, version: int) -> None:
    await create(broker, partitions=2)

    response = await elect(broker, ("t", [0, 1, 2]), ("missing", [0]), version=version)

    assert ErrorCode.NONE == response.error_code
    found = {"t": [(0, NOT_NEEDED), (1, NOT_NEEDED), (2, UNKNOWN)], "missing": [(0, UNKNOWN)]}
    assert found == codes(response)


async def test_election_for_all_partitions_finds_none_that_needs_it(broker: Broker) -> None:
    await create(broker, partitions=2)

    response = await ask(broker, 43, 2, ElectLeadersRequest(topic_partitions=None))

    assert (ErrorCode.NONE, {"t": []}) == (response.error_code, codes(response))


async def test_unknown_type_is_the_error_of_each_partition(broker: Broker) -> None:
    await create(broker)

    response = await elect(broker, ("t", [0]), election_type=2)

    invalid = ErrorCode.INVALID_REQUEST
    assert (invalid, {"t": [(0, invalid)]}) == (response.error_code, codes(response))
