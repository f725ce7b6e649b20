"""AlterUserScramCredentials: v0.

Behaviour: deletions come first; each user is altered separately. The broker stores keys that it derives from the salted
password. Per user: DUPLICATE_RESOURCE if the request alters the user twice, RESOURCE_NOT_FOUND for the deletion of a
missing credential, UNACCEPTABLE_CREDENTIAL for an empty name or too few or too many iterations,
UNSUPPORTED_SASL_MECHANISM, CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import TimeSlices, map_in_slices
from korvet.protocol.errors import (
    DuplicateResource,
    KafkaError,
    ResourceNotFound,
    UnacceptableCredential,
    UnsupportedSaslMechanism,
    detached,
)
from korvet.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.security.acls import Operation
from korvet.security.scram import FEWEST_ITERATIONS, MOST_ITERATIONS, ScramMechanism, credential_of

Alteration = ScramCredentialDeletion | ScramCredentialUpsertion


async def handle(
    broker: Broker, request: AlterUserScramCredentialsRequest, context: RequestContext
) -> AlterUserScramCredentialsResponse:
    alterations: list[Alteration] = [*request.deletions, *request.upsertions]
    try:
        broker.cluster(context, Operation.ALTER)
    except KafkaError as error:
        refused = detached(error)
        names = sorted({alteration.name for alteration in alterations})
        return AlterUserScramCredentialsResponse(
            results=await map_in_slices(lambda name: _result(name, refused), names)
        )
    accepted, errors = await _checked(broker, alterations)
    results = [await _altered(broker, alteration) for alteration in accepted]
    results += [_result(name, error) for name, error in errors.items()]
    return AlterUserScramCredentialsResponse(results=results)


async def _checked(
    broker: Broker, alterations: Sequence[Alteration]
) -> tuple[Collection[Alteration], Mapping[str, KafkaError]]:
    """Return the alterations that are valid, and the first error of each other user."""
    accepted: dict[str, Alteration] = {}
    errors: dict[str, KafkaError] = {}
    time_slices = TimeSlices()
    for alteration in alterations:
        await time_slices.next()
        name = alteration.name
        if name in errors:
            continue
        try:
            if accepted.pop(name, None) is not None:
                raise DuplicateResource("A user credential cannot be altered twice in the same request")
            await _check(broker, alteration)
        except KafkaError as error:
            errors[name] = error
        else:
            accepted[name] = alteration
    return accepted.values(), errors


async def _check(broker: Broker, alteration: Alteration) -> None:
    """Raise the error for which an alteration is refused."""
    if not alteration.name:
        raise UnacceptableCredential("Username must not be empty")
    if alteration.mechanism not in list(ScramMechanism):
        raise UnsupportedSaslMechanism("Unknown SCRAM mechanism")
    if isinstance(alteration, ScramCredentialDeletion):
        if alteration.mechanism not in await broker.users.credentials(alteration.name):
            raise ResourceNotFound("Attempt to delete a user credential that does not exist")
    elif alteration.iterations < FEWEST_ITERATIONS:
        raise UnacceptableCredential("Too few iterations")
    elif alteration.iterations > MOST_ITERATIONS:
        raise UnacceptableCredential("Too many iterations")


async def _altered(broker: Broker, alteration: Alteration) -> AlterUserScramCredentialsResult:
    mechanism = ScramMechanism(alteration.mechanism)
    try:
        if isinstance(alteration, ScramCredentialDeletion):
            await broker.users.remove(alteration.name, mechanism)
        else:
            salt, salted = bytes(alteration.salt), bytes(alteration.salted_password)
            credential = credential_of(mechanism, salted, salt, alteration.iterations)
            await broker.users.put(alteration.name, mechanism, credential)
    except KafkaError as error:
        return _result(alteration.name, error)
    return AlterUserScramCredentialsResult(user=alteration.name, error_message=None)


def _result(username: str, error: KafkaError) -> AlterUserScramCredentialsResult:
    return AlterUserScramCredentialsResult(
        user=username, error_code=error.error_code, error_message=error.message
    )
