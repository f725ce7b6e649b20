"""The interface of authorizers, and the built-in one, which decides as Kafka's StandardAuthorizer does.

Another package adds an authorizer by an entry point of the group `korvet.authorizer`, whose name
`authorizer.class.name` then contains:

    [project.entry-points."korvet.authorizer"]
    policy = "my_package:PolicyAuthorizer"

The entry point names a callable that takes the broker's `Config` and returns an `Authorizer`. It raises
`AuthorizerUsageError` for settings that it does not accept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping

from attrs import define, field

from korvet.security.acls import (
    WILDCARD,
    WILDCARD_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

GROUP = "korvet.authorizer"
STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

# Operations that an allowed operation includes. A denied operation includes none.
IMPLIED: Mapping[Operation, tuple[Operation, ...]] = {
    Operation.READ: (Operation.DESCRIBE,),
    Operation.WRITE: (Operation.DESCRIBE,),
    Operation.DELETE: (Operation.DESCRIBE,),
    Operation.ALTER: (Operation.DESCRIBE,),
    Operation.ALTER_CONFIGS: (Operation.DESCRIBE_CONFIGS,),
}
EVERYTHING = sum(1 << operation for operation in Operation)
# Limit of cached decisions. One takes some 300 bytes.
MOST_DECISIONS = 50_000
# The name by which Kafka decides first whether an operation is allowed on any resource of a type.
ANY_NAME = "hardcode"


class AuthorizerUsageError(Exception):
    """The configured authorizer cannot be used. The message is one line for the operator."""


class Authorizer(ABC):
    """Decides which principal may do which operation on which resource.

    The broker calls it for every resource of every request, so it must not block.
    """

    @abstractmethod
    def authorize(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return True if the principal, connected from the host's address, may do the operation."""

    def authorize_by_type(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return True if the principal may do the operation on at least one resource of that type."""
        return self.authorize(principal, host, operation, resource_type, ANY_NAME)

    def acls_changed(self, acls: Collection[Acl]) -> None:  # noqa: B027  not all authorizers use them
        """Replace the ACLs. The broker calls this when it starts, and whenever the stored ACLs have changed."""


@define(eq=False)
class Rights:
    """Bit fields of the operations that ACLs allow and deny."""

    allowed: int = 0
    denied: int = 0

    def add(self, acl: Acl) -> None:
        if acl.operation is Operation.ALL:
            operations = EVERYTHING
        elif acl.permission is Permission.ALLOW:
            operations = sum(1 << each for each in (acl.operation, *IMPLIED.get(acl.operation, ())))
        else:
            operations = 1 << acl.operation
        if acl.permission is Permission.ALLOW:
            self.allowed |= operations
        else:
            self.denied |= operations


#: The rights on a resource pattern, by principal and host.
ByPrincipal = dict[tuple[str, str], Rights]


@define(eq=False)
class AclIndex:
    """The ACLs on resources of one type, by the name of their pattern."""

    acls: list[Acl] = field(factory=list)
    _literal: dict[str, ByPrincipal] = field(factory=dict)
    _prefixed: dict[str, ByPrincipal] = field(factory=dict)
    _prefixes: list[str] = field(factory=list)  # sorted
    _shorter: dict[str, str | None] = field(
        factory=dict
    )  # the longest other prefix that a prefix begins with

    def __attrs_post_init__(self) -> None:
        for acl in self.acls:
            patterns = self._prefixed if acl.pattern_type is PatternType.PREFIXED else self._literal
            of_pattern = patterns.setdefault(acl.resource_name, {})
            of_pattern.setdefault((acl.principal, acl.host), Rights()).add(acl)
        self._prefixes = sorted(self._prefixed)
        before: str | None = None
        for prefix in self._prefixes:
            self._shorter[prefix] = self._longest(before, prefix)
            before = prefix

    def matching(self, name: str) -> Iterator[ByPrincipal]:
        """Yield the rights of every pattern that matches a name."""
        for literal in {name, WILDCARD}:
            if (rights := self._literal.get(literal)) is not None:
                yield rights
        place = bisect_right(self._prefixes, name)
        prefix = self._longest(self._prefixes[place - 1], name) if place else None
        while prefix is not None:
            yield self._prefixed[prefix]
            prefix = self._shorter[prefix]

    def _longest(self, prefix: str | None, name: str) -> str | None:
        """Return the longest prefix of a name. `prefix` is the last one that is sorted before the name."""
        # Every prefix that is sorted between a name and a prefix of the name begins with the latter.
        while prefix is not None and not name.startswith(prefix):
            prefix = self._shorter[prefix]
        return prefix


NO_ACLS = AclIndex()


@define(eq=False)
class StandardAuthorizer(Authorizer):
    """Kafka's StandardAuthorizer: deny before allow, and super users before both.

    If no ACL is on a resource, `allow_everyone_if_no_acl_found` decides. An ACL of any principal for any operation
    counts as one on the resource.
    """

    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False
    _indexes: Mapping[ResourceType, AclIndex] = field(factory=dict)
    _decisions: dict[tuple[str, str, ResourceType, str], int] = field(factory=dict)

    def authorize(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        key = principal, host, resource_type, name
        operations = self._decisions.get(key)
        if operations is None:
            operations = self._decide(key)
        return bool(operations >> operation & 1)

    def _decide(self, key: tuple[str, str, ResourceType, str]) -> int:
        """Compute and cache the bit field of the operations that are allowed on a resource."""
        if len(self._decisions) >= MOST_DECISIONS:
            self._decisions.clear()
        operations = self._decisions[key] = self._operations(*key)
        return operations

    def _operations(self, principal: str, host: str, resource_type: ResourceType, name: str) -> int:
        if principal in self.super_users:
            return EVERYTHING
        index = self._indexes.get(resource_type, NO_ACLS)
        allowed = denied = 0
        has_acls = False
        for rights_of in index.matching(name):
            has_acls = True
            for claim in _claims(principal, host):
                if (rights := rights_of.get(claim)) is not None:
                    allowed |= rights.allowed
                    denied |= rights.denied
        if not has_acls:
            return EVERYTHING if self.allow_everyone_if_no_acl_found else 0
        return allowed & ~denied

    def authorize_by_type(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """See `Authorizer`. Only ACLs for this operation or ALL count, as in Kafka; implied operations do not."""
        if self.authorize(principal, host, operation, resource_type, ANY_NAME):
            return True
        index = self._indexes.get(resource_type, NO_ACLS)
        patterns: dict[tuple[Permission, PatternType], set[str]] = {}
        claims = set(_claims(principal, host))
        for acl in index.acls:
            if (acl.principal, acl.host) in claims and acl.operation in (operation, Operation.ALL):
                patterns.setdefault((acl.permission, acl.pattern_type), set()).add(acl.resource_name)
        return _allows_any(patterns)

    def acls_changed(self, acls: Collection[Acl]) -> None:
        by_type: dict[ResourceType, list[Acl]] = {}
        for acl in acls:
            by_type.setdefault(acl.resource_type, []).append(acl)
        self._indexes = {kind: AclIndex(of_kind) for kind, of_kind in by_type.items()}
        self._decisions.clear()


def _claims(principal: str, host: str) -> tuple[tuple[str, str], ...]:
    """Return the principals and hosts of the ACLs that apply to a client."""
    return (
        (principal, host),
        (principal, WILDCARD),
        (WILDCARD_PRINCIPAL, host),
        (WILDCARD_PRINCIPAL, WILDCARD),
    )


def _allows_any(patterns: Mapping[tuple[Permission, PatternType], set[str]]) -> bool:
    """Return True unless every allowed pattern is covered by a denied one. Takes names by permission and type."""
    denied = patterns.get((Permission.DENY, PatternType.LITERAL), set())
    denied_prefixes = patterns.get((Permission.DENY, PatternType.PREFIXED), set())
    allowed = patterns.get((Permission.ALLOW, PatternType.LITERAL), set())
    if WILDCARD in denied:
        return False
    if WILDCARD in allowed:
        return True
    candidates = (allowed - denied) | patterns.get((Permission.ALLOW, PatternType.PREFIXED), set())
    return any(
        not any(name[:length] in denied_prefixes for length in range(1, len(name) + 1)) for name in candidates
    )
