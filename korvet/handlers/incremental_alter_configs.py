"""IncrementalAlterConfigs: v0-1.

Behaviour: of a topic, single settings are set or deleted, and lists get elements appended or subtracted, starting from
the default where nothing was set; each resource by itself, and whole or not at all. To append what is there, or
subtract or delete what is not, is no error. INVALID_CONFIG names every setting that is wrong and what is accepted, also
for lists' operations on what is no list; the three settings that were fixed when the topic was created stay.
`validate_only` answers the same and alters nothing. INVALID_REQUEST as in AlterConfigs, and for an operation that is
none.

Versions: they differ in encoding alone.
"""

from __future__ import annotations

from collections import Counter

from korvet.administration import alter_settings
from korvet.alterations import SettingChange, with_settings_changed
from korvet.broker import Broker, RequestContext
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    return IncrementalAlterConfigsResponse(
        responses=[
            await _alter(broker, request, context, each, times[each.resource_type, each.resource_name])
            for each in request.resources
        ]
    )


async def _alter(
    broker: Broker,
    request: IncrementalAlterConfigsRequest,
    context: RequestContext,
    resource: AlterConfigsResource,
    times: int,
) -> AlterConfigsResourceResponse:
    response = AlterConfigsResourceResponse(
        error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        if times > 1:
            raise InvalidRequest("Each resource must appear at most once.")
        await alter_settings(
            broker,
            context,
            (resource.resource_type, resource.resource_name),
            [SettingChange(each.name, each.value, each.config_operation) for each in resource.configs],
            with_settings_changed,
            validate_only=request.validate_only,
        )
    except KafkaError as error:
        response.error_code, response.error_message = error.error_code, error.message
    return response
