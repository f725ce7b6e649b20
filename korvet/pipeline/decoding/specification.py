"""Settings for decoding a topic, from a TOML file and from options of the command line, which take precedence.

    [defaults]
    on_error = "dlq"

    [topics.orders]
    format = "json"
    schema = "id bigint NOT NULL, amount decimal(10,2), at timestamp"
    unknown = "add"

    [topics.orders.rename]
    amt = "amount"

All faults are reported together, one line each, with their paths.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import cattrs
from attrs import field, frozen
from cattrs.errors import ClassValidationError, IterableValidationError
from cattrs.gen import make_dict_structure_fn

from korvet.config import ConfigError
from korvet.lake.schema import HOUR, MONTH
from korvet.pipeline.decoding.columns import DATE, KEY
from korvet.pipeline.decoding.inference import Numbers
from korvet.pipeline.decoding.leaves import LENIENT, UTC_IF_NO_ZONE, Reading, Timestamps, Unknown

Format = Literal["json", "json-schema", "avro", "protobuf"]
OnError = Literal["dlq", "skip", "stop"]
Tombstones = Literal["skip", "keep"]
Unwrap = Literal["debezium"]
KeyFormat = Literal["string", "int", "long", "json", "json-schema", "avro", "protobuf"]
Strategy = Literal["TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"]
Deletes = Literal["hard", "soft"]

DLQ_SUFFIX = "~dlq"
#: Words in `partition_by` for periods of the record's timestamp, with their columns.
PERIODS = {"days": DATE, "hours": HOUR, "months": MONTH}
MOST_CLUSTERED = 4  # columns
BUCKETS, MOST_BUCKETS = 16, 10_000
#: In `records`: all record types.
ALL = "*"
MOST_TABLES = 50
FIRST_SECTIONS = ("defaults", "topics")


@frozen
class Specification:
    """Settings for decoding the values of one topic to a typed table.

    At most one source of a schema (`schema`, `schema_file`, `registry`) may be given. The schema of the format `json`
    does not come from a registry. Without one it is inferred: first from a sample; once the table exists, from its
    columns.
    """

    topic: str
    format: Format = "json"
    table: str = field(default=attrs.Factory(lambda self: self.topic, takes_self=True))
    schema: str | None = None  # Spark's DDL or its JSON; JSON Schema; Avro
    schema_file: str | None = None  # .ddl, .json, .avsc, .proto, .desc
    registry: str | None = None  # URL
    framing: Literal["confluent", "none"] = field(
        default=attrs.Factory(lambda self: "confluent" if self.registry else "none", takes_self=True)
    )
    subject: str = field(default=attrs.Factory(lambda self: f"{self.topic}-value", takes_self=True))
    #: The rule by which producers choose the subjects of a topic's values, by Confluent's names.
    subject_strategy: Strategy = "TopicNameStrategy"
    #: Names of the topic's record types, each of which gets a table; ALL: so do all types that are found.
    records: tuple[str, ...] = ()
    max_tables: int = MOST_TABLES  # with ALL in `records`
    #: The record type of this table, if it is one of several; see `by_record`.
    record: str | None = None
    message: str | None = None  # Protobuf: full name of the message type
    unknown: Unknown = field(
        default=attrs.Factory(
            lambda self: "drop" if self.schema or self.schema_file or self.format != "json" else "add",
            takes_self=True,
        )
    )
    numbers: Numbers = "long"
    timestamps: Timestamps = "iso"
    truncate_nanoseconds: bool = False
    lenient: tuple[str, ...] = ()  # of LENIENT
    max_columns: int = 1000
    sample: int = 10_000  # records
    on_error: OnError = "dlq"
    tombstones: Tombstones = "skip"
    unwrap: Unwrap | None = None
    upsert: bool = False
    key: tuple[str, ...] = ()  # with upsert: columns; by default, the record's key
    deletes: Deletes = "hard"  # with upsert: remove deleted rows, or mark them
    rename: dict[str, str] = field(factory=dict)
    rename_file: str | None = None
    flatten: str | None = None  # separator of the joined names
    keep_raw: bool = False
    keep_key: bool = False
    #: Format of the keys, whose fields become columns; by default, they do not.
    key_format: KeyFormat | None = None
    key_schema: str | None = None  # Spark's DDL or its JSON; JSON Schema; Avro
    key_subject: str = field(default=attrs.Factory(lambda self: f"{self.topic}-key", takes_self=True))
    key_prefix: str = "key_"
    cluster_by: tuple[str, ...] = ()  # columns by which rows are sorted when files are joined
    partition_by: tuple[str, ...] = ()  # columns, and one of PERIODS
    bucket_by: str | None = None  # a column by whose hash rows are partitioned, after `partition_by`
    buckets: int = BUCKETS

    @property
    def dlq(self) -> str:
        return f"{self.table}{DLQ_SUFFIX}"

    @property
    def name(self) -> str:
        """The name for reports: that of the topic, or that of the table if the topic has several."""
        return self.topic if self.record is None else self.table

    @property
    def takes_the_rest(self) -> bool:
        """True if values without a table of their own are bad rows of this one."""
        return self.record is None or self.record == self.named_records[0]

    @property
    def named_records(self) -> tuple[str, ...]:
        """The record types of the topic that are named."""
        return tuple(name for name in self.records if name != ALL)

    @property
    def finds_records(self) -> bool:
        """True if record types that are not named get tables when the first one's table meets them."""
        return ALL in self.records and self.takes_the_rest

    def by_record(self) -> list[Specification]:
        """Return the specification of each record type's table, or this one if the topic has one table."""
        return [self.of_record(name) for name in self.named_records] or [self]

    def of_record(self, name: str) -> Specification:
        is_of_topic = self.subject_strategy == "TopicRecordNameStrategy"
        topics_table = self.table if self.record is None else self.table.removesuffix(f".{self.record}")
        return attrs.evolve(
            self,
            record=name,
            table=f"{topics_table}.{name}",
            subject=f"{self.topic}-{name}" if is_of_topic else name,
            message=name if self.format == "protobuf" else None,
        )

    @property
    def reading(self) -> Reading:
        is_json = self.format in ("json", "json-schema")
        return Reading(
            self.unknown,
            self.timestamps,
            self.truncate_nanoseconds,
            exact_floats=not is_json,
            escaped_names=is_json,
            lenient=frozenset(self.lenient),
            whole_floats=self.format == "json-schema",
        )

    def faults(self) -> Iterator[tuple[str, str]]:
        """Yield settings that contradict each other, as (name, reason)."""
        given = [name for name in ("schema", "schema_file") if getattr(self, name)]
        if len(given) == 2:
            yield "schema", "is given twice: as schema and as schema_file"
        if self.format != "json":
            yield from self._faults_of_schemas(given)
        elif self.registry and self.framing == "none":
            yield "framing", "'none' does not go with registry, which JSON needs only for framed values"
        if self.numbers != "long" and self.format != "json":
            yield "numbers", f"is for json: a schema of {self.format} defines its number types"
        for name in self.lenient:
            if name not in LENIENT:
                yield "lenient", f"{name!r} is none of {', '.join(LENIENT)}"
        if self.format == "json-schema" and set(self.lenient) - {UTC_IF_NO_ZONE}:
            yield "lenient", f"accepts only {UTC_IF_NO_ZONE} for json-schema, whose values have types"
        elif self.lenient and self.format in ("avro", "protobuf"):
            yield "lenient", "is for json: avro and protobuf have types"
        if self.message and self.format != "protobuf":
            yield "message", "is for protobuf"
        yield from self._faults_of_records()
        yield from self._faults_of_keys()
        if len(self.cluster_by) > MOST_CLUSTERED or len(set(self.cluster_by)) < len(self.cluster_by):
            yield "cluster_by", f"accepts up to {MOST_CLUSTERED} different columns"
        if len(PERIODS.keys() & set(self.partition_by)) > 1:
            yield "partition_by", f"accepts one of {', '.join(PERIODS)}"
        if self.upsert and self.partition_by:
            yield "partition_by", "does not go with upsert: a row would have to move when its value changes"
        yield from self._faults_of_buckets()
        yield from self._faults_of_upserts()
        if self.upsert and self.tombstones == "keep":
            yield "tombstones", "'keep' cannot be combined with upsert, in which tombstones delete rows"
        for table in (self.table, *self.named_records):
            if not names_folder(table):
                name = "table" if table == self.table else "records"
                yield name, f"{table!r} cannot name a folder; without / \\ : ~ it could"
        for name in ("max_columns", "sample"):
            if getattr(self, name) < 1:
                yield name, "must be at least 1"
        if self.flatten is not None and not re.fullmatch(r"[A-Za-z0-9_.$-]+", self.flatten):
            yield "flatten", f"{self.flatten!r} cannot join names of columns; _ could"

    def _faults_of_records(self) -> Iterator[tuple[str, str]]:
        has_strategy = self.subject_strategy != "TopicNameStrategy"
        if has_strategy and not self.records:
            yield (
                "records",
                f"is missing: with {self.subject_strategy}, it names the record types of the topic",
            )
        if ALL not in self.records and self.max_tables != MOST_TABLES:
            yield "max_tables", 'is for records with "*"'
        if not self.records:
            return
        if not self.named_records:
            yield (
                "records",
                'needs a name before "*": values without a type are bad rows of the first one\'s table',
            )
        if self.max_tables < len(self.named_records):
            yield "max_tables", "must be at least the number of names in records"
        if not has_strategy:
            yield (
                "subject_strategy",
                "must be RecordNameStrategy or TopicRecordNameStrategy to go with records",
            )
        if not self.registry or self.framing == "none":
            yield "records", "needs a registry, and values with the ids of their schemas"
        for name in ("schema", "schema_file", "message"):
            if getattr(self, name):
                yield name, "does not go with records, each of which has its own schema"
        if self.subject != f"{self.topic}-value":
            yield "subject", "does not go with records: subject_strategy names the subjects"
        if len({name.lower() for name in self.records}) < len(self.records):
            yield "records", "has a name twice, for case does not count"

    def _faults_of_keys(self) -> Iterator[tuple[str, str]]:
        if self.key_format is None:
            if self.key_schema:
                yield "key_schema", "needs key_format"
        elif self.key_format in ("string", "int", "long"):
            if self.key_schema:
                yield (
                    "key_schema",
                    f"does not go with key_format = {self.key_format!r}, which is a single value",
                )
        elif self.key_format == "json":
            if not self.key_schema:
                yield "key_schema", "is missing: with key_format = 'json', it names the fields of the keys"
        elif self.key_format == "protobuf":
            if self.key_schema or not self.registry:
                yield "key_format", "'protobuf' takes the schema from the registry, not from key_schema"
        elif bool(self.key_schema) == bool(self.registry):
            what = "only one of key_schema and" if self.registry else "key_schema, or"
            yield "key_schema", f"key_format = {self.key_format!r} takes {what} registry"
        if not re.fullmatch(r"[A-Za-z0-9_]*", self.key_prefix):
            yield "key_prefix", f"{self.key_prefix!r} cannot begin names of columns; key_ could"

    def _faults_of_buckets(self) -> Iterator[tuple[str, str]]:
        if not 1 <= self.buckets <= MOST_BUCKETS:
            yield "buckets", f"must be from 1 to {MOST_BUCKETS:,}"
        if self.bucket_by is None:
            if self.buckets != BUCKETS:
                yield "buckets", "needs bucket_by, a column"
        elif self.upsert and self.bucket_by not in (self.key or (KEY,)):
            keys = ", ".join(self.key or (KEY,))
            yield "bucket_by", f"accepts {keys} with upsert: a row would have to move when its value changes"

    def _faults_of_upserts(self) -> Iterator[tuple[str, str]]:
        if self.key and not self.upsert:
            yield "key", "is for upsert"
        if len(set(self.key)) < len(self.key):
            yield "key", "names a column twice"
        if self.deletes == "soft" and not self.upsert:
            yield "deletes", "'soft' is for upsert; without it, tombstones = \"keep\" keeps deletions as rows"

    def _faults_of_schemas(self, given: list[str]) -> Iterator[tuple[str, str]]:
        if not given and not self.registry:
            yield "schema_file", f"{self.format} needs schema_file, or registry"
        if self.framing == "confluent" and not self.registry:
            yield "framing", "'confluent' needs the registry its schema ids are in"
        if self.unknown == "add" or (self.unknown == "dlq" and self.format != "json-schema"):
            yield "unknown", f"is for json: a schema of {self.format} defines all columns"
        if self.schema and self.format == "protobuf":
            yield "schema", "is for json and avro; protobuf takes schema_file or registry"


