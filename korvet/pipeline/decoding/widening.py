"""Widen columns of a typed table: whole numbers, float to double, decimals.

All files are written again, and one commit replaces them together with the columns. It is for the version after the
one that was read. If another writer has committed meanwhile, only the files that are new since then are written, and
the commit is tried again. A decoder that has begun before the commit is refused, since the columns have changed, and
starts its round again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from attrs import define, field, frozen
from deltalake import Schema

from korvet.lake.errors import CommitConflict, LakeError
from korvet.lake.mirrored import is_mirrored
from korvet.lake.parallel import results
from korvet.lake.replacing import ATTEMPTS
from korvet.lake.retrying import retried_writing
from korvet.lake.table_features import refuse_other_features
from korvet.pipeline.decoding.columns import RESERVED
from korvet.pipeline.decoding.leaves import DECIMAL_DIGITS
from korvet.pipeline.decoding.rewriting import conformed_rows, written_instead
from korvet.pipeline.decoding.tables import TYPED, DecodedFile, DecodedTable, Part, arrow_columns

WIDENED = "korvet.widened"
#: Names in Delta's schema of the types that columns can become, by their names in SQL.
NAMES = {"smallint": "short", "int": "integer", "bigint": "long", "double": "double"}
SQL_NAMES = {each: name for name, each in NAMES.items()} | {"byte": "tinyint"}
WIDER = {
    "byte": ("short", "integer", "long"),
    "short": ("integer", "long"),
    "integer": ("long",),
    "float": ("double",),
}
DECIMAL = re.compile(r"decimal\((\d{1,2}),(\d{1,2})\)")


class NotWidened(LakeError):  # noqa: N818  the name states the fault
    """The column cannot become of the type."""


@frozen
class Widening:
    """A column, as a dlq table's errors name it without `$.`, and the name in Delta's schema of its wider type."""

    path: str
    kind: str

    @classmethod
    def parse(cls, text: str) -> Widening:
        """Parse `lines[].price=double`. Raises ValueError."""
        path, _, name = text.rpartition("=")
        path = path.strip().removeprefix("$.")
        kind = name.strip().lower().replace(" ", "")
        if not path or not (kind in NAMES or is_decimal(kind)):
            raise ValueError(
                f"{text!r} is not COLUMN=TYPE; accepted types: {', '.join(NAMES)}, decimal(PRECISION,SCALE)"
            )
        return cls(path, NAMES.get(kind, kind))


def is_decimal(kind: str) -> bool:
    match = DECIMAL.fullmatch(kind)
    return match is not None and int(match[2]) <= int(match[1]) <= DECIMAL_DIGITS and int(match[1]) > 0


def widened(schema: Mapping[str, Any], several: Mapping[str, str]) -> dict[str, Any]:
    """Return Delta's schema with wider columns, by their paths. Raises NotWidened."""
    fields = list(schema["fields"])
    for path, kind in several.items():
        for place, each in enumerate(fields):
            rest = _rest(path, each["name"])
            if rest is not None and each["name"] not in RESERVED:
                fields[place] = {**each, "type": _widened(each["type"], rest, path, kind)}
                break
        else:
            names = [each["name"] for each in fields if each["name"] not in RESERVED]
            raise NotWidened(f"There is no column {path}; there are {', '.join(names)}.")
    return {**schema, "fields": fields}


def _rest(path: str, name: str) -> str | None:
    """Return the part of a path after a column's name, None if the path leads elsewhere."""
    rest = path.removeprefix(name)
    return rest if path.startswith(name) and (not rest or rest[0] in ".[") else None


def _widened(there: Any, rest: str, path: str, kind: str) -> Any:
    """Return a type, with the wider type at the rest of the path."""
    inside = there.get("type") if isinstance(there, dict) else None
    if inside == "array" and rest.startswith("[]"):
        return {**there, "elementType": _widened(there["elementType"], rest[2:], path, kind)}
    if inside == "map" and rest.startswith(".*"):
        return {**there, "valueType": _widened(there["valueType"], rest[2:], path, kind)}
    if inside == "struct" and rest.startswith("."):
        for place, each in enumerate(there["fields"]):
            further = _rest(rest[1:], each["name"])
            if further is not None:
                fields = list(there["fields"])
                fields[place] = {**each, "type": _widened(each["type"], further, path, kind)}
                return {**there, "fields": fields}
    if rest or inside is not None:
        raise NotWidened(
            f"There is no column {path}; name nested ones as the errors of bad rows do: lines[].price."
        )
    if there != kind and kind not in WIDER.get(there, ()) and not is_wider_decimal(there, kind):
        raise NotWidened(
            f"{path} is {SQL_NAMES.get(there, there)}, which cannot become {SQL_NAMES.get(kind, kind)}; accepted: "
            "int to bigint, float to double, and decimals with more digits before or after the point."
        )
    return kind


