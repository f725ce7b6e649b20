"""AlterConfigs: v0-2.

Behaviour: the settings in the request replace all settings of the topic. Each resource is altered separately, and
completely or not at all. INVALID_CONFIG names every invalid setting and the accepted values. The three settings that
are fixed at creation remain; a request may only contain them with their current values. `validate_only` returns the
same response and alters nothing. INVALID_REQUEST for a duplicate resource, a duplicate setting, a null, a resource type
without settings in korvet, and all broker settings, since a broker reads them when it starts.

Versions: they differ only in encoding. New clients use IncrementalAlterConfigs.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.broker.administration import Alterations, Resource, alter_settings
from korvet.broker.alterations import SettingChange, with_settings_replaced
from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.broker.dynamic_settings import settings_replaced
from korvet.broker.group_settings import group_settings_replaced
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

REPLACE = Alterations(with_settings_replaced, settings_replaced, group_settings_replaced)


async def handle(
    broker: Broker, request: AlterConfigsRequest, context: RequestContext
) -> AlterConfigsResponse:
    wanted = await map_in_slices(_wanted, request.resources)
    errors = await alter_settings(broker, context, wanted, REPLACE, validate_only=request.validate_only)
    outcomes = list(zip(request.resources, errors, strict=True))
    return AlterConfigsResponse(responses=await map_in_slices(_answer, outcomes))


def _wanted(resource: AlterConfigsResource) -> tuple[Resource, Sequence[SettingChange]]:
    changes = [SettingChange(config.name, config.value) for config in resource.configs]
    return (resource.resource_type, resource.resource_name), changes


def _answer(outcome: tuple[AlterConfigsResource, KafkaError | None]) -> AlterConfigsResourceResponse:
    resource, error = outcome
    return AlterConfigsResourceResponse(
        error_code=ErrorCode.NONE if error is None else error.error_code,
        error_message=None if error is None else error.message,
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
