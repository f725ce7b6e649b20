"""Java's regular expressions for topic names, in Python's notation.

Topic names consist of ASCII letters, digits, `.`, `_` and `-`, so that Java's named classes are short lists here.
"""

from __future__ import annotations

import re

#: Java's \p{…} for the characters of topic names.
CLASSES = {
    "a-z": ("Lower", "javaLowerCase", "Ll", "IsLowercase"),
    "A-Z": ("Upper", "javaUpperCase", "Lu", "IsUppercase"),
    "a-zA-Z": ("Alpha", "L", "IsL", "IsAlphabetic", "IsLetter", "IsLatin", "javaLetter"),
    "0-9": ("Digit", "N", "Nd", "IsN", "IsDigit", "javaDigit"),
    "a-zA-Z0-9": ("Alnum", "javaLetterOrDigit"),
    "._\\-": ("Punct", "P", "IsP", "IsPunctuation"),
    "a-zA-Z0-9._\\-": ("Graph", "Print", "ASCII", "IsASCII"),
    "0-9a-fA-F": ("XDigit",),
}
NAMED = {name: characters for characters, names in CLASSES.items() for name in names}
TOKEN = re.compile(
    r"\\Q(?P<literal>.*?)(?:\\E|$)"
    r"|\\(?P<sign>[pP])(?:\{\^?(?P<name>\w+)\}|(?P<letter>\w))"
    r"|\(\?<(?P<group>[A-Za-z]\w*)>"
    r"|\\k<(?P<again>\w+)>"
    r"|\\(?P<end>z)"
    r"|(?P<bracket>\[|\])"
    r"|(?P<and>&&)"
    r"|\\."
    r"|.",
    re.DOTALL,
)


def python_pattern(java: str) -> str:
    """Return the pattern in Python's notation. Raises ValueError if it is none, or has what Python lacks."""
    depth = 0

    def translated(match: re.Match[str]) -> str:
        nonlocal depth
        found = match.groupdict()
        if found["literal"] is not None:
            return re.escape(found["literal"])
        if found["sign"] is not None:
            return _class(
                found["name"] or found["letter"], is_negated=found["sign"] == "P", is_inside=depth > 0
            )
        if found["group"] is not None:
            return f"(?P<{found['group']}>"
        if found["again"] is not None:
            return f"(?P={found['again']})"
        if found["end"] is not None:
            return r"\Z"
        if found["bracket"] == "[":
            depth += 1
            if depth > 1:
                raise ValueError(
                    "a class inside of a class is not supported; write one class, or a lookahead"
                )
        elif found["bracket"] == "]":
            depth = max(0, depth - 1)
        elif found["and"] and depth:
            raise ValueError("&& in a class is not supported; use a lookahead such as (?![bc])[a-z]")
        return match[0]

    pattern = TOKEN.sub(translated, java)
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(str(error)) from None
    return pattern


def _class(name: str, *, is_negated: bool, is_inside: bool) -> str:
    characters = NAMED.get(name)
    if characters is None:
        raise ValueError(f"\\p{{{name}}} is not supported; accepted are {', '.join(sorted(NAMED))}")
    if not is_inside:
        return f"[{'^' if is_negated else ''}{characters}]"
    if is_negated:
        raise ValueError(f"\\P{{{name}}} in a class is not supported; use a lookahead")
    return characters
