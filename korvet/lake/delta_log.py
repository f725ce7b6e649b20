"""Parts of a table's log that deltalake does not offer: all `txn` actions in one pass, and commitInfo.

A commit is the file <20 digits>.json, one action per line. From time to time a checkpoint, in one or more Parquet
files, sums up all commits before it. Reading 1,000 `txn` actions one by one through deltalake would read the log
1,000 times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from attrs import define, field, frozen

from korvet.lake.errors import Unreachable
from korvet.lake.location import Location, sync

COMMIT = re.compile(r"(\d{20})\.json")
# Classic, multi-part, and V2 checkpoints. The file of this name has a V2 checkpoint's own actions, `txn` among them.
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.[^/]+)?\.(parquet|json)")


@frozen
class Commit:
    """A commit of the log. `added` and `removed` are its `add` and `remove` actions that change the table's rows."""

    version: int
    time_ms: int
    added: list[dict[str, Any]]
    removed: list[dict[str, Any]]


@frozen
class CommitFile:
    """The file of a commit: it differs from that of the same version in another table at the same location."""

    size: int
    modified_ns: int


@define
class DeltaLog:
    """The log of the table at a location. Reading raises the filesystem's OSError."""

    location: Location
    _filesystem: pafs.FileSystem = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._filesystem = self.location.filesystem()

    @property
    def folder(self) -> str:
        return f"{self.location.path}/_delta_log"

    def transactions(
        self, version: int, *, since: tuple[int, Mapping[str, int]] | None = None
    ) -> dict[str, int]:
        """Return the latest `txn` version of each application id at a version of the table.

        `since` is an earlier version with its result; the log up to it is not read again.
        """
        if since is not None and since[0] <= version:
            first, found = since[0] + 1, dict(since[1])
        else:
            first, found = self._checkpointed(version)
        for number in range(first, version + 1):
            for action in self._actions(number, "txn"):
                found[action["appId"]] = action["version"]
        return found

    def file(self, version: int) -> CommitFile | None:
        """Return the file of a commit, None if the log no longer has it."""
        return _commit_file(self._filesystem.get_file_info(self._path(version)))

    def ends_with(self, version: int, file: CommitFile | None) -> bool:
        """Return True if the log has this commit, in this file, and none after it."""
        this, following = self._filesystem.get_file_info([self._path(version), self._path(version + 1)])
        return file is not None and _commit_file(this) == file and _commit_file(following) is None

    def commits(self, first: int, last: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield version and commitInfo of the commits in [first, last] that are still in the log."""
        for number in self.versions():
            if not first <= number <= last:
                continue
            for action in self._actions(number, "commitInfo"):
                yield number, action

    def versions(self) -> list[int]:
        """Return the versions whose commits are still in the log, sorted."""
        return sorted(int(match[1]) for name in self._names() if (match := COMMIT.fullmatch(name)))

    def commit(self, version: int) -> Commit:
        """Return a commit. Raises Unreachable if the log does not have it any more."""
        found: dict[str, list[dict[str, Any]]] = {"commitInfo": [], "add": [], "remove": []}
        for kind, action in self._actions_of(version, *found):
            if action.get("dataChange", True):
                found[kind].append(action)
        time_ms = max((info.get("timestamp", 0) for info in found["commitInfo"]), default=0)
        return Commit(version, time_ms, found["add"], found["remove"])

    def moved(self, first: int, last: int) -> set[str] | None:
        """Return the paths of the files that commits in [first, last] have added with rows of files that they removed.

        Return None if one of the commits removed rows, or is not in the log any more.
        """
        found = set()
        try:
            for number in range(first, last + 1):
                for kind, action in self._actions_of(number, "remove", "add"):
                    is_change = action.get("dataChange", True)
                    if kind == "remove" and is_change:
                        return None
                    if kind == "add" and not is_change:
                        found.add(action["path"])
        except Unreachable:
            return None
        return found

    def sync(self, first: int, last: int) -> None:
        """Flush the commits in [first, last] to disk if the table is local."""
        # Brokers trim records once they are committed here, so a crash of the machine must not lose the commit.
        if not self.location.is_local:
            return
        for number in range(first, last + 1):
            with suppress(FileNotFoundError):  # a cleanup removed it, because a checkpoint has it
                sync(self._path(number))
        sync(self.folder)

    def _checkpointed(self, version: int) -> tuple[int, dict[str, int]]:
        """Return the first version after the last checkpoint, and the checkpoint's transactions."""
        parts: dict[int, list[str]] = {}
        for name in self._names():
            match = CHECKPOINT.fullmatch(name)
            if match is not None and int(match[1]) <= version:
                parts.setdefault(int(match[1]), []).append(name)
        if not parts:
            return 0, {}
        last = max(parts)
        found: dict[str, int] = {}
        for name in parts[last]:
            found.update(self._checkpoint(f"{self.folder}/{name}"))
        return last + 1, found

    def _checkpoint(self, path: str) -> dict[str, int]:
        if path.endswith(".json"):
            return {action["appId"]: action["version"] for _, action in self._lines(path, "txn")}
        rows = pq.read_table(path, columns=["txn"], filesystem=self._filesystem).column("txn").drop_null()
        return {action["appId"]: action["version"] for action in rows.to_pylist()}

    def _actions(self, version: int, kind: str) -> Iterator[dict[str, Any]]:
        for _, action in self._actions_of(version, kind):
            yield action

    def _actions_of(self, version: int, *kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
        try:
            yield from self._lines(self._path(version), *kinds)
        except FileNotFoundError:
            raise Unreachable(
                f"{self.location}: version {version} was removed from the table's log during the read; try again."
            ) from None

    def _lines(self, path: str, *kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield kind and content of the actions of these kinds in a file."""
        marks = {kind: f'"{kind}"'.encode() for kind in kinds}
        with self._filesystem.open_input_stream(path) as stream:
            content = stream.read()
        for line in content.splitlines():
            for kind, mark in marks.items():
                if mark in line[:32] and (action := json.loads(line).get(kind)) is not None:
                    yield kind, action

    def _names(self) -> list[str]:
        selector = pafs.FileSelector(self.folder, allow_not_found=True)
        return [info.base_name for info in self._filesystem.get_file_info(selector)]

    def _path(self, version: int) -> str:
        return f"{self.folder}/{version:020d}.json"


def _commit_file(info: pafs.FileInfo) -> CommitFile | None:
    return CommitFile(info.size, info.mtime_ns) if info.type == pafs.FileType.File else None
