"""Create, list and delete ACLs, for the command line.

Requests are not retried, so that the caller learns the outcome of an alteration.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from korvet.client.client import Client
from korvet.client.cluster import raise_for
from korvet.protocol.messages.create_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from korvet.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest, DeleteAclsResponse
from korvet.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from korvet.security.acls import Acl, AclFilter, Operation, PatternType, Permission, ResourceType


async def create_acls(client: Client, acls: Collection[Acl]) -> None:
    """Create ACLs. Raises the error of the first one that is refused; the others may exist then."""
    request = CreateAclsRequest(creations=[creation_of(acl) for acl in acls])
    answer = await client.request(request, CreateAclsResponse, node_id=client.controller_id)
    for acl, result in zip(acls, answer.results, strict=True):
        raise_for(result.error_code, acl.resource_name, result.error_message)


async def list_acls(client: Client, selections: Sequence[AclFilter]) -> list[Acl]:
    """Return the ACLs that any of the filters selects, sorted."""
    found: set[Acl] = set()
    for selection in selections:
        request = DescribeAclsRequest(**_filter_fields(selection))
        answer = await client.request(request, DescribeAclsResponse)
        raise_for(answer.error_code, "the ACLs", answer.error_message)
        found.update(
            Acl(
                ResourceType(resource.resource_type),
                PatternType(resource.pattern_type),
                resource.resource_name,
                each.principal,
                each.host,
                Operation(each.operation),
                Permission(each.permission_type),
            )
            for resource in answer.resources
            for each in resource.acls
        )
    return sorted(found)


async def delete_acls(client: Client, selections: Sequence[AclFilter]) -> int:
    """Delete the ACLs that any of the filters selects, and return their number."""
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**_filter_fields(each)) for each in selections])
    answer = await client.request(request, DeleteAclsResponse, node_id=client.controller_id)
    deleted: set[tuple[object, ...]] = set()
    for result in answer.filter_results:
        raise_for(result.error_code, "the ACLs", result.error_message)
        deleted.update(_key(each) for each in result.matching_acls)
    return len(deleted)


def creation_of(acl: Acl) -> AclCreation:
    """Return the ACL as CreateAcls contains it."""
    return AclCreation(
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _filter_fields(selection: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": selection.resource_type,
        "resource_name_filter": selection.resource_name,
        "pattern_type_filter": selection.pattern_type,
        "principal_filter": selection.principal,
        "host_filter": selection.host,
        "operation": selection.operation,
        "permission_type": selection.permission,
    }


def _key(acl: Any) -> tuple[object, ...]:
    pattern = acl.resource_type, acl.pattern_type, acl.resource_name
    return *pattern, acl.principal, acl.host, acl.operation, acl.permission_type
