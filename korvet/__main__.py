"""`python -m korvet` and `korvet` are the same program."""

from __future__ import annotations

from korvet.cli import main

if __name__ == "__main__":
    main()
