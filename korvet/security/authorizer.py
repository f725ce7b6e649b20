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
from collections.abc import Collection, Iterator, Mapping, Sequence

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
# Limits of the cached rights: of clients (principal, host and type of resource), and of names for each of them.
MOST_CLIENTS = 5_000
MOST_NAMES = 10_000
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
    literal: dict[str, ByPrincipal] = field(factory=dict)
    _prefixed: dict[str, ByPrincipal] = field(factory=dict)
    _prefixes: list[str] = field(factory=list)  # sorted
    # The longest other prefix that a prefix begins with.
    _shorter: dict[str, str | None] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        for acl in self.acls:
            patterns = self._prefixed if acl.pattern_type is PatternType.PREFIXED else self.literal
            of_pattern = patterns.setdefault(acl.resource_name, {})
            of_pattern.setdefault((acl.principal, acl.host), Rights()).add(acl)
        self._prefixes = sorted(self._prefixed)
        before: str | None = None
        for prefix in self._prefixes:
            self._shorter[prefix] = self._longest(before, prefix)
            before = prefix

    def prefix_of(self, name: str) -> str | None:
        """Return the longest prefix among the ACLs that a name begins with."""
        if not self._prefixes:
            return None
        place = bisect_right(self._prefixes, name)
        return self._longest(self._prefixes[place - 1], name) if place else None

    def unnamed(self, prefix: str | None) -> Iterator[ByPrincipal]:
        """Yield the rights of every pattern that matches the names with that longest prefix, except their own."""
        if (rights := self.literal.get(WILDCARD)) is not None:
            yield rights
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
class ClientRights:
    """The operations that one principal on one host may do on resources of one type.

    Only names that have ACLs of their own are cached one by one. All other names are decided by their longest prefix,
    so that requests with very many names take no memory.
    """

    _index: AclIndex
    _claims: tuple[tuple[str, str], ...]
    _otherwise: int  # the operations on a resource without any ACL
    _by_name: dict[str, int] = field(factory=dict)
    _by_prefix: dict[str | None, int] = field(factory=dict)

    def operations(self, name: str) -> int:
        """Return the bit field of the operations that are allowed on a resource."""
        operations = self._by_name.get(name)
        if operations is not None:
            return operations
        prefix = self._index.prefix_of(name)
        if (named := self._index.literal.get(name)) is not None:
            if len(self._by_name) >= MOST_NAMES:
                self._by_name.clear()
            operations = self._by_name[name] = self._decide([named, *self._index.unnamed(prefix)])
            return operations
        operations = self._by_prefix.get(prefix)
        if operations is None:
            operations = self._by_prefix[prefix] = self._decide([*self._index.unnamed(prefix)])
        return operations

    def _decide(self, patterns: Sequence[ByPrincipal]) -> int:
        if not patterns:
            return self._otherwise
        allowed = denied = 0
        for rights_of in patterns:
            for claim in self._claims:
                if (rights := rights_of.get(claim)) is not None:
                    allowed |= rights.allowed
                    denied |= rights.denied
        return allowed & ~denied


@define(eq=False)
class StandardAuthorizer(Authorizer):
    """Kafka's StandardAuthorizer: deny before allow, and super users before both.

    If no ACL is on a resource, `allow_everyone_if_no_acl_found` decides. An ACL of any principal for any operation
    counts as one on the resource.
    """

    super_users: frozenset[str] = frozenset()
    allow_everyone_if_no_acl_found: bool = False
    _indexes: Mapping[ResourceType, AclIndex] = field(factory=dict)
    _clients: dict[tuple[str, str, ResourceType], ClientRights] = field(factory=dict)

    def authorize(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        client = self._clients.get((principal, host, resource_type))
        if client is None:
            client = self._client(principal, host, resource_type)
        return bool(client.operations(name) >> operation & 1)

    def _client(self, principal: str, host: str, resource_type: ResourceType) -> ClientRights:
        if len(self._clients) >= MOST_CLIENTS:
            self._clients.clear()
        everything = principal in self.super_users
        index = NO_ACLS if everything else self._indexes.get(resource_type, NO_ACLS)
        otherwise = EVERYTHING if everything or self.allow_everyone_if_no_acl_found else 0
        client = ClientRights(index, _claims(principal, host), otherwise)
        self._clients[principal, host, resource_type] = client
        return client

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
        self._clients.clear()


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
