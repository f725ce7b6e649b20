"""The results of the checks."""

from __future__ import annotations

from enum import IntEnum

from attrs import frozen


class Verdict(IntEnum):
    """The severity of a finding. The values are exit statuses, as monitoring plugins use them."""

    OK = 0
    WARNING = 1
    ERROR = 2


@frozen
class Finding:
    """The result of one check: what was found, and what the operator can do about it."""

    check: str
    verdict: Verdict
    reason: str
    remedy: str = ""


def ok(check: str, reason: str) -> Finding:
    return Finding(check, Verdict.OK, reason)


def warning(check: str, reason: str, remedy: str) -> Finding:
    return Finding(check, Verdict.WARNING, reason, remedy)


def error(check: str, reason: str, remedy: str) -> Finding:
    return Finding(check, Verdict.ERROR, reason, remedy)
