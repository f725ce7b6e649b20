"""IncrementalAlterConfigs: v0-1.

Behaviour: a request sets or deletes single settings of a topic, a broker or a group, and appends elements to lists or
subtracts them, starting from the default if the list was not set. Each resource is altered separately, and completely
or not at all.
Appending an existing element, and subtracting or deleting a missing one, is no error. INVALID_CONFIG names every
invalid setting and the accepted values, also for list operations on other settings. The three settings that are fixed
at creation cannot change. `validate_only` returns the same response and alters nothing. INVALID_REQUEST as in
AlterConfigs, and for an unknown operation.

Versions: they differ only in encoding.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.broker.administration import Alterations, Resource, alter_settings
from korvet.broker.alterations import SettingChange, with_settings_changed
from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.dynamic_settings import settings_changed
from korvet.broker.group_settings import group_settings_changed
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

CHANGE = Alterations(with_settings_changed, settings_changed, group_settings_changed)


async def handle(
    broker: Broker, request: IncrementalAlterConfigsRequest, context: RequestContext
) -> IncrementalAlterConfigsResponse:
    wanted = await map_in_slices(_wanted, request.resources)
    errors = await alter_settings(broker, context, wanted, CHANGE, validate_only=request.validate_only)
    outcomes = list(zip(request.resources, errors, strict=True))
    return IncrementalAlterConfigsResponse(responses=await map_in_slices(_answer, outcomes))


def _wanted(resource: AlterConfigsResource) -> tuple[Resource, Sequence[SettingChange]]:
    changes = [
        SettingChange(config.name, config.value, config.config_operation) for config in resource.configs
    ]
    return (resource.resource_type, resource.resource_name), changes


def _answer(outcome: tuple[AlterConfigsResource, KafkaError | None]) -> AlterConfigsResourceResponse:
    resource, error = outcome
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.error_code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
