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

from korvet.administration import alter_settings
from korvet.alterations import SettingChange, with_settings_changed
from korvet.broker import Broker, RequestContext
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    wanted = [
        (
            (each.resource_type, each.resource_name),
            [SettingChange(config.name, config.value, config.config_operation) for config in each.configs],
        )
        for each in request.resources
    ]
    errors = await alter_settings(
        broker, context, wanted, with_settings_changed, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(
        responses=[_answer(each, error) for each, error in zip(request.resources, errors, strict=True)]
    )


def _answer(resource: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.error_code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
