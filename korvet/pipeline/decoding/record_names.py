"""The record types of a topic with several: which of its values belong to a table.

The name of a value's record type is in the schema whose id the value has: the full name of Avro's record and of
Protobuf's message, and the title of a JSON Schema, as for the subject strategies of Confluent's clients.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache

from attrs import evolve, frozen

from korvet.pipeline.decoding.avro_references import full_name
from korvet.pipeline.decoding.confluent import SchemaId, message_indexes, schema_id
from korvet.pipeline.decoding.leaves import Faults, Unfit
from korvet.pipeline.decoding.registry import NotRegistered, Registry
from korvet.pipeline.decoding.specification import names_folder


@frozen
class Selection:
    """Selects the values of one record type. `others` are the types that have other tables.

    If `takes_the_rest`, values of all other types, and those without a type, are bad rows of this table. With `finds`,
    types of this kind of schema that are not among `others` will get tables, so their values are no bad rows.
    """

    registry: Registry
    record: str
    others: frozenset[str]
    takes_the_rest: bool
    finds: str | None = None

    def alone(self) -> Selection:
        """Return the selection for which values of other tables are bad rows."""
        return evolve(self, others=frozenset(), takes_the_rest=True, finds=None)

    def knowing(self, names: Collection[str], *, finds: str | None) -> Selection:
        """Return the selection that knows further types, and finds others of this kind of schema, if any."""
        return evolve(self, others=self.others | {*names} - {self.record}, finds=finds)

    def strangers(self, values: Sequence[bytes | None], faults: Faults, new: set[str]) -> set[int]:
        """Return the row numbers of values that belong to other tables, and add the types it found to `new`.

        Raises RegistryError.
        """
        found = set() if self.takes_the_rest else {*faults.by_row}
        for number, value in enumerate(values):
            if value is None:
                continue
            try:
                name = self.name_of(value)
            except Unfit as fault:
                name, reason = None, str(fault)
            else:
                reason = f"is a {name}, not a {self.record}"
            if name == self.record:
                continue
            if name in self.others or not self.takes_the_rest:
                found.add(number)
            elif name is not None and self._finds(value, name):
                new.add(name)
                found.add(number)
            else:
                faults.add(number, "$", reason)
        return found

    def _finds(self, value: bytes, name: str) -> bool:
        """Return True if the type of a value gets a table, which it does not have yet."""
        if self.finds is None:
            return False
        is_new = name.lower() not in {each.lower() for each in (self.record, *self.others)}
        return is_new and names_folder(name) and kind_of(self.registry, schema_id(value)[0]) == self.finds

    def name_of(self, value: bytes) -> str:
        """Return the name of a value's record type. Raises Unfit, RegistryError."""
        number, position = schema_id(value)
        kind = kind_of(self.registry, number)
        indexes = message_indexes(value, position)[0] if kind == "PROTOBUF" else ()
        return record_name(self.registry, number, indexes)


@cache
def kind_of(registry: Registry, number: SchemaId) -> str:
    try:
        return registry.by_id(number).kind
    except NotRegistered as error:
        raise Unfit(str(error)) from None


@cache
def record_name(registry: Registry, number: SchemaId, indexes: tuple[int, ...]) -> str:
    """Return the name of a schema's record type. Raises Unfit, RegistryError."""
    if indexes:
        from korvet.pipeline.decoding.protobuf_values import written_as  # noqa: PLC0415  needs extra `decode`

        return written_as(registry, number, indexes)
    found = registry.by_id(number)
    try:
        schema = json.loads(found.text)
        name = schema["title"] if found.kind == "JSON" else ".".join(filter(None, full_name(schema, "")))
    except (ValueError, TypeError, KeyError):
        raise Unfit(f"schema {number} has no name") from None
    return str(name)
