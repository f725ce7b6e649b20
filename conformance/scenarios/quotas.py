"""Client quotas: their entities, keys and values, and filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.scenario import scenario
from conformance.talk import Talk
from korvet.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryData,
    OpData,
)
from korvet.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest
from korvet.security.quotas import CLIENT_ID, IP, USER, Match

Names = Sequence[tuple[str, str | None]]
Changes = Mapping[str, float | None]

RATE = "producer_byte_rate"


def entry(names: Names, changes: Changes) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in names],
        ops=[OpData(key=key, value=value or 0.0, remove=value is None) for key, value in changes.items()],
    )


def altering(*entries: EntryData, validate_only: bool = False) -> AlterClientQuotasRequest:
    return AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)


def describing(*components: tuple[str, int, str | None]) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest(
        components=[
            ComponentData(entity_type=kind, match_type=how, match=name) for kind, how, name in components
        ],
        strict=True,
    )


@scenario(AlterClientQuotasRequest)
def alter_client_quotas(talk: Talk, version: int) -> None:
    """Alter entities one by one, because Kafka answers several in the order of a hash table."""
    user, client = talk.name("u"), talk.name("c")
    for label, names, changes in (
        ("a user", [(USER, user)], {RATE: 1000.0}),
        ("the same value", [(USER, user)], {RATE: 1000.0}),
        ("every key", [(USER, user)], {"consumer_byte_rate": 1.0, "request_percentage": 0.5, RATE: 2.0}),
        ("mutations", [(USER, user)], {"controller_mutation_rate": 1.5}),
        ("a user's client", [(USER, user), (CLIENT_ID, client)], {RATE: 1000.0}),
        ("a user twice", [(USER, user), (USER, client)], {RATE: 5.0}),
        ("an address", [(IP, "10.11.12.13")], {"connection_creation_rate": 5.0}),
        ("an IPv6 address", [(IP, "::1")], {"connection_creation_rate": 5.0}),
        ("no address", [(IP, "256.1.1.1")], {"connection_creation_rate": 5.0}),
        ("an address and a user", [(IP, "10.11.12.13"), (USER, user)], {RATE: 5.0}),
        ("a key of users on an address", [(IP, "10.11.12.13")], {RATE: 5.0}),
        ("a key of addresses on a user", [(USER, user)], {"connection_creation_rate": 5.0}),
        ("no entity", [], {RATE: 1.0}),
        ("an unknown type", [("group", "g")], {RATE: 1.0}),
        ("an empty name", [(USER, "")], {RATE: 1.0}),
        ("an unknown key", [(USER, user)], {"speed": 1.0}),
        ("zero", [(USER, user)], {RATE: 0.0}),
        ("a negative percentage", [(USER, user)], {"request_percentage": -0.1}),
        ("a fraction of a byte", [(USER, user)], {RATE: 1.5}),
        ("too many bytes", [(USER, user)], {RATE: 1e19}),
        ("a rate above 32 bits", [(IP, "10.11.12.13")], {"connection_creation_rate": 2.0**31}),
        ("no alteration", [(USER, user)], {}),
        ("remove a missing key", [(USER, client)], {RATE: None}),
        ("remove an unknown key", [(USER, client)], {"speed": None}),
    ):
        talk.ask(altering(entry(names, changes)), version, label)
    talk.ask(altering(entry([(USER, client)], {RATE: 1.0}), validate_only=True), version, "validate only")
    twice = entry([(USER, client)], {RATE: 3.0})
    talk.ask(altering(twice, twice), version, "an entity twice")
    twice.ops *= 2
    talk.ask(altering(twice), version, "a key twice")
    talk.ask(altering(), version, "nothing")
    talk.settle()
    talk.ask(describing((USER, Match.EXACT, user)), label="the user")
    talk.ask(describing((USER, Match.EXACT, client)), label="the other user")
    for address in ("10.11.12.13", "::1"):
        removed = entry([(IP, address)], {"connection_creation_rate": None})
        talk.ask(altering(removed), version, f"remove {address}")


@scenario(DescribeClientQuotasRequest)
def describe_client_quotas(talk: Talk, version: int) -> None:
    user, client = talk.name("u"), talk.name("c")
    for names in ([(USER, user)], [(USER, user), (CLIENT_ID, client)], [(CLIENT_ID, client)]):
        talk.ask(altering(entry(names, {RATE: 1000.0, "request_percentage": 12.5})), label="set")
    talk.settle()
    for label, components in (
        ("a user", [(USER, Match.EXACT, user)]),
        ("a client", [(CLIENT_ID, Match.EXACT, client)]),
        ("a user's client", [(USER, Match.EXACT, user), (CLIENT_ID, Match.EXACT, client)]),
        ("a user's clients", [(USER, Match.EXACT, user), (CLIENT_ID, Match.SPECIFIED, None)]),
        ("a user's default client", [(USER, Match.EXACT, user), (CLIENT_ID, Match.DEFAULT, None)]),
        ("a missing user", [(USER, Match.EXACT, client)]),
        ("the default user", [(USER, Match.DEFAULT, None)]),
        ("an address", [(IP, Match.EXACT, "10.99.99.99")]),
        ("nothing", []),
        ("an empty type", [("", Match.EXACT, user)]),
        ("an unknown type", [("group", Match.EXACT, user)]),
        ("a type twice", [(USER, Match.EXACT, user), (USER, Match.SPECIFIED, None)]),
        ("an unknown match", [(USER, 3, None)]),
        ("an exact null", [(USER, Match.EXACT, None)]),
        ("a default with a name", [(USER, Match.DEFAULT, user)]),
        ("any with a name", [(USER, Match.SPECIFIED, user)]),
        ("a user and an address", [(USER, Match.EXACT, user), (IP, Match.EXACT, "10.0.0.1")]),
    ):
        talk.ask(describing(*components), version, label)
