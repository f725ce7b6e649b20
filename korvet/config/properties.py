"""A parser for Java's properties files: settings of Java clients, and files of secrets.

Error messages never quote the input, because it contains passwords.
"""

from __future__ import annotations

import re

ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
PAIR = re.compile(r"((?:\\.|[^\s:=\\])*)(?:\s*[:=]\s*|\s+|$)(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    r"""Return the settings of a file in the format of `java.util.Properties`.

    A line is `name=value`, `name: value` or `name value`; `#` and `!` begin comments, a backslash at the end of a line
    continues it on the next line, and `\t`, `\n`, `\u0041` and so on are escape sequences.
    """
    settings: dict[str, str] = {}
    lines = iter(text.splitlines())
    for first in lines:
        line = first.lstrip()
        if not line or line[0] in "#!":
            continue
        while CONTINUED.search(line):
            line = line[:-1] + next(lines, "").lstrip()
        match = PAIR.fullmatch(line)
        if match is not None:
            settings[unescaped(match[1])] = unescaped(match[2])
    return settings


def unescaped(text: str) -> str:
    """Return the text with its escape sequences replaced."""
    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", _character, text, flags=re.DOTALL)


def _character(match: re.Match[str]) -> str:
    code = match[1]
    return chr(int(code[1:], 16)) if len(code) == 5 else ESCAPES.get(code, code)
