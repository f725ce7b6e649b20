"""Locations of tables: a local folder, or a prefix in an S3-compatible store, with the options to reach it.

Options have the names that deltalake accepts (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …, in any case, with or without
AWS_). Missing ones are read from the environment. pyarrow's S3 filesystem is configured from the same options.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from attrs import field, frozen

from korvet.lake.errors import InvalidLocation
from korvet.urls import without_password

ACCEPTED = "accepted are a path, file:///path and s3://bucket/prefix"
# Arguments of pyarrow's S3FileSystem, and deltalake's names for them without AWS_.
S3_OPTIONS = {
    "access_key": ("access_key_id",),
    "secret_key": ("secret_access_key",),
    "session_token": ("session_token", "token"),
    "region": ("region", "default_region"),
    "endpoint_override": ("endpoint_url", "endpoint"),
}


@frozen
class Location:
    """A location, made by `parse`. `url` is file:///… or s3://…, without a slash at its end."""

    url: str
    options: Mapping[str, str] = field(factory=dict, repr=False)  # they may include secrets

    @classmethod
    def parse(cls, text: str, options: Mapping[str, str] | None = None) -> Location:
        """Read a path or a URL. Raises InvalidLocation."""
        scheme, separator, rest = text.partition("://")
        shown = without_password(text)
        if not text.strip():
            raise InvalidLocation(f"The location of the tables is empty; {ACCEPTED}.")
        if not separator:
            return cls(Path(text).expanduser().absolute().as_uri().rstrip("/"), dict(options or {}))
        if scheme == "file":
            if not rest.startswith("/"):
                raise InvalidLocation(f"{shown} names a machine, not a path of this one; {ACCEPTED}.")
            return cls(Path(unquote(rest)).absolute().as_uri().rstrip("/"), dict(options or {}))
        if scheme in {"s3", "s3a"}:
            if not re.match(r"[a-z0-9][a-z0-9._-]+(/|$)", rest):
                raise InvalidLocation(f"{shown} names no bucket; {ACCEPTED}.")
            return cls(f"s3://{rest.rstrip('/')}", dict(options or {}))
        raise InvalidLocation(f"{shown}: there are no tables at {scheme}://; {ACCEPTED}.")

    def __str__(self) -> str:
        """Return the path of a local location, otherwise the URL."""
        return self.path if self.is_local else self.url

    @property
    def is_local(self) -> bool:
        return self.url.startswith("file://")

    @property
    def path(self) -> str:
        """The path for the filesystem: an absolute path, or bucket/prefix."""
        if self.is_local:
            return unquote(urlsplit(self.url).path) or "/"
        return self.url.removeprefix("s3://")

    def child(self, name: str) -> Location:
        """Return the location `name` inside this one, such as a topic's table."""
        # `~` is not escaped: Spark and deltalake require it so.
        return Location(f"{self.url}/{name}", self.options)

    def storage_options(self) -> dict[str, str]:
        """Return the options for deltalake, which reads the environment itself."""
        if self.is_local:
            return {}
        options = {
            name.upper() if name.upper().startswith("AWS_") else f"AWS_{name.upper()}": value
            for name, value in self.options.items()
        }
        endpoint = options.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL", "")
        if endpoint.startswith("http://"):
            options.setdefault("AWS_ALLOW_HTTP", "true")
        return options

    def filesystem(self) -> pafs.FileSystem:
        """Return a new pyarrow filesystem, whose paths begin with `path`. Raises InvalidLocation."""
        if self.is_local:
            return pafs.LocalFileSystem()
        arguments: dict[str, str] = {}
        for name, spellings in S3_OPTIONS.items():
            for spelling in spellings:
                value = self.option(spelling)
                if value:
                    arguments[name] = value
                    break
        endpoint = arguments.get("endpoint_override", "")
        if endpoint.startswith("http://"):
            arguments["scheme"] = "http"
        try:
            return pafs.S3FileSystem(**arguments)
        except (ValueError, OSError) as error:
            raise InvalidLocation(f"{self.url}: {error}") from error

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files by their paths relative to this location. Raises OSError."""
        # deltalake deletes from S3: pyarrow's S3 filesystem replaces the folder of a deleted file by an empty object.
        if self.is_local:
            for path in paths:
                Path(self.path, path).unlink()
            return
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415  only deletion from S3 needs it

        store = DeltaStorageHandler(self.url, self.storage_options())
        for path in paths:
            store.delete_file(path)

    def delete_folder(self, name: str) -> None:
        """Delete the folder `name` in this location, with all files in it. Raises OSError."""
        filesystem = self.filesystem()
        if self.is_local:
            filesystem.delete_dir(f"{self.path}/{name}")
            return
        selector = pafs.FileSelector(f"{self.path}/{name}", recursive=True, allow_not_found=True)
        files = (each for each in filesystem.get_file_info(selector) if each.type == pafs.FileType.File)
        self.delete_files(each.path.removeprefix(f"{self.path}/") for each in files)

    def option(self, spelling: str) -> str | None:
        """Return an option by its name in lower case without AWS_, else the environment's, or None."""
        given = {name.lower().removeprefix("aws_"): value for name, value in self.options.items()}
        return given.get(spelling) or os.environ.get(f"AWS_{spelling.upper()}")


def sync(path: str) -> None:
    """Flush a local file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
