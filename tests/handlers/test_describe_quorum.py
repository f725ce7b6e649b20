from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.describe_quorum import (
    AskedPartition,
    AskedTopic,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    PartitionData,
)
from tests.handlers.support import NOW_MS, ask, new_broker


async def describe(
    broker: Broker, version: int, name: str = "__cluster_metadata", number: int = 0
) -> DescribeQuorumResponse:
    topic = AskedTopic(topic_name=name, partitions=[AskedPartition(partition_index=number)])
    response = await ask(broker, 55, version, DescribeQuorumRequest(topics=[topic]))
    assert isinstance(response, DescribeQuorumResponse)
    return response


def partition(response: DescribeQuorumResponse) -> PartitionData:
    (topic,) = response.topics
    (found,) = topic.partitions
    return found


@pytest.mark.parametrize("version", range(3))
async def test_controller_leads_and_no_broker_is_behind(broker: Broker, version: int) -> None:
    response = await describe(broker, version)

    found = partition(response)
    assert (ErrorCode.NONE, ErrorCode.NONE, 1) == (response.error_code, found.error_code, found.leader_id)
    (voter,) = found.current_voters
    assert (1, found.high_watermark, NOW_MS) == (
        voter.replica_id,
        voter.log_end_offset,
        voter.last_caught_up_timestamp,
    )
    assert [] == found.observers


async def test_second_version_has_addresses_and_lasting_ids_of_directories(broker: Broker) -> None:
    response = await describe(broker, 2)
    again = await describe(await new_broker(broker._storage), 2)  # type: ignore[arg-type]

    (node,) = response.nodes
    assert (1, [("broker.example", 9092)]) == (
        node.node_id,
        [(each.host, each.port) for each in node.listeners],
    )
    ids = {partition(each).current_voters[0].replica_directory_id for each in (response, again)}
    assert 1 == len(ids)


@pytest.mark.parametrize("name, number", [("__cluster_metadata", 1), ("t", 0)])
async def test_other_partitions_have_no_quorum(broker: Broker, name: str, number: int) -> None:
    response = await describe(broker, 2, name, number)

    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == partition(response).error_code
    assert [] == response.nodes
