"""Avro schemas that refer to other schemas of the registry: each type is put where it is first used.

A reference names a record, enum or fixed by its full name. The result is a schema without references, which any
library of Avro parses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.registry import Registry, Schema

NAMED = ("record", "error", "enum", "fixed")


@cache
def whole_schema(registry: Registry, schema: Schema) -> str:
    """Return the text of a schema with the types that it refers to, directly or through other schemas.

    Raises NotRegistered for a reference without a schema, RegistryError, SchemaFault.
    """
    if not schema.references:
        return schema.text
    definitions: dict[str, Any] = {}
    for reference, found in registry.referenced(schema):
        definition = loaded(found.text)
        if not is_named(definition):
            raise SchemaFault(f"{reference.name} refers to a schema that has no name: {reference.subject}.")
        definitions[".".join(filter(None, full_name(definition, "")))] = definition
    return json.dumps(placed(loaded(schema.text), "", definitions, set()))


def placed(node: Any, namespace: str, definitions: Mapping[str, Any], defined: set[str]) -> Any:
    """Return a part of a schema with the first use of each type in `definitions` replaced by its definition.

    `defined` are the full names of the types so far.
    """
    if isinstance(node, list):
        return [placed(each, namespace, definitions, defined) for each in node]
    if isinstance(node, str):
        name = node if "." in node or not namespace else f"{namespace}.{node}"
        if name in definitions and name not in defined:
            return placed(definitions[name], "", definitions, defined)
        return node
    if not isinstance(node, dict):
        return node
    made = dict(node)
    if is_named(node):
        namespace, name = full_name(node, namespace)
        defined.add(f"{namespace}.{name}" if namespace else name)
        made |= {"name": name, "namespace": namespace}
    for key in ("items", "values"):
        if key in node:
            made[key] = placed(node[key], namespace, definitions, defined)
    if "fields" in node:
        made["fields"] = [
            {**each, "type": placed(each["type"], namespace, definitions, defined)} for each in node["fields"]
        ]
    elif not is_named(node):
        made["type"] = placed(node["type"], namespace, definitions, defined)
    return made


def is_named(node: Any) -> bool:
    return isinstance(node, dict) and node.get("type") in NAMED and "name" in node


def full_name(definition: Mapping[str, Any], enclosing: str) -> tuple[str, str]:
    """Return the namespace of a named type, and its name there."""
    namespace, _, name = str(definition["name"]).rpartition(".")
    return namespace or str(definition.get("namespace", enclosing) or ""), name


def loaded(text: str) -> Any:
    """Parse the JSON of a schema; a name alone is a schema, too. Raises SchemaFault."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise SchemaFault(f"The Avro schema does not parse: {error}") from None
