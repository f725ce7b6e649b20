"""List and alter client quotas, for the command line.

Requests are not retried, so that the caller learns the outcome of an alteration.
"""

from __future__ import annotations

from korvet.client.client import Client
from korvet.client.cluster import raise_for
from korvet.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    OpData,
)
from korvet.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from korvet.security.quotas import Changes, Entity, Match, Quotas, entity_of


async def list_quotas(client: Client, entity: Entity, *, is_strict: bool = False) -> Quotas:
    """Return the quotas of the entities that have these names, or with `is_strict` of this one."""
    components = [
        ComponentData(entity_type=kind, match_type=Match.DEFAULT if name is None else Match.EXACT, match=name)
        for kind, name in entity
    ]
    request = DescribeClientQuotasRequest(components=components, strict=is_strict)
    answer = await client.request(request, DescribeClientQuotasResponse)
    raise_for(answer.error_code, "the quotas", answer.error_message)
    return {
        entity_of({each.entity_type: each.entity_name for each in entry.entity}): {
            each.key: each.value for each in entry.values
        }
        for entry in answer.entries or ()
    }


async def alter_quotas(client: Client, entity: Entity, changes: Changes) -> None:
    """Set and remove quotas of an entity. Raises the broker's error."""
    entry = EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
    )
    request = AlterClientQuotasRequest(entries=[entry], validate_only=False)
    answer = await client.request(request, AlterClientQuotasResponse, node_id=client.controller_id)
    for result in answer.entries:
        raise_for(result.error_code, "the quotas", result.error_message)
