"""The filesystem for Azure: pyarrow's, but deltalake writes the files.

If the upload of a block fails in pyarrow 26, closing the file blocks for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
from attrs import define


@define
class Writing:
    """A new file. deltalake's own accepts bytes alone, and pyarrow passes buffers."""

    _stream: Any

    @property
    def closed(self) -> bool:
        return bool(self._stream.closed)

    def write(self, data: Any) -> int:
        """Append the bytes. Raises OSError."""
        return int(self._stream.write(bytes(memoryview(data))))

    def tell(self) -> int:
        return int(self._stream.tell())

    def flush(self) -> None:
        self._stream.flush()

    def close(self) -> None:
        """Complete the file. Raises OSError."""
        self._stream.close()


@define(eq=False)
class AzureFiles(pafs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types
    """Files of one account. Paths begin with the container. `options` are deltalake's."""

    files: Any  # AzureFileSystem
    account: str
    options: Mapping[str, str]

    def open_output_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        """Open a new file, which is complete once it is closed."""
        from deltalake._internal import DeltaFileSystemHandler  # noqa: PLC0415  only writing needs it

        container, _, rest = path.partition("/")
        root = f"abfss://{container}@{self.account}.dfs.core.windows.net"
        handler = DeltaFileSystemHandler(root, dict(self.options))
        return pa.PythonFile(Writing(handler.open_output_stream(rest, dict(metadata or {}))), "w")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AzureFiles) and self.files == other.files

    __hash__ = None  # type: ignore[assignment] # as pyarrow's handlers

    def get_type_name(self) -> str:
        return "korvet-azure"

    def normalize_path(self, path: str) -> str:
        return str(self.files.normalize_path(path))

    def get_file_info(self, paths: Sequence[str]) -> Any:
        return self.files.get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self.files.get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: FBT001  pyarrow's signature
        self.files.create_dir(path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        self.files.delete_dir(path)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        self.files.delete_dir_contents(path, missing_dir_ok=missing_dir_ok)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError("the containers of an account are not deleted")

    def delete_file(self, path: str) -> None:
        self.files.delete_file(path)

    def move(self, src: str, dest: str) -> None:
        self.files.move(src, dest)

    def copy_file(self, src: str, dest: str) -> None:
        self.files.copy_file(src, dest)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.files.open_input_stream(path)

    def open_input_file(self, path: str) -> pa.NativeFile:
        return self.files.open_input_file(path)

    def open_append_stream(self, path: str, metadata: Mapping[str, str]) -> pa.NativeFile:
        return self.files.open_append_stream(path, metadata=metadata)
