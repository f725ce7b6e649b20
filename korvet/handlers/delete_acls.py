"""DeleteAcls: v1-3.

Behaviour: all stored ACLs that a filter of the request selects are deleted in one write. The response lists them for
each filter; an ACL that several filters select is listed for each of them. INVALID_REQUEST for a filter with an unknown
resource type, pattern type, operation or permission. Errors of all filters: SECURITY_DISABLED without an authorizer,
CLUSTER_AUTHORIZATION_FAILED without ALTER on the cluster.

Versions: they differ only in encoding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.concurrency.time_slices import map_in_slices
from korvet.protocol.errors import ErrorCode, KafkaError, detached
from korvet.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from korvet.security.acls import Acl, AclFilter, Operation, checked_filter


async def handle(broker: Broker, request: DeleteAclsRequest, context: RequestContext) -> DeleteAclsResponse:
    deleted: Sequence[Collection[Acl]] = []

    def without_selected(before: frozenset[Acl]) -> frozenset[Acl]:
        nonlocal deleted
        deleted = [_selected(each, before) for each in filters]
        return before.difference(*deleted)

    try:
        broker.cluster(context, Operation.ALTER)
        stored = broker.acls()
        filters = await map_in_slices(_checked, request.filters)
        await stored.alter(without_selected)
    except KafkaError as error:
        refused = detached(error)
        return DeleteAclsResponse(
            filter_results=await map_in_slices(lambda _: _refused(refused), request.filters)
        )
    return DeleteAclsResponse(
        filter_results=[
            _refused(selection) if isinstance(selection, KafkaError) else _deleted(acls)
            for selection, acls in zip(filters, deleted, strict=True)
        ]
    )


def _checked(given: DeleteAclsFilter) -> AclFilter | KafkaError:
    try:
        return checked_filter(given)
    except KafkaError as error:
        return error


def _selected(selection: AclFilter | KafkaError, acls: frozenset[Acl]) -> Collection[Acl]:
    if isinstance(selection, KafkaError):
        return ()
    return sorted(acl for acl in acls if selection.matches(acl))


def _refused(error: KafkaError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(error_code=error.error_code, error_message=error.message, matching_acls=[])


def _deleted(acls: Collection[Acl]) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_message=None,
        matching_acls=[
            DeleteAclsMatchingAcl(
                error_code=ErrorCode.NONE,
                error_message=None,
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ],
    )
