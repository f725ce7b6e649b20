"""The recorded table: the parts of an answer that authorization decides, by request, version and case.

Equal answers to a request are stored once, with their cases; the most frequent one is that of all other cases.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from conformance.answers import ANSWER, Fields
from conformance.authorization.rows import ROWS, Row
from korvet.handlers import APIS

TABLE = Path(__file__).with_name("table.json")
OTHERS = "all others"
#: Fields that show what a principal may see and do.
DECIDED = re.compile(
    r"(error_code|authorized_operations|topic_id|is_internal|committed_offset|num_partitions)$|\]$"
)
#: Lists whose elements do not depend on the principal, and what belongs to Kafka's internal topics.
UNDECIDED = re.compile(r"(configs|brokers|api_keys|_features|members|acls|records)\[|\[__")

#: The answers by row and case.
Answers = Mapping[str, Mapping[str, Fields]]


def row_name(row: Row, version: int) -> str:
    """Return the name of a row in one version, which begins with the API's name."""
    return f"{APIS[row.key].name} v{version}: {row.label}"


def row_names() -> Iterator[tuple[str, Row, int]]:
    """Yield every row in every version, with its name."""
    for row in ROWS:
        for version in row.versions:
            yield row_name(row, version), row, version


def decided(fields: Fields) -> Fields:
    """Return the fields of an answer that authorization decides."""
    return {
        path: value
        for path, value in sorted(fields.items())
        if path == ANSWER or (DECIDED.search(path) and not UNDECIDED.search(path))
    }


def read() -> Answers:
    """Return the recorded answers."""
    stored = json.loads(TABLE.read_text(encoding="utf-8"))
    names = stored["cases"]
    answers = {}
    for row, groups in stored["rows"].items():
        by_case: dict[str, Fields] = {}
        for group in groups:
            cases = set(names) - by_case.keys() if group["cases"] == OTHERS else group["cases"]
            by_case |= dict.fromkeys(cases, group["answer"])
        answers[row] = by_case
    return answers


def write(answers: Answers) -> None:
    """Store the answers."""
    names = sorted({case for by_case in answers.values() for case in by_case})
    rows = {row: _grouped(by_case) for row, by_case in answers.items()}
    text = json.dumps({"cases": names, "rows": rows}, indent=1, ensure_ascii=False)
    TABLE.write_text(text + "\n", encoding="utf-8")


def _grouped(by_case: Mapping[str, Fields]) -> list[dict[str, object]]:
    cases: dict[str, list[str]] = defaultdict(list)
    for case, fields in by_case.items():
        cases[json.dumps(fields, sort_keys=True)].append(case)
    ordered = sorted(cases.items(), key=lambda item: (len(item[1]), item[0]))
    groups: list[dict[str, object]] = [
        {"cases": sorted(names), "answer": json.loads(fields)} for fields, names in ordered
    ]
    groups[-1]["cases"] = OTHERS
    return groups
