"""Authorization of requests: the configured authorizer, the ACLs it decides by, and the log of its decisions.

The logger `korvet.audit` logs denials at INFO and allowed operations at DEBUG, when the request has been handled: one
line for each operation and type of resource, however many resources the request names. It does not log decisions that
only select what a response contains: a list of topics, or the operations that a client may do.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping
from functools import lru_cache
from struct import Struct

from attrs import frozen

from korvet.broker.context import Decisions, RequestContext
from korvet.config import Config
from korvet.protocol.errors import (
    ClusterAuthorizationFailed,
    DelegationTokenAuthorizationFailed,
    GroupAuthorizationFailed,
    KafkaError,
    TopicAuthorizationFailed,
    TransactionalIdAuthorizationFailed,
)
from korvet.security.acl_store import AclStore
from korvet.security.acls import SUPPORTED, Operation, ResourceType
from korvet.security.authorizer import GROUP, STANDARD, Authorizer, AuthorizerUsageError, StandardAuthorizer
from korvet.storage.interface import Storage

audit = logging.getLogger("korvet.audit")

# The groups of an IPv6 address.
GROUPS = Struct(">8H")

ONE_RESOURCE = "resource=%(resource_type)s:%(resource)r"

ERRORS: Mapping[ResourceType, type[KafkaError]] = {
    ResourceType.TOPIC: TopicAuthorizationFailed,
    ResourceType.GROUP: GroupAuthorizationFailed,
    ResourceType.CLUSTER: ClusterAuthorizationFailed,
    ResourceType.TRANSACTIONAL_ID: TransactionalIdAuthorizationFailed,
    ResourceType.DELEGATION_TOKEN: DelegationTokenAuthorizationFailed,
}


@frozen
class Authorization:
    """An authorizer, and the stored ACLs."""

    authorizer: Authorizer
    acls: AclStore

    def allows(
        self,
        context: RequestContext,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        *,
        is_selection: bool = False,
    ) -> bool:
        """Return True if the client may do the operation. With `is_selection`, do not log that it may not."""
        host = address_of(context.peer)
        allowed = self.authorizer.authorize(context.principal, host, operation, resource_type, name)
        if allowed:
            if audit.isEnabledFor(logging.DEBUG):
                _note(logging.DEBUG, context, operation, resource_type, name)
        elif not is_selection:
            _note(logging.INFO, context, operation, resource_type, name)
        return allowed

    def basis(self, context: RequestContext) -> object:
        """Return what decisions about the client depend on. It differs from an earlier one if they may have changed."""
        if not isinstance(self.authorizer, StandardAuthorizer):
            return object()
        return context.principal, address_of(context.peer), self.acls.value

    def allows_any(self, context: RequestContext, operation: Operation, resource_type: ResourceType) -> bool:
        """Return True if the client may do the operation on at least one resource of that type."""
        host = address_of(context.peer)
        return self.authorizer.authorize_by_type(context.principal, host, operation, resource_type)

    def operations(self, context: RequestContext, resource_type: ResourceType, name: str) -> int:
        """Return the bit field of the operations that the client may do."""
        host = address_of(context.peer)
        return sum(
            1 << operation
            for operation in SUPPORTED[resource_type]
            if self.authorizer.authorize(context.principal, host, operation, resource_type, name)
        )


def _note(
    level: int, context: RequestContext, operation: Operation, resource_type: ResourceType, name: str
) -> None:
    if context.decisions is None:
        context.decisions = {}
    key = level, operation, resource_type
    if (decisions := context.decisions.get(key)) is None:
        decisions = context.decisions[key] = Decisions()
    decisions.add(name)


def log_decisions(context: RequestContext) -> None:
    """Log the decisions about a request that has been handled."""
    for (level, operation, resource_type), decisions in (context.decisions or {}).items():
        several = decisions.count > 1
        resource = "resources=%(resource_type)s:%(resources)r count=%(count)d" if several else ONE_RESOURCE
        audit.log(
            level,
            f"%(decision)s principal=%(principal)r host=%(host)s operation=%(operation)s {resource} api=%(api)s",
            {
                "decision": "denied" if level == logging.INFO else "allowed",
                "principal": context.principal,
                "host": address_of(context.peer),
                "operation": operation.name,
                "resource_type": resource_type.name,
                **({"resources": decisions.names} if several else {"resource": decisions.names[0]}),
                "count": decisions.count,
                "api": context.api_name,
                "client_id": context.client_id,
                "peer": context.peer,
            },
        )
    context.decisions = None


@lru_cache(maxsize=4096)
def address_of(peer: str) -> str:
    """Return the address of a peer, without its port, in the notation of Java, which Kafka's ACLs contain.

    IPv6 addresses are neither shortened nor padded (0:0:0:0:0:0:0:1), except that IPv4 addresses in IPv6 are IPv4.
    """
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return ":".join(f"{group:x}" for group in GROUPS.unpack(address.packed))


# --- The configured authorizer -------------------------------------------------------------------------------


async def open_authorization(storage: Storage, config: Config) -> Authorization | None:
    """Return the configured authorizer with the stored ACLs, or None if everyone may do everything.

    Raises AuthorizerUsageError, also if the ACLs cannot be read.
    """
    if not config.authorizer_class_name:
        return None
    authorizer = make_authorizer(config)
    acls = AclStore(storage, authorizer.acls_changed)
    try:
        await acls.refresh()
    except KafkaError as error:
        raise AuthorizerUsageError(f"the ACLs cannot be read: {error.message}") from error
    return Authorization(authorizer, acls)


def make_authorizer(config: Config) -> Authorizer:
    """Return the authorizer that `authorizer.class.name` names. Raises AuthorizerUsageError."""
    name = config.authorizer_class_name
    make = make_standard if name == STANDARD else installed(name)
    return make(config)


def make_standard(config: Config) -> Authorizer:
    """Return the built-in authorizer."""
    return StandardAuthorizer(
        super_users=frozenset(name.strip() for name in config.super_users.split(";") if name.strip()),
        allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
    )


def installed(name: str) -> Callable[[Config], Authorizer]:
    """Return the authorizer that an installed package has under that name. Raises AuthorizerUsageError."""
    from importlib.metadata import entry_points  # noqa: PLC0415  searching all packages takes 50 ms

    found = {each.name: each for each in entry_points(group=GROUP)}
    if name not in found:
        accepted = ", ".join([STANDARD, *sorted(found)])
        raise AuthorizerUsageError(f"authorizer.class.name={name} is unknown; accepted are {accepted}")
    try:
        make: Callable[[Config], Authorizer] = found[name].load()
    except (ImportError, AttributeError) as error:
        message = f"the authorizer {name} cannot be imported: {type(error).__name__}: {error}"
        raise AuthorizerUsageError(message) from error
    return make
