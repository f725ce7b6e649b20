"""Keys and values in Avro, Protobuf or JSON whose schema is in a registry (Confluent's wire format), as JSON text.

Requests to the registry, and the compiler of Protobuf schemas, run in threads. The libraries are those of
`korvet[schemas]`.
"""

from __future__ import annotations

import io
import json
from collections import OrderedDict
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import trio
from attrs import define, field

from korvet.web.options import PageRefused
from korvet.web.values import Shown, Undecodable, shown

if TYPE_CHECKING:
    from korvet.pipeline.decoding.confluent import SchemaId

MODULES = (
    "grpc_tools",
    "google.protobuf.json_format",
    "korvet.pipeline.decoding.avro_values",
    "korvet.pipeline.decoding.protobuf_schemas",
)
THREADS = 2
MAX_BYTES = 1024 * 1024
# A registry that does not answer is not asked again for this time, and nor is an unknown schema.
PAUSE_S = 10.0
MAX_FAULTS = 1000
MAX_CLASSES = 1000


@define(eq=False)
class Schemas:
    """Decodes values by a registry. Create it with `open_schemas`."""

    url: str = field(repr=False)
    _limiter: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(THREADS))
    #: Reason and end of the pause, by schema id; 0 stands for the registry itself, which has no schema 0.
    _faults: OrderedDict[int, tuple[str, float]] = field(factory=OrderedDict)

    async def shown(self, data: bytes, form: str) -> Shown:
        """Return a value in the format `schema`, or in `auto` if it begins like one with a schema."""
        try:
            kind, text = await self._decoded(data)
            return Shown(kind, text, len(data))
        except Undecodable as error:
            return shown(data, form, fault=str(error) if form == "schema" else "")

    async def _decoded(self, data: bytes) -> tuple[str, str]:
        if len(data) > MAX_BYTES:
            raise Undecodable(f"the value is too large to be decoded here; accepted: up to {MAX_BYTES} bytes")
        number = int.from_bytes(data[1:5], "big")
        for each in (0, number):
            reason, until = self._faults.get(each, ("", 0.0))
            if trio.current_time() < until:
                raise Undecodable(reason)
        try:
            return await trio.to_thread.run_sync(
                decoded, self.url, data, abandon_on_cancel=True, limiter=self._limiter
            )
        except RegistryAway as error:
            self._remember(0, str(error))
            raise Undecodable(str(error)) from None
        except UnknownSchema as error:
            self._remember(number, str(error))
            raise

    def _remember(self, number: int, reason: str) -> None:
        self._faults[number] = reason, trio.current_time() + PAUSE_S
        while len(self._faults) > MAX_FAULTS:
            self._faults.popitem(last=False)


class RegistryAway(Exception):  # noqa: N818  names the condition
    """The registry does not answer. The message is one line."""


class UnknownSchema(Undecodable):
    """The registry has no schema with this id, or no usable one."""


def open_schemas(url: str) -> Schemas:
    """Return the schemas of a registry. Raises PageRefused. It imports the large libraries that decode."""
    try:
        for name in MODULES:
            import_module(name)
    except ImportError:
        raise PageRefused("a schema registry requires: pip install 'korvet[schemas]'") from None
    from korvet.pipeline.decoding.registry import RegistryError, split_credentials  # noqa: PLC0415

    try:
        split_credentials(url)
    except RegistryError as error:
        raise PageRefused(str(error)) from None
    return Schemas(url)


def decoded(url: str, data: bytes) -> tuple[str, str]:
    """Return the kind and the JSON of a value. Raises Undecodable and RegistryAway. It blocks."""
    from korvet.pipeline.decoding.confluent import schema_id  # noqa: PLC0415
    from korvet.pipeline.decoding.leaves import SchemaFault, Unfit  # noqa: PLC0415
    from korvet.pipeline.decoding.registry import NotRegistered, Registry, RegistryError  # noqa: PLC0415

    registry = Registry(url)
    try:
        number, begin = schema_id(data)
        kind = registry.by_id(number).kind
        if kind == "AVRO":
            return "avro", avro_json(registry, number, data, begin)
        if kind == "PROTOBUF":
            return "protobuf", protobuf_json(registry, number, data, begin)
        return "json", json.dumps(json.loads(data[begin:]), indent=2)
    except RegistryError as error:
        raise RegistryAway(str(error)) from None
    except (NotRegistered, SchemaFault) as error:
        raise UnknownSchema(str(error.args[0])) from None
    except Unfit as error:
        raise Undecodable(f"the value {error}") from None
    except (ValueError, RecursionError):
        raise Undecodable("the value is not JSON") from None


def avro_json(registry: Any, number: SchemaId, data: bytes, begin: int) -> str:
    """Return an Avro value, written with a registered schema, as JSON. Raises Unfit and SchemaFault."""
    import fastavro  # noqa: PLC0415

    from korvet.pipeline.decoding.avro_values import parsed, written_with  # noqa: PLC0415
    from korvet.pipeline.decoding.leaves import Unfit  # noqa: PLC0415

    schema = parsed(written_with(registry, number))
    content = io.BytesIO(data[begin:])
    try:
        value = fastavro.schemaless_reader(content, schema, None)
    except Exception as error:  # noqa: BLE001  fastavro raises many kinds for bytes that are no such value
        raise Unfit(f"is not of schema {number}: {type(error).__name__}") from None
    if rest := len(data) - begin - content.tell():
        raise Unfit(f"has {rest} bytes more than schema {number} describes")
    return json.dumps(value, indent=2, ensure_ascii=False, default=plain)


def plain(value: object) -> str:
    """Return the text of a value that JSON does not have: bytes in hexadecimal, times, decimals and UUIDs."""
    return value.hex() if isinstance(value, bytes) else str(value)


def protobuf_json(registry: Any, number: SchemaId, data: bytes, begin: int) -> str:
    """Return a Protobuf message of a registered schema as JSON. Raises Unfit and SchemaFault."""
    from google.protobuf import json_format  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    from korvet.pipeline.decoding.confluent import message_indexes  # noqa: PLC0415
    from korvet.pipeline.decoding.leaves import Unfit  # noqa: PLC0415

    indexes, position = message_indexes(data, begin)
    message = message_class(registry, number, indexes)()
    try:
        message.ParseFromString(data[position:])
        text: str = json_format.MessageToJson(message, preserving_proto_field_name=True, ensure_ascii=False)
        return text
    except (DecodeError, json_format.Error, TypeError, ValueError) as error:
        raise Unfit(f"is not a message of schema {number}: {error}") from None


@lru_cache(MAX_CLASSES)
def message_class(registry: Any, number: SchemaId, indexes: tuple[int, ...]) -> Any:
    """Return the class of a message type of a registered schema. Raises Unfit and SchemaFault."""
    from google.protobuf import message_factory  # noqa: PLC0415

    from korvet.pipeline.decoding.leaves import Unfit  # noqa: PLC0415
    from korvet.pipeline.decoding.protobuf_schemas import descriptors_of, message_type, name_at  # noqa: PLC0415

    descriptors = descriptors_of(registry, registry.by_id(number))
    name = name_at(descriptors, indexes)
    if name is None:
        raise Unfit(f"names message {list(indexes)} of schema {number}, which has none there")
    return message_factory.GetMessageClass(message_type(descriptors, name))
