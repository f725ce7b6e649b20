"""AlterConfigs: v0-2.

Behaviour: a topic gets the settings that are given, and loses those that are not; each resource by itself, and whole
or not at all. INVALID_CONFIG names every setting that is wrong and what is accepted; the three that were fixed when the
topic was created stay, and may only be named with the value they have. `validate_only` answers the same and alters
nothing. INVALID_REQUEST for a resource that stands twice, a setting that does, a null, a type that has no settings
here, and all broker settings, since a broker reads them when it starts.

Versions: they differ in encoding alone. New clients use IncrementalAlterConfigs.
"""

from __future__ import annotations

from korvet.administration import alter_settings
from korvet.alterations import SettingChange, with_settings_replaced
from korvet.broker import Broker, RequestContext
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    wanted = [
        (
            (each.resource_type, each.resource_name),
            [SettingChange(config.name, config.value) for config in each.configs],
        )
        for each in request.resources
    ]
    errors = await alter_settings(
        broker, context, wanted, with_settings_replaced, validate_only=request.validate_only
    )
    return AlterConfigsResponse(
        responses=[_answer(each, error) for each, error in zip(request.resources, errors, strict=True)]
    )


def _answer(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.error_code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
