from __future__ import annotations

import pytest

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tests.handlers.support import ask, create


async def move(
    broker: Broker, path: str, name: str, *numbers: int, version: int = 2
) -> list[tuple[int, int]]:
    topic = AlterReplicaLogDirTopic(name=name, partitions=list(numbers))
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path=path, topics=[topic])])
    response = await ask(broker, 34, version, request)
    (result,) = response.results
    assert name == result.topic_name
    return [(each.partition_index, each.error_code) for each in result.partitions]


@pytest.mark.parametrize("version", [1, 2])
async def test_replicas_are_in_the_only_directory(broker: Broker, version: int) -> None:
    await create(broker, partitions=2)

    found = await move(broker, broker.log_dir, "t", 0, 1, 2, version=version)

    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [(0, ErrorCode.NONE), (1, ErrorCode.NONE), (2, unknown)] == found
    assert [(0, unknown)] == await move(broker, broker.log_dir, "missing", 0)


async def test_there_is_no_other_directory(broker: Broker) -> None:
    await create(broker)

    assert [(0, ErrorCode.LOG_DIR_NOT_FOUND)] == await move(broker, "/nowhere", "t", 0)
