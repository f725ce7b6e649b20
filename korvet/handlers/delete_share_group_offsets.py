"""DeleteShareGroupOffsets: v0.

Behaviour: a share group without members forgets its states in whole topics, and begins again with them. DELETE on the
group and READ on each topic are required.

Errors: GROUP_ID_NOT_FOUND for a group that does not exist and for one of another type; NON_EMPTY_GROUP;
UNKNOWN_TOPIC_OR_PARTITION and TOPIC_AUTHORIZATION_FAILED of a topic.
"""

from __future__ import annotations

from korvet.broker.broker import Broker, coordinator_error
from korvet.broker.context import RequestContext
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from korvet.protocol.schema import ZERO_UUID
from korvet.security.acls import Operation


async def handle(
    broker: Broker, request: DeleteShareGroupOffsetsRequest, context: RequestContext
) -> DeleteShareGroupOffsetsResponse:
    try:
        group_id = broker.group(context, request.group_id, Operation.DELETE)
        await broker.groups.alter_share(group_id)
    except KafkaError as error:
        refused = coordinator_error(error)
        return DeleteShareGroupOffsetsResponse(
            error_code=refused.error_code, error_message=refused.message, responses=[]
        )
    return DeleteShareGroupOffsetsResponse(
        responses=[await _topic(broker, context, group_id, topic.topic_name) for topic in request.topics]
    )


async def _topic(
    broker: Broker, context: RequestContext, group_id: str, name: str
) -> DeleteShareGroupOffsetsResponseTopic:
    answer = DeleteShareGroupOffsetsResponseTopic(topic_name=name, topic_id=ZERO_UUID)
    try:
        topic = await broker.topic(context, name, Operation.READ)
        answer.topic_id = topic.topic_id
        await broker.share.partitions.forget_group(group_id, topic)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.error_code, error.message
    return answer
