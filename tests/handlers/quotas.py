"""Requests about client quotas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from korvet.broker.broker import Broker
from korvet.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from korvet.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from tests.handlers.support import ask

DESCRIBE, ALTER = 48, 49

Names = Mapping[str, str | None]


def entry(names: Names, /, **changes: float | None) -> EntryData:
    """Return the alteration of an entity: values to set by key, and None to remove one."""
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[OpData(key=key, value=value or 0, remove=value is None) for key, value in changes.items()],
    )


async def alter(
    broker: Broker, *entries: EntryData, validate_only: bool = False, **values: Any
) -> list[tuple[int, str | None]]:
    """Alter quotas, and return the error code and message of each entity."""
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    answer = await ask(broker, ALTER, 1, request, **values)
    return [(each.error_code, each.error_message) for each in answer.entries]


async def set_quotas(broker: Broker, names: Names, /, **changes: float | None) -> None:
    """Alter the quotas of one entity without an error."""
    assert [(0, None)] == await alter(broker, entry(names, **changes))


async def describe(broker: Broker, *components: tuple[str, int, str | None], strict: bool = False) -> Any:
    """Return the response to DescribeClientQuotas."""
    asked = [
        ComponentData(entity_type=kind, match_type=match, match=name) for kind, match, name in components
    ]
    return await ask(broker, DESCRIBE, 1, DescribeClientQuotasRequest(components=asked, strict=strict))


async def stored(
    broker: Broker, *components: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[dict[str, str | None], dict[str, float]]]:
    """Return the names and the quotas of the selected entities."""
    answer = await describe(broker, *components, strict=strict)
    assert 0 == answer.error_code, answer.error_message
    return [
        (
            {each.entity_type: each.entity_name for each in entry.entity},
            {each.key: each.value for each in entry.values},
        )
        for entry in answer.entries
    ]
