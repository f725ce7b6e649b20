"""Where tables are: a folder of this machine, or a prefix in an S3-compatible store, and how to get there.

The options of a store are given once, under the names that deltalake takes (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …,
in any case, with or without the AWS_); what is not given is looked for in the environment. From them
pyarrow's S3 filesystem is told the same as deltalake.
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

ACCEPTED = "accepted are a path, file:///path and s3://bucket/prefix"
# Our names for what pyarrow wants, and how deltalake spells it without AWS_.
S3_OPTIONS = {
    "access_key": ("access_key_id",),
    "secret_key": ("secret_access_key",),
    "session_token": ("session_token", "token"),
    "region": ("region", "default_region"),
    "endpoint_override": ("endpoint_url", "endpoint"),
}


@frozen
class Location:
    """A place, as made by `parse`; `url` is file:///… or s3://…, without a slash at its end."""

    url: str
    options: Mapping[str, str] = field(factory=dict, repr=False)  # secrets may be among them

    @classmethod
    def parse(cls, text: str, options: Mapping[str, str] | None = None) -> Location:
        """Read a path or a URL. Raises InvalidLocation."""
        scheme, separator, rest = text.partition("://")
        if not text.strip():
            raise InvalidLocation(f"An empty text is no place for tables; {ACCEPTED}.")
        if not separator:
            return cls(Path(text).expanduser().absolute().as_uri().rstrip("/"), dict(options or {}))
        if scheme == "file":
            if not rest.startswith("/"):
                raise InvalidLocation(f"{text} names a machine, not a path of this one; {ACCEPTED}.")
            return cls(Path(unquote(rest)).absolute().as_uri().rstrip("/"), dict(options or {}))
        if scheme in {"s3", "s3a"}:
            if not re.match(r"[a-z0-9][a-z0-9._-]+(/|$)", rest):
                raise InvalidLocation(f"{text} names no bucket; {ACCEPTED}.")
            return cls(f"s3://{rest.rstrip('/')}", dict(options or {}))
        raise InvalidLocation(f"{text}: there are no tables at {scheme}://; {ACCEPTED}.")

    def __str__(self) -> str:
        """A path where it is one, or else the URL."""
        return self.path if self.is_local else self.url

    @property
    def is_local(self) -> bool:
        return self.url.startswith("file://")

    @property
    def path(self) -> str:
        """What the filesystem calls it: an absolute path, or bucket/prefix."""
        if self.is_local:
            return unquote(urlsplit(self.url).path) or "/"
        return self.url.removeprefix("s3://")

    def child(self, name: str) -> Location:
        """What has this name inside of it: a topic's table, for one. `~` is kept, as Spark and deltalake want it."""
        return Location(f"{self.url}/{name}", self.options)

    def storage_options(self) -> dict[str, str]:
        """What deltalake is told; it looks into the environment itself."""
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
        """A new pyarrow filesystem; paths on it begin with `path`. Raises InvalidLocation for options that clash."""
        if self.is_local:
            return pafs.LocalFileSystem()
        told: dict[str, str] = {}
        for name, spellings in S3_OPTIONS.items():
            for spelling in spellings:
                value = self._option(spelling)
                if value:
                    told[name] = value
                    break
        endpoint = told.get("endpoint_override", "")
        if endpoint.startswith("http://"):
            told["scheme"] = "http"
        try:
            return pafs.S3FileSystem(**told)
        except (ValueError, OSError) as error:
            raise InvalidLocation(f"{self.url}: {error}") from error

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files inside of this place, by their paths relative to it.

        pyarrow's S3 filesystem puts an empty object in place of a folder whose file it deletes; deltalake's does not.
        Raises OSError.
        """
        if self.is_local:
            for path in paths:
                Path(self.path, path).unlink()
            return
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415  only what deletes from S3 needs it

        store = DeltaStorageHandler(self.url, self.storage_options())
        for path in paths:
            store.delete_file(path)

    def delete_folder(self, name: str) -> None:
        """Delete a folder inside of this place, with all files in it. Raises OSError."""
        filesystem = self.filesystem()
        if self.is_local:
            filesystem.delete_dir(f"{self.path}/{name}")
            return
        selector = pafs.FileSelector(f"{self.path}/{name}", recursive=True, allow_not_found=True)
        files = (each for each in filesystem.get_file_info(selector) if each.type == pafs.FileType.File)
        self.delete_files(each.path.removeprefix(f"{self.path}/") for each in files)

    def _option(self, spelling: str) -> str | None:
        given = {name.lower().removeprefix("aws_"): value for name, value in self.options.items()}
        return given.get(spelling) or os.environ.get(f"AWS_{spelling.upper()}")


def sync(path: str) -> None:
    """Have a file or folder of this machine on the disk before anybody relies on it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
