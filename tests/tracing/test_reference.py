from __future__ import annotations

from pathlib import Path

from korvet.tracing.reference import page

PAGE = Path(__file__).parents[2] / "docs" / "tracing.md"


def test_page_of_the_traces_is_the_generated_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == "\n".join(page()), (
        "write it: .venv/bin/python -m korvet.tracing.reference > docs/tracing.md"
    )
