"""DescribeUserScramCredentials: v0.

Behaviour: the response has the mechanisms and iterations of the named users, or of all if none is named.
RESOURCE_NOT_FOUND for a user without credentials, DUPLICATE_RESOURCE for one that is named twice,
CLUSTER_AUTHORIZATION_FAILED.
"""

from __future__ import annotations

from collections import Counter
from functools import partial

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.tasks import in_parallel
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import DuplicateResource, KafkaError, ResourceNotFound, detached
from korvet.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    UserName,
)
from korvet.security.acls import Operation

DUPLICATE = "Cannot describe SCRAM credentials for the same user twice in a single request: "
MISSING = "Attempt to describe a user credential that does not exist: "


async def handle(
    broker: Broker, request: DescribeUserScramCredentialsRequest, context: RequestContext
) -> DescribeUserScramCredentialsResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE)
        if request.users:
            named = Counter(user.name for user in request.users)
            results = await in_parallel(partial(_result, broker), list(named.items()))
        else:
            results = await _all(broker)
    except KafkaError as error:
        return DescribeUserScramCredentialsResponse(
            error_code=error.error_code,
            error_message=error.message,
            results=await map_in_slices(partial(_refused, detached(error)), request.users or ()),
        )
    return DescribeUserScramCredentialsResponse(results=results)


def _refused(error: KafkaError, _user: UserName) -> DescribeUserScramCredentialsResult:
    """Return an error without a name, which Kafka has for each user of a refused request."""
    return DescribeUserScramCredentialsResult(
        user="", error_code=error.error_code, error_message=error.message, credential_infos=[]
    )


async def _all(broker: Broker) -> list[DescribeUserScramCredentialsResult]:
    names = await broker.users.names()
    found = await in_parallel(partial(_described, broker), names)
    # A user that was just deleted may still be listed.
    return [result for result in found if result.credential_infos]


async def _result(broker: Broker, named: tuple[str, int]) -> DescribeUserScramCredentialsResult:
    username, times = named
    try:
        if times > 1:
            raise DuplicateResource(DUPLICATE + username)
        described = await _described(broker, username)
        if not described.credential_infos:
            raise ResourceNotFound(MISSING + username)
    except KafkaError as error:
        return DescribeUserScramCredentialsResult(
            user=username, error_code=error.error_code, error_message=error.message, credential_infos=[]
        )
    return described


async def _described(broker: Broker, username: str) -> DescribeUserScramCredentialsResult:
    credentials = await broker.users.credentials(username)
    return DescribeUserScramCredentialsResult(
        user=username,
        credential_infos=[
            CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
            for mechanism, credential in credentials.items()
        ],
    )
