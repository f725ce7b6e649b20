"""Client quotas: the entities they are on, their keys, and Kafka's rules for both (KIP-13, 124, 546, 599, 612).

An entity is a user, a client id, both, or an IP address. The name None stands for the default of its type: all users,
client ids or addresses without a quota of their own.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

from attrs import frozen

from korvet.protocol.errors import InvalidRequest, UnsupportedVersion

USER, CLIENT_ID, IP = "user", "client-id", "ip"
TYPES = (CLIENT_ID, IP, USER)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

#: The largest value of each key. Keys with a limit other than infinity take whole numbers only.
CLIENT_KEYS: Mapping[str, float] = {
    PRODUCER_BYTE_RATE: 2.0**63,
    CONSUMER_BYTE_RATE: 2.0**63,
    REQUEST_PERCENTAGE: math.inf,
    CONTROLLER_MUTATION_RATE: math.inf,
}
IP_KEYS: Mapping[str, float] = {CONNECTION_CREATION_RATE: 2.0**31 - 1}
TYPE_OF_LIMIT = {2.0**63: "a LONG", 2.0**31 - 1: "an INT"}

#: The types and names of an entity, sorted by type.
Entity = tuple[tuple[str, str | None], ...]
#: The values by entity and key.
Quotas = Mapping[Entity, Mapping[str, float]]
#: Values to set by key, or None to remove one.
Changes = Mapping[str, float | None]


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """Return the entity with these names by type."""
    return tuple((kind, names[kind]) for kind in sorted(names))


def sort_key(entity: Entity) -> tuple[tuple[str, str], ...]:
    """Return a key that sorts entities by type and name, defaults first."""
    return tuple((kind, name or "") for kind, name in entity)


def address_of(entity: Entity) -> str | None:
    """Return the address of an entity of type ip in a canonical notation, or None for the default."""
    name = dict(entity)[IP]
    if name is None:
        return None
    address = ipaddress.ip_address(name)
    return str(getattr(address, "ipv4_mapped", None) or address)


# --- Alterations ---------------------------------------------------------------------------------------------


def validate_alteration(entity: Entity, changes: Changes) -> None:
    """Raise InvalidRequest, with Kafka's words, for an entity, a key or a value that Kafka refuses."""
    _validate_entity(entity)
    keys = _keys_of(entity)
    for key, value in changes.items():
        if value is not None:
            _validate_value(keys, key, value)


def _validate_entity(entity: Entity) -> None:
    if not entity:
        raise InvalidRequest("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in TYPES:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise InvalidRequest(f"Empty {kind} not supported")


def _keys_of(entity: Entity) -> Mapping[str, float]:
    """Return the keys that an entity may have."""
    names = dict(entity)
    if IP not in names:
        return CLIENT_KEYS
    if len(names) > 1:
        raise InvalidRequest(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    try:
        address_of(entity)
    except ValueError:
        # Kafka resolves host names as well.
        raise InvalidRequest(f"{names[IP]} is not a valid IP or resolvable host.") from None
    return IP_KEYS


def _validate_value(keys: Mapping[str, float], key: str, value: float) -> None:
    if key not in keys:
        raise InvalidRequest(f"Invalid configuration key {key}")
    if not value > 0:
        raise InvalidRequest(f"Quota {key} must be greater than 0")
    if (limit := keys[key]) == math.inf:
        return
    if value > limit:
        raise InvalidRequest(f"Proposed value for {key} is too large for {TYPE_OF_LIMIT[limit]}.")
    if value % 1.0 > 1e-6:
        raise InvalidRequest(f"{key} cannot be a fractional value.")


def altered(quotas: Quotas, alterations: Mapping[Entity, Changes]) -> Quotas:
    """Return the quotas after alterations that were validated."""
    after = {entity: dict(values) for entity, values in quotas.items()}
    for entity, changes in alterations.items():
        values = {**after.get(entity, {}), **changes}
        after[entity] = {key: value for key, value in values.items() if value is not None}
    return {entity: values for entity, values in after.items() if values}


# --- Filters -------------------------------------------------------------------------------------------------


class Match(IntEnum):
    """The ways in which a filter selects the names of a type, with the protocol's numbers."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2  # any name, and the default


@frozen
class QuotaFilter:
    """A filter over entities. If it is strict, an entity must not have other types."""

    names: Mapping[str, str | None]
    any_name: frozenset[str]
    is_strict: bool

    def matches(self, entity: Entity) -> bool:
        """Return True if the filter selects the entity."""
        names = dict(entity)
        if self.is_strict and len(names) != len(self.names) + len(self.any_name):
            return False
        return self.any_name <= names.keys() and self.names.items() <= names.items()


def checked_filter(components: Sequence[tuple[str, int, str | None]], *, is_strict: bool) -> QuotaFilter:
    """Return the filter of a request's types, matches and names. Raises InvalidRequest and UnsupportedVersion."""
    names: dict[str, str | None] = {}
    any_name: set[str] = set()
    for kind, match, name in components:
        _validate_component(kind, match, name, seen=names.keys() | any_name)
        if match == Match.SPECIFIED:
            any_name.add(kind)
        else:
            names[kind] = name
    kinds = names.keys() | any_name
    if IP in kinds and len(kinds) > 1:
        raise InvalidRequest(
            "Invalid entity filter component combination. IP filter component should not be used with user or"
            " clientId filter component."
        )
    return QuotaFilter(names, frozenset(any_name), is_strict)


def _validate_component(kind: str, match: int, name: str | None, *, seen: Iterable[str]) -> None:
    if not kind:
        raise InvalidRequest("Invalid empty entity type.")
    if kind in seen:
        raise InvalidRequest(f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in TYPES:
        raise UnsupportedVersion(f"Unsupported entity type {kind}")
    if match not in list(Match):
        raise InvalidRequest(f"Unknown match type {match}")
    if match == Match.EXACT and name is None:
        raise InvalidRequest("Request specified MATCH_TYPE_EXACT, but set match string to null.")
    if match != Match.EXACT and name is not None:
        raise InvalidRequest(
            f"Request specified MATCH_TYPE_{Match(match).name}, but also specified a match string."
        )