def names_folder(table: str) -> bool:
    """Return True if a table can have this name."""
    return table == table.strip() and re.fullmatch(r"[^/\\:~\x00-\x1f]+", table) is not None


SETTABLE = {one.name: one for one in attrs.fields(Specification) if one.name not in ("topic", "record")}


def specifications(
    topics: tuple[str, ...], file: Path | None, options: Mapping[str, Any]
) -> dict[str, Specification]:
    """Return a specification for each of `topics`; by default, for each topic in the file.

    `options` override the file for every topic. Raises ConfigError with all faults, OSError for the file.
    """
    sections = read_sections(file) if file else {}
    faults = list(unknown_sections(sections, file))
    defaults = sections.get("defaults", {})
    by_topic = sections.get("topics", {})
    chosen = topics or tuple(by_topic)
    if not chosen and not faults:
        faults.append("No topic is named: give --topics, or a file with sections [topics.<name>].")
    made = {}
    for topic in chosen:
        where = f"{file}: $.topics.{topic}" if topic in by_topic else f"topic {topic}"
        values = {**defaults, **by_topic.get(topic, {}), **options}
        try:
            made[topic] = structure(topic, values, where, file.parent if file else Path())
        except ConfigError as error:
            faults += error.errors
    if faults:
        raise ConfigError(faults)
    return made


