"""AlterClientQuotas: v0-1.

Behaviour: the valid alterations of the request are stored in one write. This broker enforces them when it responds,
others within a second. An alteration of one entity takes effect completely or not at all. With `validate_only`, nothing
is stored. Errors per entity: INVALID_REQUEST for an unknown or empty entity type or name, an address combined with a
user or client id, a key that the entity cannot have, a value that is not positive, too large, or fractional where the
key takes whole numbers, and for an entity or a key that appears twice. Errors of all entities:
CLUSTER_AUTHORIZATION_FAILED without ALTER_CONFIGS on the cluster, and POLICY_VIOLATION for more than 10,000 alterations
of keys.

Versions: they differ only in encoding.

Declined: host names in entities of type ip, which Kafka resolves: INVALID_REQUEST.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import InvalidRequest, KafkaError, PolicyViolation, detached
from korvet.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntityData,
    EntryData,
    Response,
)
from korvet.security.acls import Operation
from korvet.security.quotas import Changes, Entity, altered, entity_of, validate_alteration

# Limit of altered keys in a request, as in Kafka.
MOST_CHANGES = 10_000

Names = Iterable[tuple[str, str | None]]


async def handle(
    broker: Broker, request: AlterClientQuotasRequest, context: RequestContext
) -> AlterClientQuotasResponse:
    try:
        broker.cluster(context, Operation.ALTER_CONFIGS)
        return await _altered(broker, request)
    except KafkaError as error:
        refused = detached(error)
        return AlterClientQuotasResponse(
            entries=await map_in_slices(lambda entry: _result(_names(entry), refused), request.entries)
        )


async def _altered(broker: Broker, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
    if sum(len(entry.ops) for entry in request.entries) > MOST_CHANGES:
        raise PolicyViolation("Unable to perform excessively large batch operation.")
    outcomes = _checked(request.entries)
    valid = {entity: each for entity, each in outcomes.items() if not isinstance(each, KafkaError)}
    if valid and not request.validate_only:
        await broker.quotas.stored.alter(lambda before: altered(before, valid))
    return AlterClientQuotasResponse(
        entries=[
            _result(entity, each if isinstance(each, KafkaError) else None)
            for entity, each in outcomes.items()
        ]
    )


def _checked(entries: Iterable[EntryData]) -> Mapping[Entity, Changes | KafkaError]:
    """Return the changes of each entity, or the error for which they are refused."""
    outcomes: dict[Entity, Changes | KafkaError] = {}
    for entry in entries:
        entity = entity_of(dict(_names(entry)))
        changes = {op.key: None if op.remove else op.value for op in entry.ops}
        try:
            if entity in outcomes or len(changes) < len(entry.ops):
                raise InvalidRequest(f"Ignoring duplicate entity {dict(entity)}")
            validate_alteration(entity, changes)
            outcomes[entity] = changes
        except KafkaError as error:
            outcomes[entity] = error
    return outcomes


def _names(entry: EntryData) -> list[tuple[str, str | None]]:
    return [(each.entity_type, each.entity_name) for each in entry.entity]


def _result(names: Names, error: KafkaError | None) -> Response.EntryData:
    entity = [EntityData(entity_type=kind, entity_name=name) for kind, name in names]
    if error is None:
        return Response.EntryData(error_message=None, entity=entity)
    return Response.EntryData(error_code=error.error_code, error_message=error.message, entity=entity)
