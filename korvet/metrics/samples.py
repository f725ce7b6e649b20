"""The values of metrics at one moment, in a form that processes can send to each other.

Samples map the name of a metric to its values by label values, in the order of the metric's labels. The value of a
histogram is a list: the number of observations in each bucket, the last bucket without an upper bound, and their sum.
"""

from __future__ import annotations

from collections.abc import Iterable

from korvet.metrics.definitions import METRICS, Merge

Labels = tuple[str, ...]
Value = float | list[float]
Samples = dict[str, dict[Labels, Value]]


def merged(parts: Iterable[Samples]) -> Samples:
    """Return the samples of one broker from those of its processes."""
    result: Samples = {}
    for part in parts:
        for name, values in part.items():
            known = result.setdefault(name, {})
            for labels, value in values.items():
                if labels in known:
                    known[labels] = _joined(METRICS[name].merge, known[labels], value)
                else:
                    known[labels] = list(value) if isinstance(value, list) else value
    return result


def _joined(merge: Merge, one: Value, other: Value) -> Value:
    if isinstance(one, list) or isinstance(other, list):
        assert isinstance(one, list) and isinstance(other, list)  # noqa: S101, PT018  both have the metric's kind
        return [a + b for a, b in zip(one, other, strict=True)]
    match merge:
        case Merge.SUM:
            return one + other
        case Merge.MAX:
            return max(one, other)
        case Merge.MIN:
            return min(one, other)
