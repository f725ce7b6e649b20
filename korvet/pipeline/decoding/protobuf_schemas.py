"""Protobuf schemas: compile .proto texts to descriptors, and derive columns from a message type.

The compiler is protoc, from grpcio-tools. It runs as a separate process because it reports errors on stderr.
"""

from __future__ import annotations

import base64
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from korvet.pipeline.decoding.leaves import SchemaFault
from korvet.pipeline.decoding.registry import Registry, Schema

COMPILE_TIMEOUT_S = 60
MAIN = "korvet_main.proto"
#: The folder with google/type, whose files registries know without references, as they know google/protobuf.
GOOGLE_TYPES = Path(next(iter(import_module("google.type").__path__))).parents[1]
WARNING = re.compile(r"\bwarning:|\[libprotobuf WARNING|^W\d{4} |^warning", re.IGNORECASE)

SCALARS = {
    FieldDescriptor.TYPE_DOUBLE: pa.float64(),
    FieldDescriptor.TYPE_FLOAT: pa.float32(),
    FieldDescriptor.TYPE_INT64: pa.int64(),
    FieldDescriptor.TYPE_SINT64: pa.int64(),
    FieldDescriptor.TYPE_SFIXED64: pa.int64(),
    FieldDescriptor.TYPE_UINT64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_FIXED64: pa.decimal128(20, 0),
    FieldDescriptor.TYPE_INT32: pa.int32(),
    FieldDescriptor.TYPE_SINT32: pa.int32(),
    FieldDescriptor.TYPE_SFIXED32: pa.int32(),
    FieldDescriptor.TYPE_UINT32: pa.int64(),
    FieldDescriptor.TYPE_FIXED32: pa.int64(),
    FieldDescriptor.TYPE_BOOL: pa.bool_(),
    FieldDescriptor.TYPE_STRING: pa.string(),
    FieldDescriptor.TYPE_BYTES: pa.binary(),
    FieldDescriptor.TYPE_ENUM: pa.string(),
}
WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
TIMESTAMP = "google.protobuf.Timestamp"
# Types without a fixed structure. They become JSON text.
FREE_FORM = {f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue", "Any")}


def descriptors_of_file(file: Path) -> bytes:
    """Return the FileDescriptorSet of a .proto file, with its imports beside it, or of a compiled file.

    Raises SchemaFault.
    """
    if file.suffix != ".proto":
        return file.read_bytes()
    return compiled(file.name, file.parent, str(file))


def descriptors_of(registry: Registry, schema: Schema) -> bytes:
    """Return the FileDescriptorSet of a registered schema and its references.

    Raises SchemaFault, NotRegistered, RegistryError.
    """
    if schema.kind != "PROTOBUF":
        raise SchemaFault(f"The schema is one for {schema.kind}, not for PROTOBUF.")
    files = {MAIN: schema.text}
    files |= {reference.name: found.text for reference, found in registry.referenced(schema)}
    serialized = {name: file for name, text in files.items() if (file := serialized_file(name, text))}
    if MAIN in serialized:
        return assembled(serialized)
    return compiled_texts(files)


def serialized_file(name: str, text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the descriptor in a text, None for the source of one.

    Confluent's client for Python registers descriptors in base64, and some registries store them unchanged.
    """
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(text, validate=True))
    except (ValueError, DecodeError):
        return None
    file.name = name
    return file


def assembled(files: Mapping[str, descriptor_pb2.FileDescriptorProto]) -> bytes:
    """Return the FileDescriptorSet of these files and of those of Google's that they import. Raises SchemaFault."""
    imported = {name for file in files.values() for name in file.dependency} - files.keys()
    text = "".join(f'import "{name}";\n' for name in sorted(imported))
    found = descriptor_pb2.FileDescriptorSet.FromString(compiled_texts({MAIN: f'syntax = "proto3";\n{text}'}))
    del found.file[-1]
    placed: set[str] = set()

    def place(name: str) -> None:
        if name in files and name not in placed:
            placed.add(name)
            for each in files[name].dependency:
                place(each)
            found.file.append(files[name])

    place(MAIN)
    whole: bytes = found.SerializeToString()
    return whole


def compiled_texts(files: Mapping[str, str]) -> bytes:
    """Return the FileDescriptorSet of MAIN and its imports. Raises SchemaFault."""
    with tempfile.TemporaryDirectory(prefix="korvet-proto-") as folder:
        for name, text in files.items():
            file = Path(folder, name).resolve()
            if not file.is_relative_to(Path(folder).resolve()):
                raise SchemaFault(f"The schema refers to {name!r}, which is not a file name for an import.")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return compiled(MAIN, Path(folder), "The Protobuf schema")


def compiled(name: str, folder: Path, name_in_errors: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="korvet-proto-") as out:
        target = Path(out, "set")
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "grpc_tools.protoc",
            f"-I{folder}",
            f"-I{GOOGLE_TYPES}",
            "--include_imports",
        ]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={target}", name],
                capture_output=True,
                text=True,
                check=False,
                timeout=COMPILE_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise SchemaFault(f"{name_in_errors} does not compile within {COMPILE_TIMEOUT_S} s") from None
        if done.returncode:
            raise SchemaFault(f"{name_in_errors} does not compile: {first_error(done.stderr, folder)}")
        return target.read_bytes()


def first_error(printed: str, folder: Path) -> str:
    """Return the first line of protoc's output that is not a warning."""
    lines = [line for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if not WARNING.search(line)] or lines or ["protoc printed nothing"]
    return errors[0].removeprefix(f"{folder}/")


@cache
def pool_of(descriptors: bytes) -> tuple[descriptor_pool.DescriptorPool, str]:
    """Return a pool of a FileDescriptorSet's types, and the name of its last file, which is the compiled one."""
    files = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        files.ParseFromString(descriptors)
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise SchemaFault(f"The Protobuf schema cannot be used: {error}") from None
    if not files.file:
        raise SchemaFault("The Protobuf schema is empty.")
    return pool, files.file[-1].name


def message_type(descriptors: bytes, name: str | None) -> Descriptor:
    """Return a message type by its full name, or the first one of the file. Raises SchemaFault."""
    pool, file_name = pool_of(descriptors)
    there = pool.FindFileByName(file_name).message_types_by_name
    if name is None:
        if not there:
            raise SchemaFault("The Protobuf schema holds no message.")
        return next(iter(there.values()))
    try:
        return pool.FindMessageTypeByName(name)
    except KeyError:
        names = ", ".join(each.full_name for each in there.values())
        raise SchemaFault(f"The Protobuf schema holds no message {name}; it holds {names}.") from None


def name_at(descriptors: bytes, indexes: tuple[int, ...]) -> str | None:
    """Return the full name of the message at these indexes of the file, None if there is none."""
    pool, file_name = pool_of(descriptors)
    level: Any = list(pool.FindFileByName(file_name).message_types_by_name.values())
    found = None
    for index in indexes:
        if not 0 <= index < len(level):
            return None
        found = level[index]
        level = found.nested_types
    return None if found is None else str(found.full_name)


def message_fields(message: Descriptor, path: str = "$", above: tuple[str, ...] = ()) -> list[pa.Field]:
    """Return the columns of a message type. Raises SchemaFault for a recursive type."""
    if message.full_name in above:
        raise SchemaFault(f"{path}: {message.full_name} holds itself; a table's columns cannot.")
    within = (*above, message.full_name)
    return [pa.field(each.name, field_type(each, f"{path}.{each.name}", within)) for each in message.fields]


def field_type(one: FieldDescriptor, path: str, above: tuple[str, ...]) -> pa.DataType:
    if is_map(one):
        entry: Mapping[str, FieldDescriptor] = one.message_type.fields_by_name
        return pa.map_(single_type(entry["key"], path, above), single_type(entry["value"], path, above))
    kind = single_type(one, path, above)
    return pa.list_(kind) if one.is_repeated else kind


def is_map(one: FieldDescriptor) -> bool:
    return bool(one.message_type is not None and one.message_type.GetOptions().map_entry)


def single_type(one: FieldDescriptor, path: str, above: tuple[str, ...]) -> pa.DataType:
    message = one.message_type
    if message is None:
        return SCALARS[one.type]
    if message.full_name == TIMESTAMP:
        return pa.timestamp("us", "UTC")
    if message.full_name in WRAPPERS:
        return SCALARS[message.fields_by_name["value"].type]
    if message.full_name in FREE_FORM:
        return pa.string()
    return pa.struct(message_fields(message, path, above))
