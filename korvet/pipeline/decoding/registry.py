"""Client of a schema registry (the API of Confluent, Karapace and Apicurio): schemas by id, and a subject's latest.

The schema of an id never changes, so each id is requested once per process. If the registry does not answer, no record
is at fault: the round ends, and a later one continues at the same offsets.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from functools import cache
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit
from uuid import UUID

from attrs import field, frozen

from korvet.pipeline.decoding.leaves import Unfit
from korvet.urls import split_login, without_password

TIMEOUT_S = 30.0
ACCEPTED = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryError(Exception):
    """The registry cannot be reached, or its answer is invalid; the message has its address."""


class NotRegistered(LookupError):  # noqa: N818  the name states the fault
    """The registry has no such id, subject or version."""


@frozen
class Reference:
    """A reference to another schema, and the name under which it is imported."""

    name: str
    subject: str
    version: int


@frozen
class Schema:
    """A registered schema; `kind` is AVRO, PROTOBUF or JSON."""

    text: str
    kind: str
    references: tuple[Reference, ...] = ()


@frozen
class Registry:
    """A registry at a URL, which may include user and password."""

    url: str = field(repr=False)

    def by_id(self, schema_id: int | UUID) -> Schema:
        """Return the schema of a number or a GUID. Raises NotRegistered, RegistryError."""
        return by_id(self.url, schema_id)

    def written_with(self, schema_id: int | UUID, kind: str) -> Schema:
        """Return the schema that a value names, which must be of this kind. Raises Unfit, RegistryError."""
        try:
            found = self.by_id(schema_id)
        except NotRegistered as error:
            raise Unfit(str(error)) from None
        if found.kind != kind:
            raise Unfit(f"schema {schema_id} is one for {found.kind}, not for {kind}")
        return found

    def latest(self, subject: str) -> Schema:
        """Return a subject's latest version. Raises NotRegistered, RegistryError."""
        return parse(ask(self.url, f"subjects/{quote(subject, safe='')}/versions/latest"))

    def referenced(self, schema: Schema) -> list[tuple[Reference, Schema]]:
        """Return the schemas that a schema refers to, directly or through other schemas, each name once.

        Raises NotRegistered, RegistryError.
        """
        found: dict[str, tuple[Reference, Schema]] = {}
        pending = list(schema.references)
        while pending:
            reference = pending.pop(0)
            if reference.name not in found:
                each = by_version(self.url, reference.subject, reference.version)
                found[reference.name] = reference, each
                pending += each.references
        return list(found.values())


@cache
def by_id(url: str, schema_id: int | UUID) -> Schema:
    return parse(ask(url, f"schemas/{'guids' if isinstance(schema_id, UUID) else 'ids'}/{schema_id}"))


@cache
def by_version(url: str, subject: str, version: int) -> Schema:
    return parse(ask(url, f"subjects/{quote(subject, safe='')}/versions/{version}"))


def parse(answer: Any) -> Schema:
    references = tuple(
        Reference(each["name"], each["subject"], each["version"]) for each in answer.get("references") or ()
    )
    return Schema(answer["schema"], answer.get("schemaType", "AVRO"), references)


def ask(url: str, path: str) -> Any:
    """Return the JSON at a path. Raises NotRegistered for status 404, RegistryError for any other failure."""
    address, headers = split_credentials(url)
    request = urllib.request.Request(f"{address}/{path}", headers={"Accept": ACCEPTED, **headers})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  http(s) was checked
            content = json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise NotRegistered(f"the registry at {address} has no {path}") from None
        raise RegistryError(
            f"The registry at {address} answered {path} with {error.code} {error.reason}"
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise RegistryError(f"The registry at {address} does not answer: {reason}") from None
    if not isinstance(content, dict) or "schema" not in content:
        raise RegistryError(f"What is at {address}/{path} is not a schema: is this a registry's URL?")
    return content


def split_credentials(url: str) -> tuple[str, dict[str, str]]:
    """Return the URL without user and password, and the header with them."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise RegistryError(f"{without_password(url)!r} is not a registry URL: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RegistryError(f"{without_password(url)!r} is not a registry URL; accepted: http://host:8081")
    address, headers = split_login(urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", "")))
    return address, dict(headers)
