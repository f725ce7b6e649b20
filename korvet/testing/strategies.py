"""Hypothesis strategies for the Kafka protocol: records, batches, requests of every API and version, and conversations.

Requests are valid on the wire, and mean nothing: their topics rarely exist, and their numbers are arbitrary. Use them
to test code that reads or writes the protocol.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

from attrs import frozen
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from korvet.handlers import APIS
from korvet.protocol.compression import Codec
from korvet.protocol.record_batch import RecordBatch
from korvet.protocol.requests import encode_request
from korvet.protocol.schema import Field, schema_of
from korvet.testing.group_conversation import GroupAction, GroupStep
from korvet.testing.records import Record, batch

M = TypeVar("M")

TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=20)
BYTES: Final = st.binary(max_size=20)
HEADERS: Final = st.lists(st.tuples(TEXT, st.none() | BYTES), max_size=2).map(tuple)
TIMESTAMPS: Final = st.integers(0, 2**42)
MAX_ELEMENTS: Final = 2
# More joins and syncs than others: a group does nothing without them.
GROUP_ACTIONS: Final = (GroupAction.JOIN, GroupAction.SYNC, *GroupAction)


@frozen
class GeneratedRequest:
    """A request with its header."""

    api: str
    version: int
    correlation_id: int
    client_id: str | None
    message: Any  # the class of korvet.protocol.messages for the API

    @property
    def frame(self) -> bytes:
        """The bytes that a client sends, with the four bytes of the size."""
        return b"".join(encode_request(self.message, self.version, self.correlation_id, self.client_id))


def topic_names() -> SearchStrategy[str]:
    """Generate valid names of topics."""
    return st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}", fullmatch=True)


def records() -> SearchStrategy[Record]:
    """Generate records: value, key, timestamp in milliseconds, headers. Values and keys may be None."""
    return st.builds(Record, st.none() | BYTES, st.none() | BYTES, TIMESTAMPS, HEADERS)


def batches(*, max_records: int = 5) -> SearchStrategy[RecordBatch]:
    """Generate valid record batches with any codec. `decode_records` of `korvet.protocol.record_batch` reads them."""
    codecs = st.sampled_from(Codec)
    several = st.lists(records(), min_size=1, max_size=max_records)
    return st.builds(lambda found, codec: batch(found, codec=codec), several, codecs)


def group_conversations(*, members: int = 3, max_steps: int = 30) -> SearchStrategy[list[GroupStep]]:
    """Generate what the members of a group do, for `korvet.testing.group_conversation.GroupConversation`."""
    step = st.builds(
        GroupStep,
        st.integers(0, members - 1),
        st.sampled_from(GROUP_ACTIONS),
        st.sampled_from([False, False, False, True]),
        st.integers(0, 100),
        st.integers(0, 2**16),
    )
    return st.lists(step, max_size=max_steps)


def requests(*apis: str) -> SearchStrategy[GeneratedRequest]:
    """Generate requests of these APIs, such as Fetch, or of all that korvet serves, in all their versions."""
    served = [each for each in APIS.served if not apis or each.name in apis]
    if unknown := {*apis} - {each.name for each in served}:
        raise ValueError(f"korvet serves no {', '.join(sorted(unknown))}")
    pairs = [
        (each.key, version) for each in served for version in range(each.min_version, each.max_version + 1)
    ]
    return st.sampled_from(pairs).flatmap(lambda pair: requests_of(*pair))


@cache
def requests_of(key: int, version: int) -> SearchStrategy[GeneratedRequest]:
    """Generate requests of one API in one version."""
    api = APIS[key]
    return st.builds(
        GeneratedRequest,
        st.just(api.name),
        st.just(version),
        st.integers(0, 2**31 - 1),
        st.none() | TEXT,
        messages(api.request, version),
    )


def messages(cls: type[M], version: int) -> SearchStrategy[M]:
    """Generate messages of a class of `korvet.protocol.messages` that can be written in a version."""
    fields = {field.name: values_of(field, version) for field in schema_of(cls).fields}
    return st.builds(cls, **fields)


def values_of(field: Field, version: int) -> SearchStrategy[Any]:
    """Generate the values of a field. In versions without it, only its default can be written."""
    if version not in field.versions:
        return st.builds(list) if field.is_array and field.default is not None else st.just(field.default)
    values = elements_of(field, version)
    if field.is_array:
        values = st.lists(values, max_size=MAX_ELEMENTS)
    is_tagged_struct = field.struct is not None and field.tag is not None and not field.is_array
    return st.none() | values if is_tagged_struct or version in field.nullable else values


def elements_of(field: Field, version: int) -> SearchStrategy[Any]:
    """Generate the values of a field, or of its elements if it is an array."""
    if field.struct is not None:
        return messages(field.struct, version)
    if field.kafka_type.startswith(("int", "uint")):
        return integers(field.kafka_type)
    return {
        "bool": st.booleans(),
        "uuid": st.uuids(),
        "float64": st.floats(allow_nan=False),
        "string": TEXT,
        "bytes": BYTES,
        "records": batches().map(lambda each: (bytes(each.buffer),)),
    }[field.kafka_type]


def integers(kafka_type: str) -> SearchStrategy[int]:
    """Generate integers of a type such as int32 or uint16."""
    bits = int(kafka_type.lstrip("uint"))
    if kafka_type.startswith("u"):
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
