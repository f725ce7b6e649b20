"""The ACLs of all brokers on a store, in one document. A broker does not start without them.

Missing ACLs may deny nothing, so a broker never continues with fewer than it has read.
"""

from __future__ import annotations

from typing import Any

from korvet.security.acls import Acl, Operation, PatternType, Permission, ResourceType
from korvet.security.shared_document import SharedDocument


class AclStore(SharedDocument[frozenset[Acl]]):
    """The stored ACLs."""

    kind = "acls"
    noun = "ACLs"

    @staticmethod
    def as_json(value: frozenset[Acl]) -> list[Any]:
        return [
            [
                acl.resource_type.name,
                acl.pattern_type.name,
                acl.resource_name,
                acl.principal,
                acl.host,
                acl.operation.name,
                acl.permission.name,
            ]
            for acl in sorted(value)
        ]

    @staticmethod
    def from_json(elements: list[Any]) -> frozenset[Acl]:
        return frozenset(_acl(*row) for row in elements)


def _acl(
    kind: str, pattern: str, name: str, principal: str, host: str, operation: str, permission: str
) -> Acl:
    if not all(isinstance(text, str) for text in (name, principal, host)):
        raise TypeError("a name, principal or host is no string")
    return Acl(
        ResourceType[kind],
        PatternType[pattern],
        name,
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )
