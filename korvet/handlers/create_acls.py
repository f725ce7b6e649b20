"""CreateAcls: v1-3.

Behaviour: the valid ACLs of the request are stored in one write, and used by this broker when it responds, by others
within a second. An ACL that exists already is no error. Errors per ACL: INVALID_REQUEST for an unknown resource type,
pattern type, operation or permission, for an empty name, for a cluster with another name than kafka-cluster, and for a
principal without a type. It is also the error for the values of filters (ANY, MATCH) and for 0, for which Kafka returns
UNKNOWN_SERVER_ERROR or closes the connection. Errors of all ACLs: SECURITY_DISABLED without an authorizer,
CLUSTER_AUTHORIZATION_FAILED without ALTER on the cluster.

Versions: they differ only in encoding. User resources (KIP-373) are accepted in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import ErrorCode, KafkaError, detached
from korvet.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from korvet.security.acls import Acl, Operation, checked_acl


async def handle(broker: Broker, request: CreateAclsRequest, context: RequestContext) -> CreateAclsResponse:
    wanted: Sequence[Acl | KafkaError]
    try:
        broker.cluster(context, Operation.ALTER)
        stored = broker.acls()
        wanted = await map_in_slices(_checked, request.creations)
        valid = {acl for acl in wanted if isinstance(acl, Acl)}
        await stored.alter(lambda before: before | valid)
    except KafkaError as error:
        wanted = [detached(error)] * len(request.creations)
    return CreateAclsResponse(results=await map_in_slices(_result, wanted))


def _checked(creation: AclCreation) -> Acl | KafkaError:
    try:
        return checked_acl(
            creation.resource_type,
            creation.resource_pattern_type,
            creation.resource_name,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
    except KafkaError as error:
        return error


def _result(outcome: Acl | KafkaError) -> AclCreationResult:
    if isinstance(outcome, KafkaError):
        return AclCreationResult(error_code=outcome.error_code, error_message=outcome.message)
    return AclCreationResult(error_code=ErrorCode.NONE, error_message="")
