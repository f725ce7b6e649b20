"""What the commands of `korvet lake` have in common: a configuration file, where the lake is, what is missing."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from korvet.cli.options import assignments

if TYPE_CHECKING:
    from korvet.lake.errors import LakeError
    from korvet.lake.location import Location

F = TypeVar("F", bound=Callable[..., object])

STORE_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ALLOW_HTTP",
)


def lake_location(*names: str) -> Callable[[F], F]:
    """The option that says where the lake is, under one of these names; the parameter is called `lake`."""
    return click.option(
        *names,
        "lake",
        metavar="URL",
        required=True,
        envvar="KORVET_LAKE_URL",
        show_envvar=True,
        help="Where the tables are, one for each topic: a path, file:///path or s3://bucket/prefix.",
    )


storage_options = click.option(
    "--storage-option",
    "storage_texts",
    metavar="NAME=VALUE",
    multiple=True,
    help="How to reach the store, as AWS_ENDPOINT_URL=…; may be repeated. Or the environment's variables.",
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
    help="A setting of Spark's, as spark.executor.memory=4g; may be repeated.",
)


def spark_options(command: F) -> F:
    """The options that say where Spark works, and how; the parameters are called `master` and `spark_texts`."""
    return _master(_spark_conf(command))


def spark_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """What --spark-conf gives. Raises BadParameter."""
    settings = assignments(texts, "--spark-conf")
    for name in settings:
        if not name.startswith("spark."):
            raise click.BadParameter(
                f"{name!r} is no setting of Spark's: they begin with spark.", param_hint="--spark-conf"
            )
    return settings


def configured(context: click.Context, _parameter: click.Parameter, path: str | None) -> None:
    """Take the file's values for options that are not given, neither as such nor in the environment."""
    if path is None:
        return
    with open(path, "rb") as file:  # noqa: PTH123  a path as it was given
        try:
            values = tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise click.BadParameter(f"{path} is no TOML: {error}.") from None
    known: dict[str, str] = {}
    for parameter in context.command.params:
        for option in parameter.opts:
            if parameter.name and option.startswith("--") and option != "--config":
                known[option.removeprefix("--")] = parameter.name
    chosen: dict[str, Any] = {}
    for name, value in values.items():
        if name not in known:
            raise click.BadParameter(f"{path}: there is no {name}; accepted are {', '.join(sorted(known))}.")
        chosen[known[name]] = _texts(value)
    context.default_map = {**(context.default_map or {}), **chosen}


def _texts(value: object) -> object:
    """Tables as NAME=VALUE texts, lists as they are."""
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
    """The place that the options name. Raises InvalidLocation."""
    with needing_extra():
        from korvet.lake.location import Location

    # Workers on other machines have another environment.
    ours = {name: value for name in STORE_VARIABLES if (value := os.environ.get(name))}
    return Location.parse(text, {**ours, **assignments(storage_texts, "--storage-option")})


def archives(location: Location, topics: str | None) -> list[str]:
    """Return the topics that are named, with commas between, or all that have an archive.

    Raises LakeError, NoTable if there is no archive at all: a mistyped place must not look like success.
    """
    if topics is not None:
        return [name for name in topics.split(",") if name]
    with needing_extra():
        from korvet.pipeline.archive_status import archives_in

    names = archives_in(location)
    if not names:
        raise no_archive(location)
    return names


def no_archive(location: Location) -> LakeError:
    """Return the error for a place that has no archive of any topic."""
    from korvet.lake.errors import NoTable

    return NoTable(f"There is no archive of a topic at {location}; korvet lake archive writes archives.")


@contextmanager
def needing_extra() -> Iterator[None]:
    """Around imports: what is not installed is told in one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("korvet"):
            raise
        raise click.ClickException(
            f"korvet lake needs {error.name}, which is not installed: pip install 'korvet[spark]'."
        ) from None
