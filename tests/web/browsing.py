"""Chromium, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# The sandbox of Chromium does not work for root.
ARGUMENTS = ["--no-sandbox"] if os.geteuid() == 0 else []


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Debian's Chromium, or the one that CHROMIUM names, for the block."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  not installed for the newest Python

    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        raise RuntimeError("chromium is missing; .ci/system-packages installs it on Debian")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()
