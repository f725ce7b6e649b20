"""JSON Schema: the columns for the values of a schema.

Values that no column can have are put into a string column as JSON text: values of several types, objects and arrays
whose contents the schema does not define, tuples, and types that contain themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import pyarrow as pa
from attrs import field, frozen
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7, DRAFT202012

from korvet.pipeline.decoding.json_schema_documents import Documents, parsed
from korvet.pipeline.decoding.leaves import SchemaFault

UTC_MICROS = pa.timestamp("us", "UTC")
FORMATS = {"date": pa.date32(), "date-time": UTC_MICROS}
NUMBERS = {"integer": pa.int64(), "number": pa.float64()}
JSON_TYPES: dict[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
Convert = Callable[[Any], Any]


@frozen
class Shape:
    """The type of a column, and whether its values, or those inside of it, are put there as JSON text."""

    kind: pa.DataType
    is_text: bool = False
    fields: Mapping[str, Shape] = field(factory=dict)
    inside: Shape | None = None  # the items of an array, the values of a map


TEXT = Shape(pa.string(), is_text=True)


@frozen
class Place:
    """A part of a schema: where `$ref` leads from there, and the ids of the parts around it."""

    schema: Any
    resolver: Any  # of `referencing`
    around: frozenset[int]
    path: str

    def within(self, schema: Any, name: str = "") -> Place:
        """Return the place of a part of this one."""
        resolver = self.resolver
        if isinstance(schema, dict) and "$id" in schema:
            resolver = resolver.in_subresource(DRAFT202012.create_resource(schema))
        return Place(schema, resolver, self.around | {id(self.schema)}, f"{self.path}{name}")


class Recursive(Exception):  # noqa: N818  what was found, not an error
    """The type holds itself."""


@cache
def shape_of(documents: Documents) -> Shape:
    """Return the shape of a schema's values, which are objects with known properties. Raises SchemaFault."""
    root, resources = parsed(documents)
    known: Registry[Any] = Registry().with_resources(
        (uri, Resource.from_contents(contents, DRAFT7)) for uri, contents in resources.items()
    )
    resolver = known.resolver_with_root(Resource.from_contents(root, DRAFT7))
    shape = shape_at(Place(root, resolver, frozenset(), "$"))
    if shape is None or not shape.fields:
        raise SchemaFault("The JSON Schema is not one of objects with properties, of which columns are made.")
    return shape


def json_schema_fields(documents: Documents) -> list[pa.Field]:
    """Return the columns of a schema's values. Raises SchemaFault."""
    return list(shape_of(documents).kind)


def shape_at(place: Place) -> Shape | None:
    """Return the shape of the values at a place, None if there are none."""
    if place.schema is False:
        return None
    try:
        parts = list(parts_of(place)) if isinstance(place.schema, dict) else []
    except Recursive:
        return TEXT
    types = types_of(parts)
    if types is None:
        return alternative(parts)
    types.discard("null")
    if types and types <= NUMBERS.keys():
        return Shape(NUMBERS["number" if "number" in types else "integer"])
    if len(types) != 1:
        return TEXT
    match types.pop():
        case "boolean":
            return Shape(pa.bool_())
        case "string":
            formats = (FORMATS.get(str(part.schema.get("format"))) for part in parts)
            return Shape(next(filter(None, formats), pa.string()))
        case "array":
            return array(parts)
        case _:
            return struct(parts) or mapping(parts)


def parts_of(place: Place) -> Iterator[Place]:
    """Yield the place, and those that `$ref` and `allOf` add to it. Raises Recursive, SchemaFault."""
    if id(place.schema) in place.around:
        raise Recursive
    reference = place.schema.get("$ref")
    if isinstance(reference, str):
        try:
            found = place.resolver.lookup(reference)
        except Unresolvable:
            raise SchemaFault(
                f"{place.path}: $ref {reference!r} leads to no part of the schema, and to no reference of it."
            ) from None
        if isinstance(found.contents, dict):
            around = place.around | {id(place.schema)}
            yield from parts_of(Place(found.contents, found.resolver, around, place.path))
    yield place
    for each in place.schema.get("allOf", ()):
        if isinstance(each, dict):
            yield from parts_of(place.within(each))


def types_of(parts: Sequence[Place]) -> set[str] | None:
    """Return the JSON types of the values to which all parts apply, None if the parts do not say."""
    found: set[str] | None = None
    for part in parts:
        declared = declared_types(part.schema)
        if declared is None:
            continue
        found = declared if found is None else admitted(found, declared) | admitted(declared, found)
    return found


