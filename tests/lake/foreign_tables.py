"""Delta tables with features that korvet does not write: column mapping and deletion vectors."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

#: The rows of the tables, and the names that their columns have in files with column mapping.
ROWS = [{"id": 1, "item": "nut"}, {"id": 2, "item": "bolt"}, {"id": 3, "item": "screw"}]
PHYSICAL = {"id": "col-7f", "item": "col-a1"}
Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def mapped_table(folder: Path, *, mode: str = "name", reader_version: int = 3) -> None:
    """Write a table whose columns have other names in its file."""
    protocol: dict[str, Any] = {"minReaderVersion": 2, "minWriterVersion": 5}
    if reader_version == 3:
        features = {"readerFeatures": ["columnMapping"], "writerFeatures": ["columnMapping"]}
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    _write(
        folder, protocol, {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "2"}, PHYSICAL
    )


def table_with_deletions(folder: Path) -> None:
    """Write a table of whose file the second row is deleted."""
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    # One 32-bit bitmap with the key 0, which is one array container with the value 1.
    bitmap = struct.pack("<IQI", 1_681_511_377, 1, 0) + struct.pack("<IIHHIH", 12_346, 1, 0, 0, 16, 1)
    vector = {
        "storageType": "i",
        "pathOrInlineDv": _z85(bitmap + bytes(-len(bitmap) % 4)),
        "sizeInBytes": len(bitmap),
        "cardinality": 1,
    }
    _write(folder, protocol, {"delta.enableDeletionVectors": "true"}, {}, deletionVector=vector)


def rename_column(folder: Path, old: str, new: str) -> None:
    """Commit column mapping and another name of a column to a table, as other writers do."""
    log = folder / "_delta_log"
    version = max(int(path.stem) for path in log.glob("*.json"))
    for path in sorted(log.glob("*.json"), reverse=True):
        for line in path.read_text().splitlines():
            metadata = json.loads(line).get("metaData")
            if metadata is not None:
                _commit_name(log, version + 1, metadata, old, new)
                return


def _commit_name(log: Path, version: int, metadata: dict[str, Any], old: str, new: str) -> None:
    schema = json.loads(metadata["schemaString"])
    for number, each in enumerate(schema["fields"], 1):
        each["metadata"] = _mapping(number, each["name"])
        if each["name"] == old:
            each["name"] = new
    mapping = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": str(len(schema["fields"])),
    }
    changed = {
        **metadata,
        "schemaString": json.dumps(schema),
        "configuration": {**metadata["configuration"], **mapping},
    }
    features = ["columnMapping"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    lines = [{"commitInfo": {}}, {"protocol": protocol}, {"metaData": changed}]
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def _write(
    folder: Path,
    protocol: dict[str, Any],
    configuration: dict[str, str],
    names: Mapping[str, str],
    **add: Any,
) -> None:
    (folder / "_delta_log").mkdir(parents=True)
    rows = pa.Table.from_pylist(ROWS)
    pq.write_table(
        rows.rename_columns([names.get(name, name) for name in rows.column_names]), folder / "f.parquet"
    )
    fields = [
        {
            "name": name,
            "type": kind,
            "nullable": True,
            "metadata": _mapping(number, names[name]) if names else {},
        }
        for number, (name, kind) in enumerate((("id", "long"), ("item", "string")), 1)
    ]
    metadata = {
        "id": "f3b1a9f0-1c52-4a35-9c55-0f0b7f6c2a10",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 0,
    }
    file = {
        "path": "f.parquet",
        "partitionValues": {},
        "size": (folder / "f.parquet").stat().st_size,
        "modificationTime": 0,
        "dataChange": True,
        "stats": json.dumps({"numRecords": len(ROWS)}),
        **add,
    }
    lines = [{"commitInfo": {}}, {"protocol": protocol}, {"metaData": metadata}, {"add": file}]
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def _mapping(number: int, name: str) -> dict[str, Any]:
    return {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": name}


def _z85(data: bytes) -> str:
    text = ""
    for start in range(0, len(data), 4):
        number, word = int.from_bytes(data[start : start + 4], "big"), ""
        for _ in range(5):
            word, number = Z85[number % 85] + word, number // 85
        text += word
    return text
