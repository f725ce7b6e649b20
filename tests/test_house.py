"""Consistency of duplicated facts: the README and the table of APIs, the changelog and the version.

`python -m tests.test_house` updates the README's table.
"""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import korvet
from korvet.cli import COMMANDS
from korvet.handlers import APIS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- apis: written by `python -m tests.test_house` -->", "<!-- end of apis -->"

LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def api_table() -> str:
    """The README's table of what korvet speaks, from the one table that decides it."""
    lines = ["| key | API | versions |", "|---:|---|---|"]
    for key, api in sorted(APIS.items()):
        versions = f"{api.min_version}-{api.max_version}"
        if api.advertised_min_version != api.min_version:
            versions += f" (advertised from {api.advertised_min_version})"
        lines.append(f"| {key} | {api.name} | {versions} |")
    return "\n".join(lines)


def split_readme() -> tuple[str, str, str]:
    """Return the text before the table, the table, and the text after it."""
    before, _, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    return before + BEGIN, table.strip(), END + after


def test_readme_lists_the_served_apis() -> None:
    _, table, _ = split_readme()

    assert table == api_table(), "run: .venv/bin/python -m tests.test_house"


@pytest.mark.parametrize(
    "key, words",
    [(24, "Transactions"), (68, "consumer groups of KIP-848"), (76, "share groups"), (71, "telemetry")],
)
def test_readme_names_as_not_implemented_what_has_no_api(key: int, words: str) -> None:
    section = (
        README.read_text(encoding="utf-8").partition("## Not implemented yet\n")[2].partition("\n## ")[0]
    )

    assert (key in APIS) != (words in section)


def test_readme_does_not_call_a_served_storage_not_implemented() -> None:
    readme = README.read_text(encoding="utf-8")
    section = readme.partition("## Not implemented yet\n")[2].partition("\n## ")[0]

    assert "korvet serve --storage redis+cluster://" in readme
    assert not re.search("cluster|sentinel|tls|sasl", section, re.IGNORECASE)


def test_every_api_has_message_handler_and_test_modules_of_the_same_name() -> None:
    names = [re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api.name).lower() for api in APIS.values()]
    folders = ["korvet/protocol/messages/{}.py", "korvet/handlers/{}.py", "tests/handlers/test_{}.py"]
    missing = [
        path.format(name) for name in names for path in folders if not (ROOT / path.format(name)).exists()
    ]

    assert [] == missing


def test_changelog_contains_the_current_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")

    is_released = f"## {korvet.__version__}" in changelog
    assert is_released or [*(ROOT / "news").glob("*.md")]


def test_news_have_names_that_the_release_recognizes() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    settings = project["tool"]["towncrier"]
    sections = "|".join(each["directory"] for each in settings["type"])
    names = [path.name for path in (ROOT / settings["directory"]).iterdir() if path.name != ".gitignore"]

    assert settings["start_string"] in (ROOT / settings["filename"]).read_text(encoding="utf-8")
    assert [] == [name for name in names if not re.fullmatch(rf"[a-z0-9-]+\.({sections})\.md", name)]
    for name in names:
        text = (ROOT / settings["directory"] / name).read_text(encoding="utf-8")
        assert text.strip(), name
        assert not text.startswith("- "), name


def test_find_python_accepts_every_version_of_the_metadata() -> None:
    metadata = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    minors = [
        int(line.removeprefix(prefix)) for line in metadata["classifiers"] if line[len(prefix) :].isdecimal()
    ]
    find_python = (ROOT / ".ci/find-python").read_text(encoding="utf-8")

    assert f">=3.{min(minors)}" == metadata["requires-python"]
    assert f"(3, {min(minors)}) <= sys.version_info[:2] <= (3, {max(minors)})" in find_python


def test_missing_python_is_reported_in_one_line(tmp_path: Path) -> None:
    finder = subprocess.run(
        [ROOT / ".ci/find-python"], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )

    assert 1 == finder.returncode
    assert "korvet needs Python 3.11 or newer" in finder.stderr


def test_unsuitable_python_is_reported(tmp_path: Path) -> None:
    too_old = tmp_path / "python3.10"
    too_old.write_text("#!/bin/sh\nexit 1\n")
    too_old.chmod(0o755)
    finder = subprocess.run(
        [ROOT / ".ci/find-python"], env={"PYTHON": str(too_old)}, capture_output=True, text=True, check=False
    )

    assert 1 == finder.returncode
    assert f"PYTHON={too_old} does not start, is not Python 3.11 to 3.14" in finder.stderr


def test_optimized_python_is_preferred(tmp_path: Path) -> None:
    for folder, status in (("slow", 1), ("fast", 0)):
        python = tmp_path / folder / "python3"
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\n[ "$1" = -c ] || exit {status}\n')
        python.chmod(0o755)
    found = [
        subprocess.run(
            [ROOT / ".ci/find-python"], env={"PATH": path}, capture_output=True, text=True, check=True
        ).stdout
        for path in (f"{tmp_path}/slow", f"{tmp_path}/slow:{tmp_path}/fast")
    ]

    assert [f"{tmp_path}/slow/python3\n", f"{tmp_path}/fast/python3\n"] == found