def admitted(types: set[str], others: set[str]) -> set[str]:
    """Return the types that are among the others; each whole number is a number."""
    return {each for each in types if each in others or (each == "integer" and "number" in others)}


def declared_types(schema: Mapping[str, Any]) -> set[str] | None:
    if "type" in schema:
        declared = schema["type"]
        return {declared} if isinstance(declared, str) else set(declared)
    if "const" in schema:
        return {JSON_TYPES[type(schema["const"])]}
    if "enum" in schema:
        return {JSON_TYPES[type(each)] for each in schema["enum"]}
    if "properties" in schema:
        return {"object"}
    return None


def alternative(parts: Sequence[Place]) -> Shape:
    """Return the shape of values of one of several schemas: one shape if all but null have the same."""
    for part in parts:
        for name in ("oneOf", "anyOf"):
            members = [part.within(each) for each in part.schema.get(name, ()) if not is_null(each)]
            if members:
                return common([shape for each in members if (shape := shape_at(each)) is not None])
    return TEXT


def is_null(schema: Any) -> bool:
    return isinstance(schema, dict) and declared_types(schema) == {"null"}


def common(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that has the values of all these, as JSON text if no other has."""
    if not shapes:
        return TEXT
    if all(each == shapes[0] for each in shapes):
        return shapes[0]
    kinds = {each.kind for each in shapes}
    if kinds <= set(NUMBERS.values()):
        return Shape(pa.float64())
    if kinds <= {pa.string(), *FORMATS.values()} and not any(each.is_text for each in shapes):
        return Shape(pa.string())
    return TEXT


def array(parts: Sequence[Place]) -> Shape:
    """Return the shape of an array; it is text for tuples and for items of any type."""
    items = [part for part in parts if "items" in part.schema]
    if not items or any("prefixItems" in part.schema for part in parts):
        return TEXT
    schema = items[0].schema["items"]
    inside = None if isinstance(schema, list) else shape_at(items[0].within(schema, "[]"))
    return TEXT if inside is None else Shape(pa.list_(inside.kind), inside=inside)


def struct(parts: Sequence[Place]) -> Shape | None:
    """Return the shape of objects with known properties, None if there are none."""
    fields: dict[str, Shape] = {}
    for part in parts:
        for name, schema in part.schema.get("properties", {}).items():
            shape = shape_at(part.within(schema, f".{name}"))
            if shape is not None and fields.get(name, TEXT) == TEXT:
                fields[name] = shape
    if not fields:
        return None
    return Shape(pa.struct([(name, each.kind) for name, each in fields.items()]), fields=fields)


def mapping(parts: Sequence[Place]) -> Shape:
    """Return the shape of objects whose properties have any names; it is text if their values have any type."""
    schemas = []
    for part in parts:
        patterns = list(part.schema.get("patternProperties", {}).values())
        others = part.schema.get("additionalProperties", not patterns)
        schemas += [part.within(each, ".*") for each in (*patterns, others) if each is not False]
    shapes = [shape for each in schemas if (shape := shape_at(each)) is not None]
    if not shapes or any(each.schema in (True, {}) for each in schemas):
        return TEXT
    inside = common(shapes)
    return Shape(pa.map_(pa.string(), inside.kind), inside=inside)


# --- JSON text ----------------------------------------------------------------------------------------------


def to_columns(shape: Shape) -> Convert | None:
    """Return a function that makes JSON text of the parts of a value that have it, None if no part has."""
    if shape.is_text:
        return json_text
    inside = None if shape.inside is None else to_columns(shape.inside)
    if inside is not None:
        return in_map(inside) if pa.types.is_map(shape.kind) else in_list(inside)
    fields = {
        name: convert for name, each in shape.fields.items() if (convert := to_columns(each)) is not None
    }
    return in_struct(fields) if fields else None


def json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def in_struct(fields: Mapping[str, Convert]) -> Convert:
    def convert(value: Any) -> Any:
        if type(value) is dict:
            for name in value.keys() & fields.keys():
                value[name] = fields[name](value[name])
        return value

    return convert


def in_list(inside: Convert) -> Convert:
    return lambda value: [inside(each) for each in value] if type(value) is list else value


def in_map(inside: Convert) -> Convert:
    return lambda value: (
        {name: inside(each) for name, each in value.items()} if type(value) is dict else value
    )
