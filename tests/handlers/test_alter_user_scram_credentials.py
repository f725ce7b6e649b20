from __future__ import annotations

from korvet.broker.broker import Broker
from korvet.protocol.errors import ErrorCode
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.security.scram import ScramMechanism, is_password_of, salted_password
from tests.handlers.support import Shim, ask, away, new_broker

SHA_256, SHA_512 = ScramMechanism


def upsertion(name: str, mechanism: int = SHA_256, iterations: int = 4096) -> ScramCredentialUpsertion:
    salted = salted_password(SHA_256, "hush", b"salt", 4096)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=salted
    )


def deletion(name: str, mechanism: int = SHA_256) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name=name, mechanism=mechanism)


async def alter(
    broker: Broker, *alterations: ScramCredentialUpsertion | ScramCredentialDeletion
) -> list[tuple[str, int, str | None]]:
    deletions = [each for each in alterations if isinstance(each, ScramCredentialDeletion)]
    upsertions = [each for each in alterations if isinstance(each, ScramCredentialUpsertion)]
    request = AlterUserScramCredentialsRequest(deletions=deletions, upsertions=upsertions)
    response = await ask(broker, 51, 0, request)
    return [(each.user, each.error_code, each.error_message) for each in response.results]


async def test_credentials_are_stored_and_deleted(broker: Broker) -> None:
    assert [("a", 0, None), ("b", 0, None)] == await alter(broker, upsertion("a"), upsertion("b"))
    credential = (await broker.users.credentials("a"))[SHA_256]
    assert is_password_of(SHA_256, credential, "hush")
    assert [("b", 0, None), ("c", 0, None)] == await alter(broker, upsertion("c"), deletion("b"))
    assert ["a", "c"] == await broker.users.names()


async def test_invalid_alterations_are_refused_with_the_errors_of_kafka(broker: Broker) -> None:
    unacceptable, unsupported = ErrorCode.UNACCEPTABLE_CREDENTIAL, ErrorCode.UNSUPPORTED_SASL_MECHANISM
    missing = "Attempt to delete a user credential that does not exist"

    assert [
        ("good", 0, None),
        ("d", ErrorCode.RESOURCE_NOT_FOUND, missing),
        ("e", unsupported, "Unknown SCRAM mechanism"),
        ("", unacceptable, "Username must not be empty"),
        ("a", unsupported, "Unknown SCRAM mechanism"),
        ("b", unacceptable, "Too few iterations"),
        ("c", unacceptable, "Too many iterations"),
    ] == await alter(
        broker,
        deletion("d"),
        deletion("e", 3),
        upsertion(""),
        upsertion("a", 0),
        upsertion("b", iterations=4095),
        upsertion("good"),
        upsertion("c", iterations=16385),
    )
    assert ["good"] == await broker.users.names()


async def test_user_is_altered_once_in_a_request(broker: Broker) -> None:
    twice = "A user credential cannot be altered twice in the same request"
    await alter(broker, upsertion("b"))

    assert [
        ("a", ErrorCode.DUPLICATE_RESOURCE, twice),
        ("b", ErrorCode.DUPLICATE_RESOURCE, twice),
    ] == await alter(broker, upsertion("a"), upsertion("a", SHA_512), upsertion("b", SHA_512), deletion("b"))
    assert ["b"] == await broker.users.names()
    assert {SHA_256} == set(await broker.users.credentials("b"))


async def test_each_user_gets_the_error_of_the_store() -> None:
    broker = await new_broker()
    broker.users.storage = Shim(broker._storage, load=away)

    assert [("a", ErrorCode.KAFKA_STORAGE_ERROR, "the store is away")] == await alter(broker, upsertion("a"))
