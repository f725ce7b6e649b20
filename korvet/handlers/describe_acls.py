"""DescribeAcls: v1-3.

Behaviour: the response has the stored ACLs that the filter selects, grouped by resource pattern. A filter with an
unknown resource type, pattern type, operation or permission selects none. SECURITY_DISABLED without an authorizer,
CLUSTER_AUTHORIZATION_FAILED without DESCRIBE on the cluster.

Versions: they differ only in encoding.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from korvet.broker.broker import Broker
from korvet.broker.context import RequestContext
from korvet.protocol.errors import InvalidRequest, KafkaError
from korvet.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from korvet.security.acls import Acl, Operation, PatternType, ResourceType, checked_filter

Pattern = tuple[ResourceType, PatternType, str]


async def handle(
    broker: Broker, request: DescribeAclsRequest, context: RequestContext
) -> DescribeAclsResponse:
    try:
        broker.cluster(context, Operation.DESCRIBE)
        stored = await broker.acls().refresh()
    except KafkaError as error:
        return DescribeAclsResponse(error_code=error.error_code, error_message=error.message, resources=[])
    found = sorted(_selected(request, stored))
    return DescribeAclsResponse(
        error_message="",
        resources=[_resource(pattern, list(acls)) for pattern, acls in groupby(found, _pattern)],
    )


def _selected(request: DescribeAclsRequest, acls: Iterable[Acl]) -> list[Acl]:
    try:
        selection = checked_filter(request)
    except InvalidRequest:
        return []
    return [acl for acl in acls if selection.matches(acl)]


def _pattern(acl: Acl) -> Pattern:
    return acl.resource_type, acl.pattern_type, acl.resource_name


def _resource(pattern: Pattern, acls: list[Acl]) -> DescribeAclsResource:
    resource_type, pattern_type, name = pattern
    return DescribeAclsResource(
        resource_type=resource_type,
        resource_name=name,
        pattern_type=pattern_type,
        acls=[
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
            for acl in acls
        ],
    )
