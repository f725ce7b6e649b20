"""The topics, partitions and groups that a request of any API names, and the errors that answer them.

The functions work on the declarations of messages: fields of the same meaning have few different names in Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import attrs
from attrs import frozen

from korvet.protocol.response_errors import ERROR_CODES
from korvet.protocol.schema import ZERO_UUID, Field, schema_of

TOPICS = ("topic_data", "topics", "topic_names", "v3_and_below_topics")
PARTITIONS = ("partition_data", "partitions", "partition_indexes")
GROUPS = ("groups", "groups_names", "coordinator_keys", "group_ids")
# Arrays of requests whose elements have an element each in the response.
OTHERS = (
    "resources",
    "creations",
    "filters",
    "users",
    "deletions",
    "upsertions",
    "entries",
    "members",
    "transactions",
    "transactional_ids",
    "markers",
    "topic_partitions",
)
REPEATED = (*TOPICS, *PARTITIONS, *GROUPS, *OTHERS)
# The names that a field of a response may have in the request.
ALIASES = {
    "name": ("name", "topic"),
    "topic": ("topic", "name"),
    "topic_name": ("topic_name", "name"),
    "user": ("name",),
    "index": ("index", "partition_index", "partition"),
    "partition": ("partition", "partition_index", "index"),
    "partition_index": ("partition_index", "partition", "index"),
}
# The fields that an element has its identity in, if it is only a string or a number in the request.
IDENTITIES = ("name", "group_id", "key", "partition_index", "partition_id", "transactional_id")

Names = Mapping[UUID, str]


@frozen
class Selection:
    """A part of requests: one topic, one partition of it or of any topic, or everything."""

    topic: str | None = None
    partition: int | None = None

    @property
    def is_all(self) -> bool:
        return self.topic is None and self.partition is None

    def split(self, body: Any, names: Names) -> tuple[Any | None, Any | None]:
        """Return the request with the selected topics and partitions only, and with the others; None if empty."""
        if self.is_all:
            return body, None
        field, topics = array_of(body, TOPICS)
        pairs = [self._split_topic(topic, names) for topic in topics]
        selected = [inside for inside, _ in pairs if inside is not None]
        others = [outside for _, outside in pairs if outside is not None]
        return (
            attrs.evolve(body, **{field: selected}) if selected else None,
            attrs.evolve(body, **{field: others}) if others else None,
        )

    def selects_topic(self, name: str) -> bool:
        return self.topic in (None, name)

    def _split_topic(self, topic: Any, names: Names) -> tuple[Any | None, Any | None]:
        if not self.selects_topic(topic_name(topic, names)):
            return None, topic
        if self.partition is None:
            return topic, None
        field, partitions = array_of(topic, PARTITIONS)
        selected = [each for each in partitions if partition_number(each) == self.partition]
        others = [each for each in partitions if partition_number(each) != self.partition]
        return (
            attrs.evolve(topic, **{field: selected}) if selected else None,
            attrs.evolve(topic, **{field: others}) if others or not selected else None,
        )


def array_of(message: Any, fields: Sequence[str]) -> tuple[str, Sequence[Any]]:
    """Return the first of the fields that is not empty, with its elements."""
    for field in fields:
        if elements := getattr(message, field, None):
            return field, elements
    return "", ()


def topic_name(topic: Any, names: Names) -> str:
    """Return the name of an element of an array of topics, or "" if no topic has its id."""
    if isinstance(topic, str):
        return topic
    name: str | None = getattr(topic, "name", None) or getattr(topic, "topic", None)
    return name or names.get(getattr(topic, "topic_id", ZERO_UUID), "")


def topic_ids(body: Any) -> Iterator[UUID]:
    """Yield the ids of topics in a request."""
    for topic in array_of(body, TOPICS)[1]:
        topic_id = getattr(topic, "topic_id", ZERO_UUID)
        if topic_id != ZERO_UUID:
            yield topic_id


def partition_number(partition: Any) -> int:
    """Return the number of an element of an array of partitions."""
    if isinstance(partition, int):
        return partition
    number: int = next(getattr(partition, name) for name in ALIASES["index"] if hasattr(partition, name))
    return number


def groups_of(body: Any) -> list[str]:
    """Return the ids of the groups that a request names."""
    named = [getattr(body, field, None) for field in ("group_id", "key")]
    elements = array_of(body, GROUPS)[1]
    return [*filter(None, named), *(each if isinstance(each, str) else each.group_id for each in elements)]


# --- Responses -----------------------------------------------------------------------------------------------


def refusal(cls: type[Any], request: Any, version: int, code: int, *, is_part: bool) -> Any:
    """Return the response, of class `cls`, that has the error code in every entry of the request.

    If the request is a part of another one, the response has no error outside of its entries.
    """
    made = mirrored(cls, request, version, code)
    if hasattr(made, "error_code") and is_part:
        made.error_code = 0
    return made


def mirrored(cls: type[Any], source: Any, version: int, code: int) -> Any:
    """Return a struct of a response with the error code and with the identity of a struct of the request."""
    return cls(
        **{field.name: mirrored_field(field, source, version, code) for field in schema_of(cls).fields}
    )


def mirrored_field(field: Field, source: Any, version: int, code: int) -> Any:
    if version in field.versions:
        if field.name in ERROR_CODES:
            return code
        if field.is_array and field.struct is not None and has_error(field.struct, version):
            return [mirrored(field.struct, each, version, code) for each in elements_of(source)]
        if isinstance(source, str | int):
            if field.name in IDENTITIES:
                return source
        elif not field.is_array:
            for name in ALIASES.get(field.name, (field.name,)):
                if hasattr(source, name):
                    return getattr(source, name)
    if (
        field.struct is not None
        and not field.is_array
        and field.tag is None
        and version not in field.nullable
    ):
        return mirrored(field.struct, source, version, code)
    return [] if field.is_array and field.default is not None else field.default


def elements_of(source: Any) -> Iterator[Any]:
    """Yield the parts of a request, or of a part of it, that have an entry each in the response."""
    for name in REPEATED:
        yield from getattr(source, name, None) or ()
    for directory in getattr(source, "dirs", ()):
        yield from directory.topics


def has_error(cls: type[Any], version: int) -> bool:
    """Return True if a struct, or a struct inside it, has an error code."""
    fields = [field for field in schema_of(cls).fields if version in field.versions]
    return any(
        field.name in ERROR_CODES or (field.struct is not None and has_error(field.struct, version))
        for field in fields
    )


def merged(response: Any, refused: Any, version: int) -> Any:
    """Return a response with the entries of another one added to its own."""
    for field in schema_of(type(response)).fields:
        if field.is_array and field.struct is not None and has_error(field.struct, version):
            setattr(response, field.name, [*getattr(response, field.name), *getattr(refused, field.name)])
    return response
