from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from tests.handlers.share_groups import ShareMember, configure
from tests.handlers.support import T0, append, ask, create
from tests.handlers.test_alter_share_group_offsets import alter
from tests.handlers.test_describe_share_group_offsets import offsets


async def delete(broker: Broker, topic: str = "t") -> int:
    """Return the error code of the group, or of the topic."""
    topics = [DeleteShareGroupOffsetsRequestTopic(topic_name=topic)]
    response = await ask(broker, 92, 0, DeleteShareGroupOffsetsRequest(group_id="g", topics=topics))
    return int(response.error_code or response.responses[0].error_code)


async def test_a_group_begins_again_with_a_topic(broker: Broker) -> None:
    topic = await create(broker)
    await configure(broker)
    await append(broker, T0, b"0", b"1")
    await alter(broker, 1)

    assert ErrorCode.NONE == await delete(broker)

    assert [] == await offsets(broker)
    assert [(0, 1, 1)] == await ShareMember(broker, topic.topic_id).acquired(0)


async def test_missing_groups_and_topics_and_members_are_refused(broker: Broker) -> None:
    alice = ShareMember(broker, (await create(broker)).topic_id)

    assert ErrorCode.GROUP_ID_NOT_FOUND == await delete(broker)
    await alter(broker, 0)
    assert ErrorCode.UNKNOWN_TOPIC_OR_PARTITION == await delete(broker, "missing")
    await alice.beat(subscribed_topic_names=["t"])
    assert ErrorCode.NON_EMPTY_GROUP == await delete(broker)