def read_sections(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"{file} is not valid TOML: {error}"]) from None


def unknown_sections(sections: Mapping[str, Any], file: Path | None) -> Iterator[str]:
    for name, value in sections.items():
        if name not in FIRST_SECTIONS:
            yield f"{file}: $.{name}: unknown section; accepted: [defaults], [topics.<name>]"
        elif not isinstance(value, dict):
            yield f"{file}: $.{name}: is not a section"


def structure(topic: str, values: Mapping[str, Any], where: str, folder: Path) -> Specification:
    """Build a specification from plain values. Relative paths in it refer to `folder`. Raises ConfigError."""
    faults = [f"{where}.{name}: {unknown_setting(name)}" for name in values if name not in SETTABLE]
    known = {name: value for name, value in values.items() if name in SETTABLE}
    try:
        made: Specification = CONVERTER.structure({"topic": topic, **known}, Specification)
    except ClassValidationError as error:
        raise ConfigError([*faults, *described(error, where)]) from None
    faults += [f"{where}.{name}: {reason}" for name, reason in made.faults()]
    made = with_files(made, where, folder, faults)
    if faults:
        raise ConfigError(faults)
    return made


def with_files(made: Specification, where: str, folder: Path, faults: list[str]) -> Specification:
    """Resolve paths, and merge the renames of the mapping file; the specification's own take precedence."""
    if made.schema_file:
        made = attrs.evolve(made, schema_file=str(folder / made.schema_file))
        if not Path(str(made.schema_file)).is_file():
            faults.append(f"{where}.schema_file: there is no file {made.schema_file}")
    if made.rename_file:
        path = folder / made.rename_file
        try:
            names = CONVERTER.structure(read_sections(path), dict[str, str])
        except OSError as error:
            faults.append(f"{where}.rename_file: {path}: {error.strerror}")
        except ConfigError as error:
            faults += [f"{where}.rename_file: {line}" for line in error.errors]
        except IterableValidationError as error:
            faults += described(error, f"{where}.rename_file: {path}: $")
        else:
            made = attrs.evolve(made, rename={**names, **made.rename})
    return made


