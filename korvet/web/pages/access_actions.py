"""Create and delete ACLs, set and delete passwords of users, and set quotas."""

from __future__ import annotations

from collections.abc import Mapping

import trio
from starlette.requests import Request

from korvet.client.acls import create_acls, delete_acls, list_acls
from korvet.client.administration import alter_user, describe_users
from korvet.client.quotas import alter_quotas, list_quotas
from korvet.protocol.errors import InvalidRequest
from korvet.protocol.messages.alter_user_scram_credentials import (
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from korvet.security.acls import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    checked_acl,
)
from korvet.security.quotas import CLIENT_KEYS, IP_KEYS, Entity, entity_of, validate_alteration
from korvet.security.scram import MECHANISMS, ScramMechanism, new_salt, salted_password
from korvet.web.inputs import BadInput, choice, shortened
from korvet.web.pages.actions import Form, Input, Plan
from korvet.web.sessions import Visitor
from korvet.web.site import NotHere

ITERATIONS = 4096
BACK = "/access"
RESOURCES = tuple(each.name.lower() for each in ResourceType if each != ResourceType.ANY)
OPERATIONS = tuple(each.name.lower() for each in Operation if each != Operation.ANY)
PATTERNS, PERMISSIONS = ("literal", "prefixed"), ("allow", "deny")
ENTITIES = ("user", "client-id", "ip")
KEYS = (*CLIENT_KEYS, *IP_KEYS)
DEFAULT = "<default>"


# --- ACLs -------------------------------------------------------------------------------------------------


def acl_form(_request: Request) -> Form:
    inputs = (
        Input("principal", "Principal", placeholder="User:alice"),
        Input("host", "Host", default="*"),
        Input("permission", "Permission", options=PERMISSIONS, default="allow"),
        Input("operation", "Operation", options=OPERATIONS, default="read"),
        Input("resource", "Resource", options=RESOURCES, default="topic"),
        Input("name", "Name", placeholder="orders, or * for all; nothing for the cluster"),
        Input("pattern", "Pattern", options=PATTERNS, default="literal"),
    )
    return Form("Create an ACL", inputs, "Preview", BACK)


def acl_of(fields: Mapping[str, str]) -> Acl:
    """Return the ACL of a form. Raises BadInput and InvalidRequest."""
    principal = fields.get("principal", "").strip()
    if ":" not in principal:
        raise BadInput(f"principal is {shortened(principal)}; accepted: User:NAME, or User:*.", "principal")
    resource = ResourceType[choice(fields, "resource", RESOURCES).upper()]
    name = fields.get("name", "").strip() or (CLUSTER_NAME if resource == ResourceType.CLUSTER else "")
    if not name:
        raise BadInput(f"the name of the {resource.name.lower()} is missing; accepted: a name, or *.", "name")
    return checked_acl(
        resource,
        PatternType[choice(fields, "pattern", PATTERNS).upper()],
        name,
        principal,
        fields.get("host", "").strip() or "*",
        Operation[choice(fields, "operation", OPERATIONS).upper()],
        Permission[choice(fields, "permission", PERMISSIONS).upper()],
    )


def acl_text(acl: Acl) -> str:
    return (
        f"{acl.principal} on host {acl.host} is {'allowed' if acl.permission == Permission.ALLOW else 'denied'} "
        f"{acl.operation.name.lower()} on {acl.pattern_type.name.lower()} {acl.resource_type.name.lower()} "
        f"{acl.resource_name}"
    )


