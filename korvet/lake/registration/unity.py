"""Unity Catalog as a catalogue of Delta tables: external tables, by its REST API 2.1.

The API changes no columns of a table. So a table that has gained columns is removed from the catalogue, which deletes
no data of an external table, and is registered again.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from attrs import field, frozen

from korvet.lake.registration.catalogue import Entry, NoNamespace, NotRegistered, Preceded
from korvet.lake.registration.described import Described, sql_type

API = "/api/2.1/unity-catalog"
TIMEOUT_S = 30.0
#: Unity's names of types that differ from Delta's names in upper case.
TYPE_NAMES = {"integer": "INT"}


class Refused(NotRegistered):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


@frozen
class UnityCatalogue:
    """A catalogue of the server at a URL, which may end with the path of the API."""

    uri: str
    catalog: str
    token: str | None = field(default=None, repr=False)

    def find(self, namespace: str, table: Described) -> Entry | None:
        """Implement `Catalogue`."""
        try:
            found = self._ask("GET", f"tables/{self._full_name(namespace, table)}")
        except Refused as error:
            if error.status == 404:
                return None
            raise
        there = [
            (each.get("name"), _type_text(each.get("type_text", ""))) for each in found.get("columns", ())
        ]
        wanted = [(each["name"], _type_text(sql_type(each["type"]))) for each in table.columns]
        is_delta = found.get("data_source_format") == "DELTA"
        return Entry(found.get("storage_location") or "", is_delta, there == wanted, found)

    def create(self, namespace: str, table: Described) -> None:
        """Implement `Catalogue`."""
        body = {
            "name": table.name,
            "catalog_name": self.catalog,
            "schema_name": namespace,
            "table_type": "EXTERNAL",
            "data_source_format": "DELTA",
            "storage_location": table.location.url,
            "comment": table.comment,
            "columns": [_column(table, place) for place in range(len(table.columns))],
        }
        try:
            self._ask("POST", "tables", body)
        except Refused as error:
            if error.status == 409 or error.code.endswith("ALREADY_EXISTS"):
                raise Preceded from error
            if error.status == 404 or error.code == "SCHEMA_NOT_FOUND":
                raise NoNamespace from error
            raise

    def update(self, namespace: str, table: Described, entry: Entry) -> None:  # noqa: ARG002
        """Implement `Catalogue`."""
        try:
            self._ask("DELETE", f"tables/{self._full_name(namespace, table)}")
        except Refused as error:
            if error.status != 404:
                raise
        self.create(namespace, table)

    def create_namespace(self, namespace: str) -> None:
        """Implement `Catalogue`. Raises Refused also if there is no such catalogue."""
        try:
            self._ask("POST", "schemas", {"name": namespace, "catalog_name": self.catalog})
        except Refused as error:
            if error.status != 409 and not error.code.endswith("ALREADY_EXISTS"):
                raise

    def _full_name(self, namespace: str, table: Described) -> str:
        return quote(f"{self.catalog}.{namespace}.{table.name}", safe="")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of an answer. Raises Refused, NotRegistered."""
        address = self.uri.rstrip("/").removesuffix(API) + API
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(f"{address}/{path}", data, headers, method=method)  # noqa: S310  checked
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
                content = answer.read()
            return json.loads(content) if content.strip() else {}
        except urllib.error.HTTPError as error:
            raise _refusal(error, f"{method} {address}/{path}") from None
        except (OSError, ValueError) as error:
            raise NotRegistered(
                f"Unity Catalog at {self.uri} does not answer: {getattr(error, 'reason', error)}."
            ) from None


def _refusal(error: urllib.error.HTTPError, asked: str) -> Refused:
    """Return the error for an answer with an error status."""
    with error:
        try:
            content = json.load(error)
        except (OSError, ValueError):
            content = {}
    known = content if isinstance(content, dict) else {}
    reason = " ".join(str(known.get("message") or error.reason).split()).rstrip(".")
    return Refused(
        error.code, str(known.get("error_code", "")), f"{asked} was answered with {error.code}: {reason}."
    )


def _column(table: Described, place: int) -> dict[str, Any]:
    """Return Unity's description of a column."""
    column = table.columns[place]
    kind = column["type"]
    text = sql_type(kind)
    name = kind if isinstance(kind, str) else kind["type"]
    found = {
        "name": column["name"],
        "type_text": text,
        "type_json": json.dumps(column, separators=(",", ":")),
        "type_name": TYPE_NAMES.get(name, name.partition("(")[0].upper()),
        "nullable": column["nullable"],
        "position": place,
    }
    if text.startswith("decimal("):
        precision, scale = text.removeprefix("decimal(").removesuffix(")").split(",")
        found |= {"type_precision": int(precision), "type_scale": int(scale)}
    if column["name"] in table.partition_columns:
        found["partition_index"] = list(table.partition_columns).index(column["name"])
    return found


def _type_text(text: str) -> str:
    return "".join(text.split()).lower()
