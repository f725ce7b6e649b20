"""JSON Schema: a schema and those that it refers to, as one unit, and the validator for its values.

Nothing is fetched by a `$ref`: it leads to the schema itself, or to a reference of the registry. A schema without
`$schema` is one of draft 7, as for Confluent's registry. Formats are not validated, as by Confluent's clients.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any, NoReturn
from urllib.parse import urljoin

import jsonschema_rs
from attrs import frozen

from korvet.pipeline.decoding.confluent import SchemaId
from korvet.pipeline.decoding.leaves import SchemaFault, Unfit
from korvet.pipeline.decoding.registry import NotRegistered, Registry, Schema

DRAFT_7 = "http://json-schema.org/draft-07/schema#"


@frozen
class Documents:
    """The text of a schema, and of those that it refers to with their names, which `$ref` uses."""

    text: str
    referenced: tuple[tuple[str, str], ...] = ()


def documents_of(registry: Registry, schema: Schema) -> Documents:
    """Return a registered schema and its references. Raises SchemaFault, NotRegistered, RegistryError."""
    if schema.kind != "JSON":
        raise SchemaFault(f"The schema is one for {schema.kind}, not for JSON.")
    referenced = registry.referenced(schema)
    return Documents(schema.text, tuple((reference.name, found.text) for reference, found in referenced))


@cache
def written_with(registry: Registry, number: SchemaId) -> jsonschema_rs.Validator:
    """Return the validator of the writer's schema. Raises Unfit, RegistryError."""
    try:
        return validator_of(documents_of(registry, registry.written_with(number, "JSON")))
    except (NotRegistered, SchemaFault) as error:
        raise Unfit(f"schema {number}: {error}") from None


@cache
def validator_of(documents: Documents) -> jsonschema_rs.Validator:
    """Return the validator of a schema. Raises SchemaFault."""
    root, resources = parsed(documents)
    try:
        known = jsonschema_rs.Registry(list(resources.items()), retriever=refuse_to_fetch)
        return jsonschema_rs.validator_for(
            root, registry=known, retriever=refuse_to_fetch, validate_formats=False
        )
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        raise SchemaFault(f"The JSON Schema cannot be used: {first_line(error)}") from None


def refuse_to_fetch(_uri: str) -> NoReturn:
    raise ValueError("the registry has no reference of this name")


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def parsed(documents: Documents) -> tuple[Any, dict[str, Any]]:
    """Return the schema, and those it refers to by their URIs. Raises SchemaFault."""
    root = loaded(documents.text)
    contents = {name: loaded(text) for name, text in documents.referenced}
    bases = {str(each["$id"]) for each in (root, *contents.values()) if "$id" in each}
    # A `$ref` is relative to the `$id` of the schema that has it, so a name has several URIs.
    resources = {str(each["$id"]): each for each in contents.values() if "$id" in each}
    resources |= {urljoin(base, name): each for name, each in contents.items() for base in sorted(bases)}
    return root, resources | contents


def loaded(text: str) -> Any:
    """Return a schema with its draft. Raises SchemaFault."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaFault(f"The JSON Schema does not parse: {error}") from None
    if isinstance(schema, bool):  # true accepts every value, as {} does; false none
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise SchemaFault("The JSON Schema is not an object.")
    return {"$schema": DRAFT_7, **schema}
