"""Options that the commands of `korvet lake` share: the location of the lake, Spark, and a configuration file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import click
from attrs import evolve

from korvet.cli.options import assignments

if TYPE_CHECKING:
    from korvet.lake.errors import LakeError
    from korvet.lake.location import Location
    from korvet.lake.table import LakeTable
    from korvet.pipeline.decoding.tables import DecodedTable

F = TypeVar("F", bound=Callable[..., object])


class RenamedOption(click.Option):
    """An option whose other names are those of earlier versions. Help and errors show only the first name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the name and the help, as click shows them."""
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names

    def get_error_hint(self, ctx: click.Context | None) -> str:  # noqa: ARG002  click's signature
        """Return the name for errors."""
        return f"'{self.opts[0]}'"


def lake_location(*earlier: str) -> Callable[[F], F]:
    """Return the option for the location of the lake, with its names in earlier versions. Its parameter is `lake`."""
    return click.option(
        "--lake",
        *earlier,
        "lake",
        cls=RenamedOption,
        metavar="URL",
        required=True,
        envvar="KORVET_LAKE_URL",
        show_envvar=True,
        help="Location of the tables, one for each topic: a path, file:///path, or an s3://, gs:// or abfss:// URL.",
    )


storage_options = click.option(
    "--storage-option",
    "storage_texts",
    metavar="NAME=VALUE",
    multiple=True,
    help="Object store option, such as AWS_ENDPOINT_URL=…; may be repeated. Default: environment variables.",
)


_master = click.option(
    "--master",
    metavar="URL",
    help="The Spark cluster: spark://host:7077, k8s://https://…, yarn. [this machine]",
)
_spark_conf = click.option(
    "--spark-conf",
    "spark_texts",
    metavar="NAME=VALUE",
    multiple=True,
    help="Spark setting, such as spark.executor.memory=4g; may be repeated.",
)


def spark_options(command: F) -> F:
    """Add the options for the Spark cluster and its settings. The parameters are `master` and `spark_texts`."""
    return _master(_spark_conf(command))


def spark_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Return the Spark settings of --spark-conf. Raises BadParameter."""
    settings = assignments(texts, "--spark-conf")
    refuse_other_settings(settings, "--spark-conf")
    return settings


def refuse_other_settings(names: Iterable[str], origin: str) -> None:
    """Raise BadParameter, which states the origin of the names, unless all are names of Spark settings."""
    for name in names:
        if not name.startswith("spark."):
            raise click.BadParameter(
                f"{name!r} is not a Spark setting; accepted: names that begin with spark.", param_hint=origin
            )


def configured(context: click.Context, _parameter: click.Parameter, path: str | None) -> None:
    """Use the file's values as the defaults of options. The command line and the environment override them."""
    if path is None:
        return
    with open(path, "rb") as file:  # noqa: PTH123  a path as it was given
        try:
            values = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise click.BadParameter(f"{path} is not valid TOML: {error}.") from None
    known: dict[str, str] = {}
    earlier: dict[str, str] = {}
    for parameter in context.command.params:
        # A second long name is for the command line only.
        names = [each.removeprefix("--") for each in parameter.opts if each.startswith("--")]
        if parameter.name and names and names[0] != "config":
            known[names[0]] = parameter.name
            if isinstance(parameter, RenamedOption):
                earlier |= dict.fromkeys(names[1:], parameter.name)
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known and name not in earlier:
            raise click.BadParameter(f"{path}: there is no {name}; accepted are {', '.join(sorted(known))}.")
        chosen[known.get(name) or earlier[name]] = _texts(value)
    context.default_map = {**(context.default_map or {}), **chosen}


def _texts(value: object) -> object:
    """Convert a table to NAME=VALUE texts. Return other values unchanged."""
    if isinstance(value, Mapping):
        return [f"{name}={text}" for name, text in value.items()]
    return value


config_file = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    callback=configured,
    is_eager=True,
    expose_value=False,
    help='A TOML file with values for these options: topics = "orders.*".',
)


def parsed_location(text: str, storage_texts: tuple[str, ...]) -> Location:
    """Return the location that the options name. Raises InvalidLocation."""
    with needing_extra():
        from korvet.lake.location import Location

    location = Location.parse(text, assignments(storage_texts, "--storage-option"))
    if location.is_local:
        return location
    # Spark's workers on other machines do not have this process's environment.
    ours = {name: value for name in location.store.variables if (value := os.environ.get(name))}
    return evolve(location, options={**ours, **location.options})


def archives(location: Location, topics: str | None) -> list[str]:
    """Return the comma-separated `topics`, or all topics that have an archive.

    Raises LakeError, and NoTable if there is no archive, because a mistyped location must not look like success.
    """
    if topics is not None:
        return split_names(topics)
    with needing_extra():
        from korvet.lake.listing import archives_in

    names = archives_in(location)
    if not names:
        raise no_archive(location)
    return names


def split_names(text: str) -> list[str]:
    """Return the names that commas separate."""
    return [name for name in text.split(",") if name]


def korvet_tables(location: Location, topics: str | None) -> list[str]:
    """Return the comma-separated `topics`, or the names of all archives, typed and dlq tables.

    Raises LakeError, and NoTable if there is none.
    """
    return list(opened_tables(location)) if topics is None else split_names(topics)


def opened_tables(location: Location) -> dict[str, LakeTable | DecodedTable]:
    """Return all archives, typed and dlq tables by their names. Raises LakeError, and NoTable if there is none."""
    with needing_extra():
        from korvet.lake.errors import WrongTable
        from korvet.lake.listing import tables_in
        from korvet.lake.parallel import results
        from korvet.pipeline.decoding.tables import open_table

    def opened(name: str) -> LakeTable | DecodedTable | None:
        with suppress(WrongTable):
            return open_table(location, name)
        return None

    tables = {name: table for name, table in results(opened, tables_in(location)) if table is not None}
    if not tables:
        raise no_archive(location)
    return tables


def no_archive(location: Location) -> LakeError:
    """Return the error for a location without archives."""
    from korvet.lake.errors import NoTable

    return NoTable(f"There is no archive of a topic at {location}; korvet lake archive writes archives.")


@contextmanager
def needing_extra(extra: str = "spark") -> Iterator[None]:
    """Convert a failed import in the block to a ClickException, which names the missing package and the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("korvet"):
            raise
        raise click.ClickException(
            f"korvet lake, for {error.name}, requires: pip install 'korvet[{extra}]'"
        ) from None
