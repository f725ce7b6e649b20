"""Metadata that is computed when packages are built: the README as package indexes show it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# [text](target), unless the target is an address of its own or a place in the same page.
RELATIVE_LINK = re.compile(r"\[([^\]]+)\]\((?![a-z]+:|#)[^)]+\)")


class ReadmeWithoutRelativeLinks(MetadataHookInterface):
    """Replaces links to files of the repository by their texts: a package index has no such files."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": RELATIVE_LINK.sub(r"\1", text)}