def is_wider_decimal(there: str, kind: str) -> bool:
    """Return True if a decimal can hold all values of another one."""
    narrow, wide = DECIMAL.fullmatch(there), DECIMAL.fullmatch(kind)
    if narrow is None or wide is None:
        return False
    (precision, scale), (new_precision, new_scale) = (
        tuple(map(int, each.groups())) for each in (narrow, wide)
    )
    return new_scale >= scale and new_precision - new_scale >= precision - scale


def changed_scales(before: Any, after: Any) -> bool:
    """Return True if a decimal in a schema has another scale in the other one."""
    if isinstance(before, str) and isinstance(after, str):
        one, other = DECIMAL.fullmatch(before), DECIMAL.fullmatch(after)
        return one is not None and other is not None and one[2] != other[2]
    if isinstance(before, dict):
        return any(changed_scales(each, after[name]) for name, each in before.items())
    if isinstance(before, list):
        return any(map(changed_scales, before, after))
    return False


@define
class Widen:
    """Widens columns of one table. It may be interrupted at any time."""

    table: DecodedTable
    several: Mapping[str, str]
    #: Called with the bytes of each file that was read.
    on_progress: Callable[[int], None] = lambda _: None
    #: Called with the name of each step before it begins. Tests kill the process between steps.
    on_step: Callable[[str], None] = lambda _: None
    #: The new files, by the path of the file whose rows they have.
    _made: dict[str, Part | None] = field(factory=dict, init=False)
    _made_for: str = field(default="", init=False)

    def run(self) -> int:
        """Widen the columns, and return the number of files that were written again. The table is the newest snapshot.

        Raises NotWidened, CommitConflict, DamagedFile, NewerFormat, Unreachable.
        """
        if self.table.kind != TYPED:
            raise NotWidened(f"{self.table.location} is no typed table.")
        for _ in range(ATTEMPTS):
            schema = self._schema()
            if schema is None:
                return 0
            try:
                self._write(schema)
                self.on_step("before commit")
                parts = [part for file in self.table.files if (part := self._made[file.path]) is not None]
                actions = [part.add_action(data_change=False) for part in parts]
                info = {WIDENED: dict(self.several)}
                self.table = self.table.write(actions, info, {}, retries=0, replacing=schema)
                self.on_step("after commit")
                return len(parts)
            except (CommitConflict, FileNotFoundError):
                self.table = self.table.reopened()
        raise CommitConflict(
            f"{self.table.location}: others have committed {ATTEMPTS} times meanwhile; try again."
        )

    def _schema(self) -> Schema | None:
        """Return the wider columns, None if the table has them already. Raises NotWidened, NewerFormat."""
        refuse_other_features(self.table.location, self.table.delta)
        before = json.loads(self.table.delta.schema().to_json())
        after = widened(before, self.several)
        if after == before:
            return None
        if changed_scales(before, after) and is_mirrored(self.table):
            raise NotWidened(
                f"{self.table.location} has an Iceberg table, in which a decimal keeps its scale; keep it, or drop the "
                "Iceberg table and remove its folder _iceberg first."
            )
        return Schema.from_json(json.dumps(after))

    def _write(self, schema: Schema) -> None:
        """Write the files of the snapshot that were not written yet."""
        if self._made_for != schema.to_json():
            self._made.clear()
            self._made_for = schema.to_json()
        partition_by = self.table.delta.metadata().partition_columns
        columns = pa.schema([each for each in arrow_columns(schema) if each.name not in partition_by])
        left = [file for file in self.table.files if file.path not in self._made]
        for file, part in results(partial(self._written, columns), left):
            self.on_step("write")
            self._made[file.path] = part
            self.on_progress(file.size)

    def _written(self, columns: pa.Schema, file: DecodedFile) -> Part | None:
        table = self.table
        filesystem = table.location.filesystem()
        return retried_writing(
            table.location,
            lambda: written_instead(table, [file], conformed_rows(table, file, columns, filesystem)),
        )
