"""The documentation site: Sphinx builds it from the Markdown files of the repository (`make docs`)."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "korvet" / "__init__.py").read_text())

project = "korvet"
version = release = VERSION[1] if VERSION else ""
html_title = f"{project} {version}"

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "docs/README"
# All other files of the repository are none of the site.
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "examples/backend/README.md",
    "tests/README.md",
    "docs/*.md",
    "docs/*/*.md",
]
myst_heading_anchors = 4  # so many levels of headings have the anchors that repositories show
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_show_sphinx = False
html_show_copyright = False

LINK = re.compile(r"\[([^\]]+)\]\(([^)#:]+)\)")
# The navigation. In the repository, docs/README.md has a table instead.
CONTENTS = """

```{toctree}
:hidden:
:glob:

/README
commands
operations
doctor
restart
processes
scaling
redis-failures
failover
damage
limits
costs
deployment
pipeline
spark
archives
typed-tables
iceberg
*
/examples/backend/README
/CHANGELOG
/CONTRIBUTING
/tests/README
```
"""


def prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """Append the navigation to the first page, and replace links to folders by their texts."""
    folder = Path(app.srcdir, name).parent

    def without_folder(match: re.Match[str]) -> str:
        return match[1] if (folder / match[2]).is_dir() else match[0]

    source[0] = LINK.sub(without_folder, source[0]) + (CONTENTS if name == root_doc else "")


def setup(app: Sphinx) -> None:
    """Register the extension of the site."""
    app.connect("source-read", prepare)
