"""The seams around the broker, which the source text shows: what its users may touch, and who builds it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import korvet

ROOT = Path(korvet.__file__).parent


def modules(folder: Path) -> list[object]:
    return [pytest.param(path, id=path.relative_to(ROOT).as_posix()) for path in sorted(folder.rglob("*.py"))]


@pytest.mark.parametrize("path", modules(ROOT / "handlers"))
def test_handlers_do_not_touch_storage(path: Path) -> None:
    attributes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)]

    assert [] == [node.lineno for node in attributes if node.attr in ("storage", "_storage")]


def test_no_module_assigns_attributes_of_a_broker() -> None:
    assert [] == [
        f"{path.relative_to(ROOT)}:{target.lineno}"
        for path in sorted(ROOT.rglob("*.py"))
        for target in assigned_attributes(ast.parse(path.read_text()))
        if "broker" in names_in(target.value)
    ]


def assigned_attributes(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Yield the attributes that assignments set."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node


def names_in(expression: ast.AST) -> set[str]:
    """Return the names and attributes of an expression such as `self.broker.answers`."""
    nodes = list(ast.walk(expression))
    return {node.attr for node in nodes if isinstance(node, ast.Attribute)} | {
        node.id for node in nodes if isinstance(node, ast.Name)
    }