def unknown_setting(name: str) -> str:
    near = difflib.get_close_matches(name, SETTABLE, 1)
    return (
        f"there is no such setting; {f'is {near[0]} meant?' if near else 'there are ' + ', '.join(SETTABLE)}"
    )


def described(error: BaseException, path: str) -> list[str]:
    """Return one line for each fault in cattrs' exception group."""
    parts = [line.rpartition(" @ ") for line in cattrs.transform_error(error, path, exception_text)]
    return [f"{where}: {reason}".replace("\n", " ") for reason, _, where in parts]


def exception_text(error: BaseException, _type: type | None) -> str:
    return "is missing" if isinstance(error, KeyError) else str(error)


# --- Strict structuring: cattrs would accept "5" as 5 and 1.7 as 1. -------------------------------------------


def _exactly(wanted: type, name: str) -> Any:
    def structure_exactly(value: Any, _type: Any) -> Any:
        if type(value) is not wanted:
            raise ValueError(f"{value!r} is not {name}")
        return value

    return structure_exactly


def _one_of(value: Any, kind: Any) -> Any:
    accepted = get_args(kind)
    if value not in accepted:
        raise ValueError(f"{value!r} is none of {', '.join(accepted)}")
    return value


def _names(value: Any, _type: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list | tuple) or not all(isinstance(part, str) for part in value):
        raise ValueError(f"{value!r} is not a list of names")
    return tuple(value)


def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=True)
    converter.register_structure_hook(int, _exactly(int, "a whole number"))
    converter.register_structure_hook(bool, _exactly(bool, "true or false"))
    converter.register_structure_hook(str, _exactly(str, "a text"))
    converter.register_structure_hook_func(lambda kind: getattr(kind, "__origin__", None) is Literal, _one_of)
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _names)
    converter.register_structure_hook(Specification, make_dict_structure_fn(Specification, converter))
    return converter


CONVERTER = _converter()
