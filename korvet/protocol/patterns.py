"""Regular expressions in RE2's syntax, as Kafka's requests contain them, matched in time linear in the text.

Python's `re` backtracks: a client could stop the broker by one pattern. A pattern becomes a program of at most
MAX_INSTRUCTIONS, which is run for all alternatives at the same time (Thompson). A match is one of the whole text, so it
does not depend on which repetitions are greedy.

Unlike in RE2, Unicode classes (`pL` behind a backslash) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple

from attrs import Factory, define, field, frozen

from korvet.protocol.errors import InvalidRegularExpression
from korvet.protocol.steps import Steps, at_once

MAX_INSTRUCTIONS = 2_000
MAX_REPEAT = 1_000
MAX_DEPTH = 100  # of groups in groups
MAX_CACHED = 10_000
STATES_A_STEP = 5_000

Range = tuple[int, int]
LAST = 0x10FFFF
DIGIT: tuple[Range, ...] = ((0x30, 0x39),)
UPPER: tuple[Range, ...] = ((0x41, 0x5A),)
LOWER: tuple[Range, ...] = ((0x61, 0x7A),)
WORD = (*DIGIT, *UPPER, (0x5F, 0x5F), *LOWER)
SPACE: tuple[Range, ...] = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
PERL = {"d": DIGIT, "w": WORD, "s": SPACE}
POSIX: dict[str, tuple[Range, ...]] = {
    "alnum": (*DIGIT, *UPPER, *LOWER),
    "alpha": (*UPPER, *LOWER),
    "ascii": ((0x00, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0x00, 0x1F), (0x7F, 0x7F)),
    "digit": DIGIT,
    "graph": ((0x21, 0x7E),),
    "lower": LOWER,
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": UPPER,
    "word": WORD,
    "xdigit": (*DIGIT, (0x41, 0x46), (0x61, 0x66)),
}
CONTROL = {"a": 0x07, "f": 0x0C, "t": 0x09, "n": 0x0A, "r": 0x0D, "v": 0x0B}
ASSERTIONS = frozenset("AzbB")
REPETITION = re.compile(r"\{(\d+)(,(\d*))?\}")
POSIX_CLASS = re.compile(r"\[:(\^?)([^\]:]*):\]")
GROUP = re.compile(r"\(\?(?:P?<([A-Za-z_]\w*)>|([imsU]*)(?:-([imsU]+))?([:)]))")


class Flags(NamedTuple):
    """The flags in force at a place of the pattern."""

    ignores_case: bool = False  # i
    is_multiline: bool = False  # m
    dot_matches_newline: bool = False  # s


# --- Programs ------------------------------------------------------------------------------------------------


@frozen
class Characters:
    """An instruction: one of these characters follows."""

    ranges: tuple[Range, ...]
    is_negated: bool = False
    ignores_case: bool = False

    def accept(self, character: str) -> bool:
        forms = {character, character.lower(), character.upper()} if self.ignores_case else {character}
        points = [ord(form) for form in forms if len(form) == 1]
        found = any(first <= point <= last for point in points for first, last in self.ranges)
        return found is not self.is_negated


@frozen
class Assertion:
    """An instruction: the place in the text is of a kind."""

    kind: str

    def holds(self, text: str, at: int) -> bool:
        if self.kind in "^A":
            return at == 0 or (self.kind == "^" and text[at - 1] == "\n")
        if self.kind in "$z":
            return at == len(text) or (self.kind == "$" and text[at] == "\n")
        is_boundary = (at > 0 and _is_word(text[at - 1])) != (at < len(text) and _is_word(text[at]))
        return is_boundary is (self.kind == "b")


@frozen
class Split:
    """An instruction: the program continues at all of these places, relative to this one."""

    targets: tuple[int, ...]


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


Instruction = Characters | Assertion | Split
Program = list[Instruction]
NOTHING: Program = []


def _joined(*parts: Program) -> Program:
    program = [instruction for part in parts for instruction in part]
    if len(program) > MAX_INSTRUCTIONS:
        raise InvalidRegularExpression("The regular expression is too large.")
    return program


def _either(first: Program, second: Program) -> Program:
    return _joined([Split((1, len(first) + 2))], first, [Split((len(second) + 1,))], second)


def _any_number(part: Program) -> Program:
    return _joined([Split((1, len(part) + 2))], part, [Split((-len(part) - 1,))])


def _at_most(part: Program, count: int) -> Program:
    """Return the program for up to `count` times the part."""
    program = NOTHING
    for _ in range(count):
        program = _joined([Split((1, len(part) + len(program) + 1))], part, program)
    return program


def _repeated(part: Program, least: int, most: int | None) -> Program:
    required = _joined(*[part] * least) if len(part) * least <= MAX_INSTRUCTIONS else _joined(part * least)
    return _joined(required, _any_number(part) if most is None else _at_most(part, most - least))


# --- Matching ------------------------------------------------------------------------------------------------

States = frozenset[int]


@define
class Pattern:
    """A compiled regular expression."""

    program: Program
    _has_assertions: bool = field(init=False)
    _next: dict[tuple[States, str], States] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self._has_assertions = any(isinstance(each, Assertion) for each in self.program)

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches the whole text."""
        return at_once(self.match_in_steps(text))

    def match_in_steps(self, text: str) -> Steps[bool]:
        """Do the same in steps."""
        states = self._closure([0], text, 0)
        work = 0
        for at, character in enumerate(text):
            if not states:
                return False
            following = self._next.get((states, character))
            if following is None:
                following = self._following(states, text, at)
                work += len(states) + len(following)
                if work > STATES_A_STEP:
                    work = 0
                    yield None
            states = following
        return len(self.program) in states

    def _following(self, states: States, text: str, at: int) -> States:
        accepting = [
            state + 1
            for state in states
            if state < len(self.program)
            and isinstance(instruction := self.program[state], Characters)
            and instruction.accept(text[at])
        ]
        following = self._closure(accepting, text, at + 1)
        if not self._has_assertions and len(self._next) < MAX_CACHED:
            self._next[states, text[at]] = following
        return following

    def _closure(self, states: Collection[int], text: str, at: int) -> States:
        """Return the places where the program reads a character or ends, from those places on."""
        seen: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            if state == len(self.program):
                continue
            instruction = self.program[state]
            if isinstance(instruction, Split):
                waiting += [state + target for target in instruction.targets]
            elif isinstance(instruction, Assertion) and instruction.holds(text, at):
                waiting.append(state + 1)
        return frozenset(
            state
            for state in seen
            if state == len(self.program) or isinstance(self.program[state], Characters)
        )


