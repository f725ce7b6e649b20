"""A Hive metastore as a catalogue of Delta tables, of version 2.3 or newer.

The entry has the form in which Spark writes it: the columns are in properties, since Hive's own types lack some of
Delta's, and a metastore refuses a struct that has gained a field. Trino reads this form as well.
"""

from __future__ import annotations

from copy import deepcopy
from urllib.parse import urlsplit

from attrs import define, field, frozen
from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import (
    AlreadyExistsException,
    Database,
    FieldSchema,
    GetTableRequest,
    InvalidObjectException,
    InvalidOperationException,
    MetaException,
    NoSuchObjectException,
    SerDeInfo,
    StorageDescriptor,
    Table,
)
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from korvet.lake.registration.catalogue import Entry, NoNamespace, Preceded
from korvet.lake.registration.described import Described
from korvet.lake.registration.spark_properties import (
    has_columns,
    is_delta,
    other_properties,
    spark_properties,
)

DEFAULT_PORT = 9083
TIMEOUT_MS = 30_000


@frozen
class HiveCatalogue:
    """The metastore at thrift://host:port. Each call opens a connection, so it may be used by any thread."""

    uri: str

    def find(self, namespace: str, table: Described) -> Entry | None:
        """Implement `Catalogue`."""
        with self._client() as client:
            try:
                found = client.get_table_req(GetTableRequest(dbName=namespace, tblName=table.name)).table
            except NoSuchObjectException:
                return None
        properties = found.parameters or {}
        location = (found.sd.serdeInfo.parameters or {}).get("path") or found.sd.location or ""
        return Entry(location, is_delta(properties), has_columns(properties, table), found)

    def create(self, namespace: str, table: Described) -> None:
        """Implement `Catalogue`."""
        location = hadoop_url(table.location.url)
        entry = Table(
            tableName=table.name,
            dbName=namespace,
            owner="korvet",
            tableType="EXTERNAL_TABLE",
            parameters=spark_properties(table),
            partitionKeys=[],
            sd=StorageDescriptor(
                cols=[FieldSchema("col", "array<string>", "from deserializer")],
                location=location,
                inputFormat="org.apache.hadoop.mapred.SequenceFileInputFormat",
                outputFormat="org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
                compressed=False,
                numBuckets=-1,
                serdeInfo=SerDeInfo(
                    serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
                    parameters={"path": location, "serialization.format": "1"},
                ),
                bucketCols=[],
                sortCols=[],
                parameters={},
            ),
        )
        with self._client() as client:
            try:
                client.create_table(entry)
            except AlreadyExistsException as error:
                raise Preceded from error
            except MetaException as error:  # the database has refused a second row of the name
                if table.name not in client.get_all_tables(namespace):
                    raise
                raise Preceded from error
            except (NoSuchObjectException, InvalidObjectException) as error:
                if namespace not in (error.message or ""):  # it names what is missing
                    raise
                raise NoNamespace from error

    def update(self, namespace: str, table: Described, entry: Entry) -> None:
        """Implement `Catalogue`."""
        changed = deepcopy(entry.original)
        changed.parameters = {**other_properties(changed.parameters), **spark_properties(table)}
        with self._client() as client:
            try:
                client.alter_table(namespace, table.name, changed)
            except (NoSuchObjectException, InvalidOperationException) as error:
                if table.name in client.get_all_tables(namespace):
                    raise
                raise Preceded from error

    def create_namespace(self, namespace: str) -> None:
        """Implement `Catalogue`."""
        with self._client() as client:
            try:
                client.create_database(Database(name=namespace, parameters={}))
            except (AlreadyExistsException, MetaException):
                if namespace not in client.get_all_databases():
                    raise

    def _client(self) -> Connection:
        return Connection(self.uri)


@define
class Connection:
    """A connection to a metastore, as a context manager. Thrift's errors cannot pass a generator's."""

    uri: str
    _transport: TBufferedTransport = field(init=False)

    def __enter__(self) -> ThriftHiveMetastore.Client:
        address = urlsplit(self.uri)
        socket = TSocket(address.hostname, address.port or DEFAULT_PORT)
        socket.setTimeout(TIMEOUT_MS)
        self._transport = TBufferedTransport(socket)
        self._transport.open()
        return ThriftHiveMetastore.Client(TBinaryProtocol(self._transport))

    def __exit__(self, *_: object) -> None:
        self._transport.close()


def hadoop_url(url: str) -> str:
    """Return a table's URL with the scheme under which Hadoop's file systems are configured."""
    return f"s3a{url.removeprefix('s3')}" if url.startswith("s3://") else url
