"""AlterConfigs: v0-2.

Behaviour: a topic gets the settings that are given, and loses those that are not; each resource by itself, and whole
or not at all. INVALID_CONFIG names every setting that is wrong and what is accepted; the three that were fixed when the
topic was created stay, and may only be named with the value they have. `validate_only` answers the same and alters
nothing. INVALID_REQUEST for a resource that stands twice, a setting that does, a null, a type that has no settings
here, and all broker settings, since a broker reads them when it starts.

Versions: they differ in encoding alone. New clients use IncrementalAlterConfigs.
"""

from __future__ import annotations

from collections import Counter

from korvet.administration import alter_settings
from korvet.alterations import SettingChange, with_settings_replaced
from korvet.broker import Broker, RequestContext
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    times = Counter((each.resource_type, each.resource_name) for each in request.resources)
    return AlterConfigsResponse(
        responses=[
            await _alter(broker, request, context, each, times[each.resource_type, each.resource_name])
            for each in request.resources
        ]
    )


async def _alter(
    broker: Broker,
    request: AlterConfigsRequest,
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
            [SettingChange(each.name, each.value) for each in resource.configs],
            with_settings_replaced,
            validate_only=request.validate_only,
        )
    except KafkaError as error:
        response.error_code, response.error_message = error.error_code, error.message
    return response