def acl_fields(acl: Acl) -> dict[str, str]:
    """Return the fields of the form that describe an ACL."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "permission": acl.permission.name.lower(),
        "operation": acl.operation.name.lower(),
        "resource": acl.resource_type.name.lower(),
        "name": acl.resource_name,
        "pattern": acl.pattern_type.name.lower(),
    }


async def create_acl(visitor: Visitor, _request: Request, fields: Mapping[str, str]) -> Plan:
    acl = acl_of(fields)

    async def execute() -> None:
        await create_acls(visitor.client, [acl])

    lost = [f"access that {acl.principal} has now"] if acl.permission == Permission.DENY else []
    others = await list_acls(visitor.client, [_same_resource(acl)])
    if not others:
        lost.append(
            f"access of others to {acl.resource_type.name.lower()} {acl.resource_name}, if the cluster allows "
            "everyone where no ACL is found: this is the first one of this pattern"
        )
    return Plan("Create an ACL", "Create the ACL", BACK, [acl_text(acl)], lost, execute)


async def delete_acl(visitor: Visitor, _request: Request, fields: Mapping[str, str]) -> Plan:
    acl = acl_of(fields)
    selection = AclFilter(
        acl.resource_type,
        acl.pattern_type,
        acl.resource_name,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission,
    )
    if acl not in await list_acls(visitor.client, [selection]):
        raise NotHere("There is no such ACL any more.")

    async def execute() -> None:
        await delete_acls(visitor.client, [selection])

    lost = [f"this ACL: {acl_text(acl)}"]
    if len(await list_acls(visitor.client, [_same_resource(acl)])) == 1:
        lost.append(
            "the last ACL of this pattern: others may have access then, if the cluster allows everyone"
        )
    return Plan("Delete an ACL", "Delete the ACL", BACK, ["the ACL is deleted"], lost, execute)


def _same_resource(acl: Acl) -> AclFilter:
    return AclFilter(acl.resource_type, acl.pattern_type, acl.resource_name)


# --- Users ------------------------------------------------------------------------------------------------


def user_form(_request: Request) -> Form:
    inputs = (
        Input("user", "User"),
        Input("mechanism", "Mechanism", options=tuple(MECHANISMS), default="SCRAM-SHA-512"),
    )
    return Form("Add a user, or replace a password", inputs, "Continue", BACK)


def _user_of(fields: Mapping[str, str]) -> tuple[str, ScramMechanism]:
    user = fields.get("user", "").strip()
    if not user:
        raise BadInput("the name of the user is missing.", "user")
    return user, MECHANISMS[choice(fields, "mechanism", tuple(MECHANISMS))]


async def set_password(visitor: Visitor, _request: Request, fields: Mapping[str, str]) -> Plan:
    user, mechanism = _user_of(fields)
    known = await describe_users(visitor.client)
    password = fields.get("password", "")

    async def execute() -> None:
        if not password:
            raise BadInput("the password is missing.", "password")
        salt = new_salt()
        try:
            salted = await trio.to_thread.run_sync(salted_password, mechanism, password, salt, ITERATIONS)
        except ValueError as error:
            raise BadInput(f"the password is not accepted: {error}", "password") from None
        change = ScramCredentialUpsertion(
            name=user, mechanism=mechanism, iterations=ITERATIONS, salt=salt, salted_password=salted
        )
        await alter_user(visitor.client, change)

    is_known = mechanism in known.get(user, {})
    done = [f"user {user} logs in with a password by {mechanism.sasl_name}"]
    lost = [f"the password that {user} has for {mechanism.sasl_name} now"] if is_known else []
    title = f"{'Replace the password of' if is_known else 'Add'} user {user}"
    return Plan(title, "Set the password", BACK, done, lost, execute, asks_password=True)


async def delete_user(visitor: Visitor, _request: Request, fields: Mapping[str, str]) -> Plan:
    user, mechanism = _user_of(fields)
    if mechanism not in (await describe_users(visitor.client)).get(user, {}):
        raise NotHere(f"There is no user {user} with a password for {mechanism.sasl_name} any more.")

    async def execute() -> None:
        await alter_user(visitor.client, ScramCredentialDeletion(name=user, mechanism=mechanism))

    lost = [f"the password of {user} for {mechanism.sasl_name}: new logins with it fail"]
    done = [f"user {user} cannot log in by {mechanism.sasl_name} any more; open connections stay"]
    return Plan(f"Delete user {user}", "Delete the password", BACK, done, lost, execute)


# --- Quotas -----------------------------------------------------------------------------------------------


def quota_form(_request: Request) -> Form:
    inputs = (
        *(Input(kind, kind, placeholder=f"nobody's; {DEFAULT} for all others") for kind in ENTITIES),
        Input("key", "Quota", options=KEYS, default=KEYS[0]),
        Input("value", "Value", placeholder="nothing removes the quota"),
    )
    return Form("Set a quota", inputs, "Preview", BACK, "Bytes per second, percent, or requests per second.")


async def set_quota(visitor: Visitor, _request: Request, fields: Mapping[str, str]) -> Plan:
    names = {kind: fields.get(kind, "").strip() for kind in ENTITIES}
    entity = entity_of({kind: None if name == DEFAULT else name for kind, name in names.items() if name})
    if not entity:
        raise BadInput(
            "no user, client-id or ip is named; accepted: one, or a user with a client-id.", "user"
        )
    key, text = choice(fields, "key", KEYS), fields.get("value", "").strip()
    try:
        value = float(text) if text else None
    except ValueError:
        raise BadInput(f"value is {shortened(text)}; accepted: a number, or nothing.", "value") from None
    try:
        validate_alteration(entity, {key: value})
    except InvalidRequest as error:
        raise BadInput(error.message, "value") from None
    before = (await list_quotas(visitor.client, entity, is_strict=True)).get(entity, {}).get(key)

    async def execute() -> None:
        await alter_quotas(visitor.client, entity, {key: value})

    done = [f"{key} of {entity_text(entity)}: from {_text(before)} to {_text(value)}"]
    lost = [] if before is None else [f"the quota {key} = {before:,.10g} of {entity_text(entity)}"]
    return Plan("Set a quota", "Set the quota", BACK, done, lost, execute)


def entity_text(entity: Entity) -> str:
    return ", ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in entity)


def quota_fields(entity: Entity, key: str) -> dict[str, str]:
    """Return the fields of the form that describe a quota."""
    return {**{kind: DEFAULT if name is None else name for kind, name in entity}, "key": key}


def _text(value: float | None) -> str:
    return "no quota" if value is None else f"{value:,.10g}"
