from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from korvet.protocol.errors import InvalidRegularExpression
from korvet.protocol.patterns import compiled

ATOMS = st.sampled_from(
    ["a", "b", "\\d", "\\w", "\\D", ".", "[ab]", "[^a-b]", "[\\dx-z]", "\\.", "^", "$", "\\b", "\\B"]
)
TEXTS = st.text(alphabet="ab1.-x\n", max_size=8)


def patterns() -> st.SearchStrategy[str]:
    """Generate patterns that mean the same in RE2 and in Python."""

    def larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        group = smaller.map(lambda inner: f"(?:{inner})")
        quantifier = st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,3}", "{0,}"])
        return st.one_of(
            st.lists(smaller, max_size=3).map("".join),
            st.builds(lambda left, right: f"(?:{left}|{right})", smaller, smaller),
            st.builds(lambda inner, sign: inner + sign, group, quantifier),
        )

    return st.recursive(ATOMS, larger, max_leaves=8)


@given(patterns(), TEXTS)
def test_pattern_matches_what_python_matches(pattern: str, text: str) -> None:
    # Python's $ also matches before the last newline, and its \\B not in an empty text.
    theirs = re.compile(pattern.replace("$", "\\Z").replace("\\B", "(?!\\b)"), re.ASCII)

    assert bool(theirs.fullmatch(text)) == compiled(pattern)(text)


@pytest.mark.parametrize(
    "pattern, matching, others",
    [
        ("orders-.*", ["orders-", "orders-1"], ["orders", "x-orders-1"]),
        ("a|bc|", ["a", "bc", ""], ["ab", "abc"]),
        ("(?i)Ab", ["ab", "AB"], ["a"]),
        ("(?i:A)b", ["ab", "Ab"], ["aB"]),
        ("(?i)a(?-i)b", ["Ab", "ab"], ["aB"]),
        ("(?s).", ["\n", "a"], [""]),
        (".", ["a", "\u00fc", "\U0001f600"], ["\n"]),
        ("(?m)a\n^b$", ["a\nb"], ["ab"]),
        ("(?P<name>a)(?<other>b)", ["ab"], ["a"]),
        ("(?U)a+", ["aa"], [""]),
        (r"\Qa.b*\E+", ["a.b*", "a.b**"], ["axb*"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"[[:alpha:]-]+", ["ab-c"], ["a1"]),
        (r"[[:^alpha:]]+", ["12"], ["a"]),
        (r"[]a]+", ["]a"], ["b"]),
        (r"[^]a]", ["b"], ["]", "a"]),
        (r"[\Wa]+", ["-a"], ["b"]),
        (r"\x41\x{1F600}\101\0", ["A\U0001f600A\0"], ["A"]),
        (r"\t\n\r\f\v\a", ["\t\n\r\f\v\a"], [""]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"a{,2}", ["a{,2}"], ["aa"]),
        (r"x{2,3}", ["xx", "xxx"], ["x", "xxxx"]),
        (r"(?i)[a-c]", ["B"], ["d"]),
        (r"\pL+", ["ü"], ["1"]),
    ],
)
def test_syntax_of_re2(pattern: str, matching: list[str], others: list[str]) -> None:
    found = compiled(pattern)

    assert all(found(text) for text in matching)
    assert not any(found(text) for text in others)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "(?:a",
        "*",
        "a**",
        "a*{2}",
        "+a",
        "|*",
        "[",
        "[a",
        "[z-a]",
        "[[:made-up:]]",
        "[[:madeup:]]",
        "\\",
        "\\8",
        "\\y",
        "\\x{110000}",
        "\\xg",
        "a{3,2}",
        "a{1001}",
        "(?=a)",
        "(?!a)",
        "(?<=a)",
        "(a)\\1",
        "(?z)a",
        "((a{100}){100}){100}",
    ],
)
def test_other_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression):
        compiled(pattern)


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(?:a?){30}a{30}", ".*.*.*.*.*=.*", "(x+x+)+y"])
def test_no_pattern_backtracks(pattern: str) -> None:
    began = time.process_time()

    compiled(pattern)("a" * 32_767 + "!")

    assert time.process_time() - began < 1
