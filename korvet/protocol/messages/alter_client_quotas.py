"""AlterClientQuotas: set and remove quotas of entities (KIP-546)."""

from __future__ import annotations

from korvet.protocol.schema import array, boolean, float64, int16, int32, message, string, struct


@struct
class EntityData:
    entity_type: str = string()
    entity_name: str | None = string(nullable="0+")


@struct
class OpData:
    key: str = string()
    value: float = float64()
    remove: bool = boolean()


@struct
class EntryData:
    entity: list[EntityData] = array(EntityData)
    ops: list[OpData] = array(OpData)


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasRequest:
    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean()


class Response:
    """The struct of the response that has the same name in the request."""

    @struct
    class EntryData:
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+")
        entity: list[EntityData] = array(EntityData)


@message(key=49, versions="0-1", flexible="1+")
class AlterClientQuotasResponse:
    throttle_time_ms: int = int32(default=0)
    entries: list[Response.EntryData] = array(Response.EntryData)
