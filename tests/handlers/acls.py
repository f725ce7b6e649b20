"""Requests about ACLs, and a broker that is secured by them."""

from __future__ import annotations

from typing import Any

from korvet.broker.broker import Broker
from korvet.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from korvet.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from korvet.protocol.messages.describe_acls import DescribeAclsRequest
from korvet.security.acls import Operation, PatternType, Permission, ResourceType
from korvet.security.authorizer import STANDARD
from korvet.storage.memory import MemoryStorage
from tests.handlers.support import ask, new_broker

ROOT = "User:root"
DESCRIBE, CREATE, DELETE = 29, 30, 31


async def secured_broker(storage: MemoryStorage | None = None, **settings: Any) -> Broker:
    """Return a broker that asks an authorizer, with a super user."""
    return await new_broker(storage, authorizer_class_name=STANDARD, super_users=ROOT, **settings)


def creation(**values: Any) -> AclCreation:
    """Return an ACL that allows alice to read the topic orders, with other values for some fields."""
    given = {
        "resource_type": ResourceType.TOPIC,
        "resource_name": "orders",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    return AclCreation(**{**given, **values})


def selection(**values: Any) -> dict[str, Any]:
    """Return the fields of a filter for all ACLs, with other values for some."""
    given = {
        "resource_type_filter": ResourceType.ANY,
        "resource_name_filter": None,
        "pattern_type_filter": PatternType.ANY,
        "principal_filter": None,
        "host_filter": None,
        "operation": Operation.ANY,
        "permission_type": Permission.ANY,
    }
    return {**given, **values}


async def create_acls(
    broker: Broker, *creations: AclCreation, version: int = 3, principal: str = ROOT
) -> Any:
    """Create ACLs, and return the result of each."""
    request = CreateAclsRequest(creations=list(creations))
    return (await ask(broker, CREATE, version, request, principal=principal)).results


async def describe_acls(broker: Broker, *, version: int = 3, principal: str = ROOT, **values: Any) -> Any:
    """Return the response to DescribeAcls."""
    request = DescribeAclsRequest(**selection(**values))
    return await ask(broker, DESCRIBE, version, request, principal=principal)


async def delete_acls(
    broker: Broker, *filters: dict[str, Any], version: int = 3, principal: str = ROOT
) -> Any:
    """Delete ACLs, and return the result of each filter."""
    request = DeleteAclsRequest(filters=[DeleteAclsFilter(**each) for each in filters])
    return (await ask(broker, DELETE, version, request, principal=principal)).filter_results


async def names_of(broker: Broker, **values: Any) -> list[str]:
    """Return the names of the resources that ACLs are on."""
    return [each.resource_name for each in (await describe_acls(broker, **values)).resources]
