"""ACLs in Kafka's terms: operations, resource patterns, permissions, and filters over them.

The numbers of all enumerations are those of Kafka's protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, TypeVar

from attrs import frozen

from korvet.protocol.errors import InvalidRequest

if TYPE_CHECKING:
    from korvet.protocol.messages.delete_acls import DeleteAclsFilter
    from korvet.protocol.messages.describe_acls import DescribeAclsRequest

E = TypeVar("E", bound=IntEnum)

WILDCARD = "*"
WILDCARD_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"


class Operation(IntEnum):
    """AclOperation. ANY is for filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """The types of resources. ANY is for filters only."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """The way a resource pattern matches names. ANY and MATCH are for filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """AclPermissionType. ANY is for filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


#: The operations that each type of resource supports (AclEntry.supportedOperations).
SUPPORTED: Mapping[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            Operation.READ,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset(
        {Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}
    ),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}


@frozen(order=True)
class Acl:
    """A rule: a principal on a host is allowed, or denied, an operation on the resources of a pattern."""

    resource_type: ResourceType
    pattern_type: PatternType
    resource_name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


def checked_acl(
    resource_type: int,
    pattern_type: int,
    resource_name: str,
    principal: str,
    host: str,
    operation: int,
    permission: int,
) -> Acl:
    """Return an ACL of the protocol's numbers. Raises InvalidRequest, with Kafka's words."""
    if resource_type == ResourceType.CLUSTER and resource_name != CLUSTER_NAME:
        raise InvalidRequest(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not resource_name:
        raise InvalidRequest("Invalid empty resource name")
    if ":" not in principal:
        raise InvalidRequest(f"Could not parse principal from `{principal}` (no colon is present)")
    acl = Acl(
        member(ResourceType, resource_type, "resourceType"),
        member(PatternType, pattern_type, "patternType"),
        resource_name,
        principal,
        host,
        member(Operation, operation, "operation"),
        member(Permission, permission, "permissionType"),
    )
    for name, value in (
        ("resourceType", acl.resource_type),
        ("patternType", acl.pattern_type),
        ("operation", acl.operation),
        ("permissionType", acl.permission),
    ):
        if value.name in ("ANY", "MATCH"):
            raise InvalidRequest(f"Invalid {name} {value.name}")
    return acl


def member(kind: type[E], number: int, name: str) -> E:
    """Return the member with that number. Raises InvalidRequest, which names the field."""
    try:
        return kind(number)
    except ValueError:
        raise InvalidRequest(f"Invalid {name} UNKNOWN") from None


@frozen
class AclFilter:
    """A filter over ACLs. ANY, or None for a text, matches every value.

    MATCH selects the patterns that apply to the resource `resource_name`: its own, prefixes of it, and the wildcard.
    """

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    resource_name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: Acl) -> bool:
        """Return True if the filter selects the ACL."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.resource_name in (None, acl.resource_name):
            return True
        if self.pattern_type is not PatternType.MATCH or self.resource_name is None:
            return False
        if acl.pattern_type is PatternType.PREFIXED:
            return self.resource_name.startswith(acl.resource_name)
        return acl.resource_name == WILDCARD


def checked_filter(given: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter of a request, which has the protocol's numbers. Raises InvalidRequest."""
    return AclFilter(
        member(ResourceType, given.resource_type_filter, "resourceType"),
        member(PatternType, given.pattern_type_filter, "patternType"),
        given.resource_name_filter,
        given.principal_filter,
        given.host_filter,
        member(Operation, given.operation, "operation"),
        member(Permission, given.permission_type, "permissionType"),
    )