# --- Parsing -------------------------------------------------------------------------------------------------


def compiled(text: str) -> Pattern:
    """Return the pattern. Raises InvalidRegularExpression."""
    parser = _Parser(text)
    program = parser.alternatives(Flags())
    if parser.at < len(text):
        raise InvalidRegularExpression(f"Unexpected ) in the regular expression at {parser.at}.")
    return Pattern(program)


@define
class _Parser:
    """A recursive descent through the pattern."""

    text: str
    at: int = 0
    depth: int = 0
    names: set[str] = Factory(set)

    def alternatives(self, flags: Flags) -> Program:
        """Parse up to the end of the group or of the pattern."""
        programs: list[Program] = []
        while True:
            part, flags = self._sequence(flags)
            programs.append(part)
            if not self._take("|"):
                break
        program = programs.pop()
        while programs:
            program = _either(programs.pop(), program)
        return program

    def _sequence(self, flags: Flags) -> tuple[Program, Flags]:
        parts: list[Program] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            if (changed := self._flags(flags)) is not None:
                flags = changed
            elif self._take("\\Q"):
                parts += self._quoted(flags)
                if parts:
                    parts[-1] = self._repeated(parts[-1])
            else:
                parts.append(self._repetition(flags))
        return _joined(*parts), flags

    def _take(self, expected: str) -> bool:
        if self.text.startswith(expected, self.at):
            self.at += len(expected)
            return True
        return False

    def _fault(self, message: str) -> InvalidRegularExpression:
        return InvalidRegularExpression(f"The regular expression has {message} at {self.at}.")

    def _next(self) -> str:
        if self.at == len(self.text):
            raise self._fault("an unexpected end")
        self.at += 1
        return self.text[self.at - 1]

    # --- Repetitions ------------------------------------------------------------------------------------

    def _repetition(self, flags: Flags) -> Program:
        if self._bounds() is not None:
            raise self._fault("a repetition of nothing")
        return self._repeated(self._atom(flags))

    def _repeated(self, part: Program) -> Program:
        """Parse the repetition of a part, if there is one."""
        bounds = self._bounds()
        if bounds is not None:
            part = _repeated(part, *bounds)
            self._take("?")
            if self._bounds() is not None:
                raise self._fault("a repetition of a repetition")
        return part

    def _bounds(self) -> tuple[int, int | None] | None:
        """Parse a repetition, and return its smallest and largest number."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        found = REPETITION.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        least, comma, most = found.groups()
        if any(len(each) > 4 or int(each) > MAX_REPEAT for each in (least, most) if each):
            raise self._fault(f"more than {MAX_REPEAT} repetitions")
        if not comma:
            return int(least), int(least)
        if most and int(most) < int(least):
            raise self._fault("an empty range of repetitions")
        return int(least), int(most) if most else None

    # --- Atoms ------------------------------------------------------------------------------------------

    def _atom(self, flags: Flags) -> Program:
        character = self._next()
        if character == "(":
            return self._group(flags)
        if character == "[":
            return [self._class(flags)]
        if character == ".":
            return [Characters(() if flags.dot_matches_newline else ((0x0A, 0x0A),), is_negated=True)]
        if character in "^$":
            text_kind = {"^": "A", "$": "z"}[character]
            return [Assertion(character if flags.is_multiline else text_kind)]
        if character == "\\":
            return [self._escape(flags)]
        return [_literal(character, flags)]

    def _flags(self, flags: Flags) -> Flags | None:
        """Parse `(?i)`, and return the flags from here to the end of the group."""
        found = GROUP.match(self.text, self.at)
        if found is None or found[4] != ")":
            return None
        self.at = found.end()
        return self._changed(flags, found)

    def _group(self, flags: Flags) -> Program:
        if self._take("?"):
            self.at -= 2
            found = GROUP.match(self.text, self.at)
            if found is None:
                raise self._fault("an unknown kind of group")
            self.at = found.end()
            if name := found[1]:
                if name in self.names:
                    raise self._fault("two groups of one name")
                self.names.add(name)
            else:
                flags = self._changed(flags, found)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._fault("too many groups in groups")
        program = self.alternatives(flags)
        self.depth -= 1
        if not self._take(")"):
            raise self._fault("an open group")
        return program

    def _changed(self, flags: Flags, found: re.Match[str]) -> Flags:
        on, off = found[2] or "", found[3] or ""
        if not on and not off and found[4] == ")":
            raise self._fault("a group without flags")

        def now(sign: str, before: bool) -> bool:  # noqa: FBT001
            return (before or sign in on) and sign not in off

        return Flags(now("i", flags[0]), now("m", flags[1]), now("s", flags[2]))

    def _quoted(self, flags: Flags) -> list[Program]:
        end = self.text.find("\\E", self.at)
        stop = len(self.text) if end < 0 else end
        literals: list[Program] = [[_literal(character, flags)] for character in self.text[self.at : stop]]
        self.at = stop if end < 0 else end + 2
        return literals

    def _escape(self, flags: Flags) -> Instruction:
        character = self._next()
        if character in ASSERTIONS:
            return Assertion(character)
        if (ranges := PERL.get(character.lower())) is not None and character.isalpha():
            return Characters(ranges, is_negated=character.isupper())
        return _literal(chr(self._escaped(character)), flags)

    def _escaped(self, character: str) -> int:
        """Return the character that an escape stands for."""
        if character in CONTROL:
            return CONTROL[character]
        if character == "x":
            return self._hexadecimal()
        if character in "01234567" and (character == "0" or self._is_octal()):
            digits = character
            while len(digits) < 3 and self.at < len(self.text) and self.text[self.at] in "01234567":
                digits += self._next()
            return int(digits, 8)
        if character.isascii() and character.isalnum():
            raise self._fault(f"the unknown escape \\{character}")
        return ord(character)

    def _is_octal(self) -> bool:
        return self.text[self.at : self.at + 1] in set("01234567")

    def _hexadecimal(self) -> int:
        found = re.compile(r"\{([0-9A-Fa-f]{1,8})\}|([0-9A-Fa-f]{2})").match(self.text, self.at)
        if found is None or (value := int(found[1] or found[2], 16)) > LAST:
            raise self._fault("an escape \\x without a number")
        self.at = found.end()
        return value

    # --- Classes ----------------------------------------------------------------------------------------

    def _class(self, flags: Flags) -> Characters:
        is_negated = self._take("^")
        ranges: list[Range] = []
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            ranges += self._element()
        return Characters(tuple(ranges), is_negated, flags.ignores_case)

    def _element(self) -> Collection[Range]:
        """Parse a part of a class."""
        if (found := POSIX_CLASS.match(self.text, self.at)) is not None:
            self.at = found.end()
            if found[2] not in POSIX:
                raise self._fault(f"the unknown class {found[2]}")
            return _complement(POSIX[found[2]]) if found[1] else POSIX[found[2]]
        first = self._next()
        if first == "\\":
            kind = self._next()
            if kind.lower() in PERL and kind.isalpha():
                return _complement(PERL[kind.lower()]) if kind.isupper() else PERL[kind]
            start = self._escaped(kind)
        else:
            start = ord(first)
        if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
            self.at += 1
            character = self._next()
            end = self._escaped(self._next()) if character == "\\" else ord(character)
            if end < start:
                raise self._fault("an empty range")
            return [(start, end)]
        return [(start, start)]


def _literal(character: str, flags: Flags) -> Characters:
    return Characters(((ord(character), ord(character)),), ignores_case=flags.ignores_case)


def _complement(ranges: Collection[Range]) -> list[Range]:
    found = []
    first = 0
    for start, end in sorted(ranges):
        if start > first:
            found.append((first, start - 1))
        first = end + 1
    return [*found, (first, LAST)]
