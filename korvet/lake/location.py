"""Locations of tables: a local folder, or a prefix in an object store, with the options to reach it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.fs as pafs
from attrs import field, frozen

from korvet.lake.errors import InvalidLocation
from korvet.lake.stores import STORES, ObjectStore, normalized, store_of
from korvet.urls import without_password

ACCEPTED = (
    "accepted are a path, file:///path, s3://bucket/prefix, gs://bucket/prefix and "
    "abfss://container@account.dfs.core.windows.net/path"
)


@frozen
class Location:
    """A location, made by `parse`. `url` is file:///… or that of an object store, without a slash at its end."""

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
        if scheme in STORES:
            url = normalized(scheme, rest)
            if url is None:
                raise InvalidLocation(f"{shown} names no bucket; {ACCEPTED}.")
            return cls(url, dict(options or {}))
        raise InvalidLocation(f"{shown}: there are no tables at {scheme}://; {ACCEPTED}.")

    def __str__(self) -> str:
        """Return the path of a local location, otherwise the URL."""
        return self.path if self.is_local else self.url

    @property
    def is_local(self) -> bool:
        return self.url.startswith("file://")

    @property
    def store(self) -> ObjectStore:
        """The object store of a location that is not local."""
        return store_of(self.url, self.options)

    @property
    def path(self) -> str:
        """The path for the filesystem: an absolute path, or bucket/prefix."""
        if self.is_local:
            return unquote(urlsplit(self.url).path) or "/"
        return self.store.path(self.url)

    def child(self, name: str) -> Location:
        """Return the location `name` inside this one, such as a topic's table."""
        # `~` is not escaped: Spark and deltalake require it so.
        return Location(f"{self.url}/{name}", self.options)

    def storage_options(self) -> dict[str, str]:
        """Return the options for deltalake, which reads the environment itself."""
        return {} if self.is_local else self.store.storage_options()

    def filesystem(self) -> pafs.FileSystem:
        """Return a new pyarrow filesystem, whose paths begin with `path`. Raises InvalidLocation."""
        if self.is_local:
            return pafs.LocalFileSystem()
        try:
            return self.store.filesystem(self.url)
        except (ValueError, OSError) as error:
            raise InvalidLocation(f"{self.url}: {error}") from error

    def folders(self) -> list[str]:
        """Return the names of the folders in this location, sorted. Raises OSError."""
        if self.is_local:
            infos = self.filesystem().get_file_info(pafs.FileSelector(self.path, allow_not_found=True))
        else:
            # pyarrow's listing of one level of Google's store has no folders.
            from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415  as in delete_files

            store = DeltaStorageHandler(self.url, self.storage_options())
            infos = store.get_file_info_selector(pafs.FileSelector("", allow_not_found=True))
        return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files by their paths relative to this location. Raises OSError."""
        # deltalake deletes: pyarrow's S3 filesystem replaces the folder of a deleted file by an empty object.
        if self.is_local:
            for path in paths:
                Path(self.path, path).unlink()
            return
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415  only deletion from stores needs it

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


def sync(path: str) -> None:
    """Flush a local file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
