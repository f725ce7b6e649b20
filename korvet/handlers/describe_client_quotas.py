"""DescribeClientQuotas: v0-1.

Behaviour: the response has the entities that the filter selects, sorted, with their quotas. Errors: INVALID_REQUEST for
an empty, duplicate or contradictory component of the filter, or an unknown match type; UNSUPPORTED_VERSION for an
unknown entity type; CLUSTER_AUTHORIZATION_FAILED without DESCRIBE_CONFIGS on the cluster.

Versions: they differ only in encoding.
"""

from __future__ import annotations

from collections.abc import Mapping

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import KafkaError
from korvet.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)
from korvet.security.acls import Operation
from korvet.security.quotas import Entity, checked_filter, sort_key


async def handle(
    broker: Broker, request: DescribeClientQuotasRequest, context: RequestContext
) -> DescribeClientQuotasResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE_CONFIGS)
        components = [(each.entity_type, each.match_type, each.match) for each in request.components]
        selection = checked_filter(components, is_strict=request.strict)
        quotas = await broker.quotas.stored.refresh()
    except KafkaError as error:
        return DescribeClientQuotasResponse(
            error_code=error.error_code, error_message=error.message, entries=None
        )
    found = sorted(filter(selection.matches, quotas), key=sort_key)
    return DescribeClientQuotasResponse(
        error_message="", entries=[_entry(entity, quotas[entity]) for entity in found]
    )


def _entry(entity: Entity, values: Mapping[str, float]) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[ValueData(key=key, value=values[key]) for key in sorted(values)],
    )
