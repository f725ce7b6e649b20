"""Actions that alter the cluster: a form, a confirmation that names what will be lost, and the execution.

A GET with the fields of the form returns the confirmation and alters nothing. The confirmation posts the same fields,
and the action is planned once more before it is executed. The cluster decides by the visitor's ACLs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from attrs import frozen
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from korvet.protocol.errors import ErrorCode, KafkaError
from korvet.web.inputs import BadInput
from korvet.web.sessions import Visitor
from korvet.web.site import READ_ONLY, Handler, Refused, Site, explained

PREVIEW = "preview"
MAX_LINES = 50
#: The fields that the cluster's errors are about.
FIELDS = {
    ErrorCode.INVALID_TOPIC_EXCEPTION: "name",
    ErrorCode.TOPIC_ALREADY_EXISTS: "name",
    ErrorCode.INVALID_PARTITIONS: "partitions",
    ErrorCode.INVALID_REPLICATION_FACTOR: "replicas",
    ErrorCode.INVALID_CONFIG: "settings",
}


@frozen
class Input:
    """A field of a form. `options` make it a choice, `rows` a text area."""

    name: str
    label: str
    options: Sequence[str] = ()
    placeholder: str = ""
    rows: int = 0
    is_number: bool = False
    default: str = ""


@frozen
class Form:
    """A form that asks for the fields of an action. `back` is the page to return to."""

    title: str
    inputs: Sequence[Input]
    button: str
    back: str
    note: str = ""


@frozen
class Plan:
    """An action that waits for its confirmation.

    `done` says what will be done, `lost` what will be lost by it, one line each. `execute` raises KafkaError.
    """

    title: str
    button: str
    back: str
    done: Sequence[str]
    lost: Sequence[str]
    execute: Callable[[], Awaitable[None]]
    #: Fields that are asked for with the confirmation, and are not in its address: passwords.
    asks_password: bool = False


PlanOf = Callable[[Visitor, Request, Mapping[str, str]], Awaitable[Plan]]
FormOf = Callable[[Request], Form]


def asking(plan_of: PlanOf, form_of: FormOf | None = None) -> Handler:
    """Return the handler of GET: the form, or with its fields the confirmation."""

    async def ask(site: Site, request: Request, visitor: Visitor) -> Response:
        if not site.options.write:
            raise Refused(READ_ONLY)
        fields = dict(request.query_params)
        if form_of is not None and PREVIEW not in fields:
            return _form(site, request, form_of(request), fields, {})
        try:
            plan = await plan_of(visitor, request, fields)
        except (BadInput, KafkaError) as error:
            if form_of is None:
                raise
            return _form(site, request, form_of(request), fields, _faults(error))
        return _confirmation(site, request, plan, fields)

    return ask


def executing(plan_of: PlanOf) -> Handler:
    """Return the handler of POST, which executes the action."""

    async def execute(site: Site, request: Request, visitor: Visitor) -> Response:
        fields = await site.written(request)
        plan = await plan_of(visitor, request, fields)
        try:
            await plan.execute()
        except (BadInput, KafkaError) as error:
            return _confirmation(site, request, plan, fields, "".join(_faults(error).values()))
        return RedirectResponse(plan.back, 303)

    return execute


def _faults(error: BadInput | KafkaError) -> dict[str, str]:
    """Return the message of an error by the field that it is about."""
    if isinstance(error, BadInput):
        return {error.field: str(error)}
    return {FIELDS.get(error.error_code, ""): explained(error)}


def _form(
    site: Site, request: Request, form: Form, fields: Mapping[str, str], faults: Mapping[str, str]
) -> Response:
    known = {each.name for each in form.inputs}
    shown = {name if name in known else "": text for name, text in faults.items()}
    values = {"form": form, "fields": fields, "faults": shown}
    return site.render(request, "form.html", values, status=400 if faults else 200)


def _confirmation(
    site: Site, request: Request, plan: Plan, fields: Mapping[str, str], fault: str = ""
) -> Response:
    hidden = {name: text for name, text in fields.items() if name not in ("password", PREVIEW)}
    values = {"plan": plan, "fields": hidden, "fault": fault, "most": MAX_LINES}
    return site.render(request, "confirm.html", values, status=400 if fault else 200)
