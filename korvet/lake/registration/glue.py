"""AWS Glue's data catalogue as a catalogue of Delta tables, in the form that Spark and Athena expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import boto3
from attrs import define, field
from botocore.config import Config
from botocore.exceptions import ClientError

from korvet.lake.registration.catalogue import Entry, NoNamespace, Preceded
from korvet.lake.registration.described import SQL_NAMES, Described, sql_type
from korvet.lake.registration.spark_properties import (
    has_columns,
    is_delta,
    other_properties,
    spark_properties,
)

# Athena has one type of timestamps.
GLUE_NAMES = {**SQL_NAMES, "timestamp_ntz": "timestamp"}


@define
class GlueCatalogue:
    """The data catalogue of an account and a region. The properties have the names of PyIceberg's."""

    properties: Mapping[str, str]
    _client: Any = field(init=False)

    def __attrs_post_init__(self) -> None:
        given = {name.removeprefix("glue."): text for name, text in self.properties.items()}
        session = boto3.Session(
            profile_name=given.get("profile-name"),
            region_name=given.get("region"),
            aws_access_key_id=given.get("access-key-id"),
            aws_secret_access_key=given.get("secret-access-key"),
            aws_session_token=given.get("session-token"),
        )
        self._client = session.client(
            "glue", endpoint_url=given.get("endpoint"), config=Config(retries={"mode": "standard"})
        )

    @property
    def _account(self) -> dict[str, str]:
        return {"CatalogId": self.properties["glue.id"]} if "glue.id" in self.properties else {}

    def find(self, namespace: str, table: Described) -> Entry | None:
        """Implement `Catalogue`."""
        try:
            answer = self._client.get_table(DatabaseName=namespace, Name=table.name, **self._account)
        except ClientError as error:
            if code(error) == "EntityNotFoundException":
                return None
            raise
        found = answer["Table"]
        properties, storage = found.get("Parameters", {}), found.get("StorageDescriptor", {})
        location = storage.get("SerdeInfo", {}).get("Parameters", {}).get("path") or storage.get(
            "Location", ""
        )
        # Tables that Athena or a crawler has made lack Spark's property.
        is_ours = is_delta(properties) or properties.get("table_type", "").lower() == "delta"
        return Entry(location, is_ours, has_columns(properties, table), found)

    def create(self, namespace: str, table: Described) -> None:
        """Implement `Catalogue`."""
        try:
            self._client.create_table(DatabaseName=namespace, TableInput=_input(table, {}), **self._account)
        except ClientError as error:
            if code(error) == "AlreadyExistsException":
                raise Preceded from error
            if code(error) == "EntityNotFoundException":
                raise NoNamespace from error
            raise

    def update(self, namespace: str, table: Described, entry: Entry) -> None:
        """Implement `Catalogue`. The entry is replaced only if it is the one that was found."""
        changed = _input(table, entry.original.get("Parameters", {}))
        if "Owner" in entry.original:
            changed["Owner"] = entry.original["Owner"]
        version = {"VersionId": entry.original["VersionId"]} if "VersionId" in entry.original else {}
        try:
            self._client.update_table(
                DatabaseName=namespace, TableInput=changed, SkipArchive=True, **version, **self._account
            )
        except ClientError as error:
            if code(error) in ("EntityNotFoundException", "ConcurrentModificationException"):
                raise Preceded from error
            raise

    def create_namespace(self, namespace: str) -> None:
        """Implement `Catalogue`."""
        try:
            self._client.create_database(DatabaseInput={"Name": namespace}, **self._account)
        except ClientError as error:
            if code(error) != "AlreadyExistsException":
                raise


def code(error: ClientError) -> str:
    """Return the code of Glue's answer."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _input(table: Described, properties: Mapping[str, str]) -> dict[str, Any]:
    """Return Glue's description of a table. `properties` are those of the entry that it replaces."""
    location = table.location.url
    return {
        "Name": table.name,
        "Description": table.comment,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**other_properties(properties), **spark_properties(table), "table_type": "DELTA"},
        "PartitionKeys": [],
        "StorageDescriptor": {
            "Columns": [
                {"Name": each["name"].lower(), "Type": sql_type(each["type"], GLUE_NAMES)}
                for each in table.columns
            ],
            "Location": location,
            "InputFormat": "org.apache.hadoop.mapred.SequenceFileInputFormat",
            "OutputFormat": "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
            "SerdeInfo": {
                "SerializationLibrary": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
                "Parameters": {"path": location, "serialization.format": "1"},
            },
        },
    }
