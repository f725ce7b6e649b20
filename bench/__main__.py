"""`python -m bench`."""

from __future__ import annotations

from bench.command import main

main()
