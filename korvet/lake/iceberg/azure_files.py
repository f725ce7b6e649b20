"""Files in Azure for PyIceberg. Its own class takes container@account for the container's name."""

from __future__ import annotations

from urllib.parse import urlsplit

import pyarrow.fs as pafs
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.typedef import EMPTY_DICT, Properties

from korvet.lake.stores import AZURE_OPTION, azure_files


class AzureIO(PyArrowFileIO):
    """Files at abfss://container@account.dfs.core.windows.net/path, as korvet reads and writes them."""

    @staticmethod
    def parse_location(location: str, properties: Properties = EMPTY_DICT) -> tuple[str, str, str]:
        """Return the scheme, the host, and the path with the container."""
        parts = urlsplit(location)
        if parts.username is None:
            scheme, host, path = PyArrowFileIO.parse_location(location, properties)
            return scheme, host, path
        return parts.scheme, str(parts.hostname), f"{parts.username}{parts.path}"

    def _initialize_azure_fs(self) -> pafs.FileSystem:
        def having(prefix: str) -> dict[str, str]:
            return {
                name.removeprefix(prefix): text
                for name, text in self.properties.items()
                if name.startswith(prefix)
            }

        arguments = {name.replace("-", "_"): text for name, text in having("adls.").items()}
        return azure_files(arguments, having(AZURE_OPTION))
