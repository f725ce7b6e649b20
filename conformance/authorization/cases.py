"""The principals of the table. Each has permissions under test on one type of resource, and all on other types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from attrs import frozen

from korvet.security.acls import (
    CLUSTER_NAME,
    SUPPORTED,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

TESTED = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
ALLOW, DENY = Permission.ALLOW, Permission.DENY
Entry = tuple[Operation, Permission]


@frozen
class Case:
    """A principal: the type of resource that it has permissions under test for, and these."""

    name: str
    tested: ResourceType
    entries: tuple[Entry, ...]

    def acls(self, principal: str, scope: str) -> list[Acl]:
        """Return the ACLs, for all resources whose names begin with `scope`.

        Everything is allowed on the types that are not tested, except on the cluster: its operations replace those of
        topics and groups.
        """
        entries: dict[ResourceType, tuple[Entry, ...]] = {self.tested: self.entries}
        if self.tested is not ResourceType.CLUSTER:
            others = set(TESTED) - {self.tested, ResourceType.CLUSTER}
            entries |= dict.fromkeys(others, ((Operation.ALL, ALLOW),))
        return [_acl(kind, scope, principal, *entry) for kind, each in entries.items() for entry in each]


def _acl(kind: ResourceType, scope: str, principal: str, operation: Operation, permission: Permission) -> Acl:
    if kind is ResourceType.CLUSTER:
        return Acl(kind, PatternType.LITERAL, CLUSTER_NAME, principal, "*", operation, permission)
    return Acl(kind, PatternType.PREFIXED, scope, principal, "*", operation, permission)


def _cases() -> Iterator[Case]:
    for kind in TESTED:
        name = kind.name.lower().replace("_", " ")
        yield Case(f"{name}: no ACL", kind, ())
        for operation in (Operation.ALL, *sorted(SUPPORTED[kind])):
            yield Case(f"{name}: allow {operation.name}", kind, ((operation, ALLOW),))
            entries = (Operation.ALL, ALLOW), (operation, DENY)
            yield Case(f"{name}: allow ALL, deny {operation.name}", kind, entries)


CASES: Mapping[str, Case] = {case.name: case for case in _cases()}