@pytest.mark.parametrize("name", COMMANDS)
def test_command_list_contains_the_first_line_of_its_help(name: str) -> None:
    command = import_module(f"korvet.cli.{name.replace('-', '_')}").command
    first, _, _ = (command.help or "").partition("\n")

    assert COMMANDS[name] == first


@pytest.mark.parametrize(
    "document", [*sorted(ROOT.glob("docs/*.md")), README], ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_within_the_repository_exist(document: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    dead = [link for link in links if "://" not in link and not (document.parent / link).exists()]

    assert [] == dead


PAGES_WITH_PROMISES = (
    "costs.md",
    "damage.md",
    "doctor.md",
    "failover.md",
    "limits.md",
    "operations.md",
    "processes.md",
    "redis-failures.md",
    "restart.md",
    "scaling.md",
    "security.md",
)
# Sections of these pages that promise nothing: links, figures of benchmarks, and what does not exist.
WITHOUT_PROMISES = {
    "limits.md: Memory for records",
    "operations.md: Fail over",
    "operations.md: Guides",
    "processes.md: Gain and cost of a worker",
    "security.md: Not implemented yet",
}
NAMED_TEST = re.compile(r"tests/[\w/]+\.py(?:::(\w+))?")


def named_tests(page: str) -> Iterator[tuple[str, str | None]]:
    """Yield the path and, if the page names it, the function of each test that the page names."""
    for match in NAMED_TEST.finditer(page):
        yield match[0].partition("::")[0], match[1]


def missing_tests(page: str) -> list[str]:
    """Return what the page names and the tests do not have."""
    missing = []
    for path, function in named_tests(page):
        file = ROOT / path
        if not file.exists():
            missing.append(path)
        elif function is not None and function not in functions_of(file):
            missing.append(f"{path}::{function}")
    return missing


@cache  # pages name the same files again and again
def functions_of(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_missing_tests_are_found() -> None:
    page = (
        "`tests/test_house.py`, tests/nowhere.py and <!-- shown by: tests/test_house.py::test_nothing,\n"
        "tests/test_house.py::test_missing_tests_are_found -->"
    )

    assert ["tests/nowhere.py", "tests/test_house.py::test_nothing"] == missing_tests(page)


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/**/*.md")), ids=lambda path: path.name)
def test_tests_that_a_page_names_exist(page: Path) -> None:
    assert [] == missing_tests(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", PAGES_WITH_PROMISES)
def test_every_section_with_promises_names_a_test(name: str) -> None:
    """Each comment that begins with "shown by" ends a paragraph or table of what the named tests assert."""
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    sections = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    unproved = {
        f"{name}: {title}"
        for title, section in zip(sections[::2], sections[1::2], strict=True)
        if not any("::test_" in comment for comment in re.findall(r"shown by:(.*?)-->", section, re.DOTALL))
    }

    assert {each for each in WITHOUT_PROMISES if each.startswith(name)} == unproved


def positional_log_calls(source: str) -> Iterator[int]:
    """Yield the lines of log calls whose arguments are anything but one mapping with names as keys."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        name = ast.unparse(node.func.value).rpartition(".")[2]
        if name not in {"log", "logger"} or node.func.attr not in LOG_METHODS:
            continue
        _, *values = node.args[node.func.attr == "log" :]
        is_mapping = len(values) == 1 and (
            isinstance(values[0], ast.Dict | ast.Starred)  # *arguments: a message passed on
            or re.search(r"fields(\(.*\))?$", ast.unparse(values[0]))  # a mapping made elsewhere
        )
        if values and not is_mapping:
            yield node.lineno


def test_positional_log_calls_are_found() -> None:
    calls = """
logger.info("ready")
logger.info("%(topic)s: created", {"topic": name})
self.logger.warning(message, *arguments)
log.log(level, "%(topic)s", {"topic": name})
logger.info("%s: created", name)
log.log(level, "%s", error)
"""

    assert [6, 7] == list(positional_log_calls(calls))


def test_log_calls_have_fields() -> None:
    found: dict[str, list[int]] = {}
    for path in sorted(ROOT.glob("korvet/**/*.py")):
        if lines := list(positional_log_calls(path.read_text(encoding="utf-8"))):
            found[str(path.relative_to(ROOT))] = lines

    assert {} == found


def test_readme_of_the_tests_names_each_folder() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / "tests").glob("*/test_*.py")}

    assert sorted(folders) == re.findall(r"^\| `(\w+)/` \|", text, flags=re.MULTILINE)


def test_make_spark_runs_each_folder_with_tests_of_spark() -> None:
    (named,) = re.findall(r"-m 'spark and not soak' (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    marked = {
        path.parent.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"mark\.spark\b", path.read_text(encoding="utf-8"))
    }

    assert marked == set(named.split())


if __name__ == "__main__":
    before, _, after = split_readme()
    README.write_text(f"{before}\n\n{api_table()}\n\n{after}", encoding="utf-8")
