"""`korvet lake decode`: decode archived topics to typed tables, exactly once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from korvet.cli.lake.options import (
    RenamedOption,
    config_file,
    lake_location,
    needing_extra,
    parsed_location,
    spark_options,
    spark_settings,
    storage_options,
)
from korvet.cli.lake.running import ended_by_signals
from korvet.cli.output import print_json
from korvet.cli.progress import ProgressLine
from korvet.cli.times import interval_s

if TYPE_CHECKING:
    from korvet.pipeline.decoding.job import DecodeJob
    from korvet.pipeline.decoding.rounds import Decoding
    from korvet.pipeline.decoding.specification import Specification


@click.command(name="decode")
@lake_location("--at")
@click.option(
    "--typed",
    "--to",
    "typed_text",
    cls=RenamedOption,
    metavar="URL",
    required=True,
    help="Location of the typed tables; it must differ from that of the archive.",
)
@click.option(
    "-t",
    "--topics",
    default="",
    metavar="TOPICS",
    help="Names, separated by commas. [those of --specification]",
)
@click.option(
    "-s", "--specification", "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="TOML with a section [topics.<name>] for each topic; command-line options override it.",
)  # fmt: skip
@click.option("--format", "form", metavar="FORMAT", help="json, json-schema, avro or protobuf. [json]")
@click.option("--schema", metavar="DDL", help="JSON: the columns, id bigint, at timestamp. [inferred]")
@click.option("--schema-file", metavar="FILE", help="The same in a file; or .avsc, .proto, .desc.")
@click.option(
    "--registry", metavar="URL", help="Schema registry; values have the framing of Confluent's clients."
)
@click.option(
    "--subject-strategy",
    metavar="NAME",
    help="RecordNameStrategy or TopicRecordNameStrategy, with --records.",
)
@click.option(
    "--records",
    metavar="NAMES",
    help="Record types, each with a table of its own: shop.Order, …; a last * stands for all others.",
)
@click.option("--message", metavar="NAME", help="Protobuf: the message type. [the first of the file]")
@click.option(
    "--unknown", metavar="WHAT", help="JSON fields without a column: add, drop or dlq. [add without a schema]"
)
@click.option(
    "--numbers", metavar="TYPE", help="Inferred numbers: long, double or string. [long, double with a point]"
)
@click.option(
    "--lenient",
    metavar="RULES",
    help="Conversions that are permitted, separated by commas: number-from-string, …",
)
@click.option("--on-error", metavar="WHAT", help="Bad rows: dlq (to TABLE~dlq), skip or stop. [dlq]")
@click.option(
    "--partition-by",
    metavar="COLUMNS",
    help="Columns, separated by commas; days, hours or months: the record's timestamp.",
)
@click.option("--bucket-by", metavar="COLUMN", help="A column by whose hash rows are partitioned: _bucket.")
@click.option(
    "--buckets", type=int, metavar="NUMBER", help="With --bucket-by: the number of its buckets. [16]"
)
@click.option(
    "--cluster-by", metavar="COLUMNS", help="Up to 4 columns by which rows are sorted when files are joined."
)
@click.option("--rename-file", metavar="FILE", help='TOML: "path.of.field" = "column".')
@click.option(
    "--flatten", metavar="SEPARATOR", help="Flatten nested fields; their names are joined with SEPARATOR."
)
@click.option("--unwrap", metavar="ENVELOPE", help="debezium: extract the rows of change events.")
@click.option(
    "--upsert",
    is_flag=True,
    default=None,
    help="Keep one row for each key, that of the latest offset; tombstones delete rows.",
)
@click.option(
    "--key-format",
    metavar="FORMAT",
    help="Decode keys to columns: string, int, long, json, json-schema, avro or protobuf.",
)
@click.option("--key-schema", metavar="DDL", help="Schema of the keys, unless it is in the registry.")
@click.option("--key", metavar="COLUMNS", help="With --upsert: the columns of a key. [the record's key]")
@click.option("--deletes", metavar="HOW", help="With --upsert: hard, or soft to mark deleted rows. [hard]")
@click.option("--keep-raw", is_flag=True, default=None, help="Keep the undecoded value in the column _raw.")
@storage_options
@click.option("--once", is_flag=True, help="Decode the current archive, and end.")
@click.option("--every", "every_s", callback=interval_s, metavar="TIME", help="Repeat at this interval: 30s.")
@click.option(
    "--show", is_flag=True, help="Only show the columns that the first records need, and their faults."
)
@click.option("--redrive", is_flag=True, help="First decode the rows of dlq tables again.")
@click.option("--accept-gap", is_flag=True, help="Continue after rows that the archive has lost.")
@spark_options
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@config_file
def command(
    lake: str,
    typed_text: str,
    topics: str,
    file: Path | None,
    form: str | None,
    storage_texts: tuple[str, ...],
    once: bool,
    every_s: float | None,
    show: bool,
    redrive: bool,
    accept_gap: bool,
    master: str | None,
    spark_texts: tuple[str, ...],
    as_json: bool,
    **settings: Any,
) -> None:
    """Decode archived topics to typed tables, once or continuously.

    A topic's values, JSON, Avro or Protobuf, become columns of the Delta table URL/<topic>, every record exactly once;
    what cannot be decoded goes to URL/<topic>~dlq with what is wrong. SIGTERM and Ctrl-C finish the commit in hand.
    Exits with 1 when a topic failed, or none of its values could be decoded.
    """
    if once + (every_s is not None) + show != 1:
        raise click.UsageError("One of --once, --every and --show is needed.")
    archive, typed = parsed_location(lake, storage_texts), parsed_location(typed_text, storage_texts)
    if redrive and show:
        raise click.UsageError("--redrive does not go with --show, which writes nothing.")
    if archive.url == typed.url:
        raise click.BadParameter(
            "is the location of the archive; typed tables need a different one.", param_hint="--typed"
        )
    logging.basicConfig(format="korvet: %(message)s")
    with needing_extra():
        from korvet.pipeline.archive_workers import JavaEnded
        from korvet.pipeline.decoding.distributing import Here, OnSpark
        from korvet.pipeline.decoding.job import DecodeJob
        from korvet.pipeline.decoding.rounds import Decoding
        from korvet.pipeline.session import JavaNotFound, spark_session
    specifications = chosen(topics, file, {"format": form, **settings})
    if show and not any(
        (each.schema and each.format == "json") or each.key_format == "json" for each in specifications
    ):
        preview([Decoding(each, archive, typed, Here()) for each in specifications])
        return
    try:
        # --show needs Spark for a DDL schema, which only Spark can parse.
        spark = spark_session("korvet lake decode", master=master, settings=spark_settings(spark_texts))
        try:
            decodings = [
                Decoding(each, archive, typed, OnSpark(spark), accept_gap=accept_gap, once=once)
                for each in specifications
            ]
            if show:
                preview(decodings)
                return
            display = Display()
            job = DecodeJob(decodings, every_s, display.show, redrive)
            try:
                with ended_by_signals(job), needing_extra():
                    job.run()
            finally:
                display.end()
        finally:
            spark.stop()
    except (JavaNotFound, JavaEnded) as error:
        raise click.ClickException(str(error)) from error
    summarize(job, as_json=as_json)


def chosen(topics: str, file: Path | None, settings: dict[str, Any]) -> list[Specification]:
    """Return the specifications of the options and the file. Raises ConfigError."""
    from korvet.pipeline.decoding.specification import specifications

    given = {name: value for name, value in settings.items() if value is not None}
    if "schema_file" in given:
        given["schema_file"] = str(Path(given["schema_file"]).absolute())
    if "rename_file" in given:
        given["rename_file"] = str(Path(given["rename_file"]).absolute())
    names = tuple(filter(None, (name.strip() for name in topics.split(","))))
    return [one for each in specifications(names, file, given).values() for one in each.by_record()]


def preview(decodings: list[Decoding]) -> None:
    """Print the columns that the first records need, and their faults. Raises ClickException."""
    from korvet.lake.errors import LakeError
    from korvet.pipeline.archive_workers import SparkFailed
    from korvet.pipeline.decoding.leaves import SchemaFault
    from korvet.pipeline.decoding.registry import RegistryError

    for decoding in decodings:
        topic = decoding.specification.name
        try:
            with needing_extra():
                found = decoding.preview()
        except (LakeError, SchemaFault, RegistryError, SparkFailed) as error:
            raise click.ClickException(f"{topic}: {error}") from error
        click.echo(f"{topic}: {found.columns or 'no columns'}")
        click.echo(f"{topic}: of the first {found.records:,} records {found.bad:,} would be bad rows")
        for fault in found.faults:
            click.echo(f"  {fault}")


class Display:
    """Shows the progress of decoding, new columns, and the errors of topics."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}
        self._columns: dict[str, int] = {}
        self._line = ProgressLine()

    def show(self, job: DecodeJob) -> None:
        for progress in job.progress.values():
            if progress.error and self._errors.get(progress.topic) != progress.error:
                self._line.say(f"korvet: {progress.topic}: {progress.error}")
            self._errors[progress.topic] = progress.error
            for columns in progress.columns[self._columns.get(progress.topic, 0) :]:
                self._line.say(f"{progress.topic}: new columns: {columns}")
            self._columns[progress.topic] = len(progress.columns)
        records = sum(progress.records for progress in job.progress.values())
        bad = sum(progress.bad for progress in job.progress.values())
        self._line.show(f"decoded {records:,} records, {bad:,} bad")

    def end(self) -> None:
        self._line.end()


def summarize(job: DecodeJob, *, as_json: bool) -> None:
    """Print the results, and exit with 1 if a topic failed, or if all of its values are bad."""
    topics = sorted(job.progress.values(), key=lambda progress: progress.topic)
    if as_json:
        names = ("topic", "records", "typed", "bad", "tombstones")
        print_json(
            [
                {
                    **{name: getattr(each, name) for name in names},
                    **({} if each.redriven is None else {"redriven": each.redriven}),
                    "error": each.error or None,
                }
                for each in topics
            ]
        )
    else:
        for each in topics:
            click.echo(
                f"{each.topic}: {each.records:,} records: {each.typed:,} typed, {each.bad:,} bad, "
                f"{each.tombstones:,} tombstones"
                + ("" if each.redriven is None else f"; {each.redriven:,} of the dlq table redriven")
                + (f"; failed: {each.error}" if each.error else "")
            )
            for fault in each.faults:
                click.echo(f"  {fault}")
    hopeless = [each for each in topics if each.bad and not each.typed and not each.error]
    for each in hopeless:
        click.echo(f"korvet: {each.topic}: none of its values could be decoded", err=True)
    if hopeless or any(each.error for each in topics):
        raise click.exceptions.Exit(1)
