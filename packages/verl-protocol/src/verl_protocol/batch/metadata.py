"""meta_info and metrics: copying them, joining those of several parts, reducing metrics on request.

meta_info belongs to the batch as a whole and is never split: what belongs to rows is a column, and what each
rank measured goes under `metrics`, which stays per rank until somebody reduces it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from verl_protocol.arguments import mapping
from verl_protocol.columns.equality import equal
from verl_protocol.columns.walk import Replacer
from verl_protocol.errors import InvalidValueError, MetaConflictError, short
from verl_protocol.kinds import PLAIN

METRICS = "metrics"
"""The one key of meta_info that concat joins by itself."""

MergeRule: TypeAlias = (
    Literal["equal", "first", "list", "mean", "sum", "min", "max"] | Callable[[list[Any]], Any]
)
"""How the values that several parts hold under one key become one value."""


def copy_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """`meta` with every dict, list and set in it copied, and everything else as it is."""
    if meta is None:
        return {}
    made = dict(meta if isinstance(meta, dict) else mapping("meta_info", meta))
    if not PLAIN.issuperset(map(type, made.values())):
        copied = Replacer(anew=True)
        copied.remember(meta, made)
        for key, value in made.items():
            made[key] = copied(value)
    return made


def merge_meta(
    metas: Sequence[Mapping[str, Any]], merge: Mapping[str, MergeRule] | None = None
) -> dict[str, Any]:
    """The meta_info of several parts as one.

    Metrics become flat lists in part order. A key that only some parts hold is kept; one that several hold
    must have equal values, unless `merge` names a rule for it.

    Raises:
        MetaConflictError: parts differ in a key that has no rule.
        InvalidValueError: metrics that are no dict, list of dicts or None, or a rule of an unknown name.

    >>> merge_meta([{"step": 1, "metrics": {"loss": 0.5}}, {"step": 1, "metrics": {"loss": 0.25}}])
    {'step': 1, 'metrics': {'loss': [0.5, 0.25]}}
    >>> merge_meta([{"seconds": 1.0}, {"seconds": 3.0}], merge={"seconds": "max"})
    {'seconds': 3.0}
    """
    for key, rule in (merge or {}).items():
        _check_rule(key, rule)
    held: dict[str, list[tuple[int, Any]]] = {}
    for part, meta in enumerate(metas):
        for key, value in meta.items():
            held.setdefault(key, []).append((part, value))
    rules: Mapping[str, MergeRule] = merge or {}
    return copy_meta({key: _merge_key(key, values, rules.get(key)) for key, values in held.items()})


def _check_rule(key: str, rule: object) -> None:
    if not callable(rule) and rule not in _RULES:
        raise InvalidValueError(
            f"no rule {short(rule)} for {key!r}: give a callable or one of {', '.join(_RULES)}"
        )


def _merge_key(key: str, held: list[tuple[int, Any]], rule: MergeRule | None) -> Any:
    values = [value for _, value in held]
    if key == METRICS and rule is None:
        return flatten_metrics(values)
    return _agreed(key, held) if rule in (None, "equal") else apply_rule(rule, values, key)


def _agreed(key: str, held: Sequence[tuple[int, Any]]) -> Any:
    """The value that all parts hold."""
    first, agreed = held[0]
    for part, value in held[1:]:
        if not equal(agreed, value):
            raise MetaConflictError(key, {first: agreed, part: value})
    return agreed


def flatten_metrics(values: Sequence[Any]) -> dict[str, list[Any]]:
    """Metrics of several parts as one dict of flat lists, in part order.

    A part may hold a dict of values, a dict of lists, a list of such dicts, or None.

    >>> flatten_metrics([{"loss": 1.0}, [{"loss": 2.0}, {"loss": 3.0}], {"loss": [4.0]}])
    {'loss': [1.0, 2.0, 3.0, 4.0]}
    """
    flat: dict[str, list[Any]] = {}
    for value in values:
        for entry in _metric_dicts(value):
            for key, metric in entry.items():
                flat.setdefault(key, []).extend(metric if isinstance(metric, list) else [metric])
    return flat


def _metric_dicts(value: Any) -> Sequence[Mapping[str, Any]]:
    if isinstance(value, dict):
        return [value]
    entries = [] if value is None else value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(entry, Mapping) for entry in entries):
        raise InvalidValueError(
            f"metrics must be a dict, a list of dicts or a dict of lists, got {short(value)}"
        )
    return entries


@dataclass(frozen=True)
class WeightedMean:
    """The rule that averages a metric with the values of the metric `by` as weights."""

    by: str


def reduce_metrics(
    metrics: Any,
    rules: Mapping[str, MergeRule | WeightedMean] | None = None,
    default: MergeRule = "mean",
) -> dict[str, Any]:
    """Metrics of all ranks reduced to one value each, by the rule declared for each.

    Args:
        metrics: what a batch holds under `metrics`, in any of its forms.
        rules: a rule per metric; `WeightedMean("tokens")` weights by another metric.
        default: the rule for all others.

    Raises:
        InvalidValueError: no values, or weights that are missing, too few or add up to zero.

    >>> rules = {"loss": WeightedMean("tokens"), "tokens": "sum"}
    >>> reduce_metrics({"loss": [1.0, 4.0], "tokens": [2, 1]}, rules)
    {'loss': 2.0, 'tokens': 3}
    """
    flat, declared = flatten_metrics([metrics]), rules or {}
    return {key: _reduce(key, values, declared.get(key, default), flat) for key, values in flat.items()}


def _reduce(
    key: str, values: list[Any], rule: MergeRule | WeightedMean, flat: Mapping[str, list[Any]]
) -> Any:
    if not isinstance(rule, WeightedMean):
        return apply_rule(rule, values, key)
    weights = flat.get(rule.by, [])
    try:
        total = sum(weights)
        if len(weights) == len(values) and total:
            return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total
    except TypeError as error:
        reason = f"{key!r} and its weights {rule.by!r} must be numbers ({error})"
        raise _no_value({key: values, rule.by: weights}, reason) from None
    raise _no_value({key: values, rule.by: weights}, f"{rule.by!r} has no weight for each {key!r}")


def _no_value(metrics: Mapping[str, Any], reason: str) -> InvalidValueError:
    return InvalidValueError(f"{reason}, got {short(metrics)}")


def apply_rule(rule: MergeRule, values: list[Any], key: str) -> Any:
    """One value for `values`; numbers inside dicts are joined key by key.

    Raises:
        InvalidValueError: a rule of an unknown name, or one that says nothing about these values.
        MetaConflictError: the rule is "equal", and they are not.
    """
    if callable(rule):
        return rule(list(values))
    _check_rule(key, rule)
    if not values and rule != "list":
        raise _no_value({key: values}, f"there is no {rule} of no values")
    if rule == "equal":
        return _agreed(key, list(enumerate(values)))
    if rule in _NUMERIC and all(isinstance(value, Mapping) for value in values):
        return _apply_to_entries(rule, values, key)
    try:
        return _RULES[rule](values)
    except TypeError as error:
        raise _no_value({key: values}, f"rule {rule!r} does not fit the values ({error})") from None


def _apply_to_entries(rule: MergeRule, values: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    entries: dict[str, list[Any]] = {}
    for value in values:
        for name, entry in value.items():
            entries.setdefault(name, []).append(entry)
    return {name: apply_rule(rule, held, f"{key}.{name}") for name, held in entries.items()}


_NUMERIC = frozenset(["mean", "sum", "min", "max"])
_RULES: dict[str, Callable[[list[Any]], Any]] = {
    "equal": lambda values: values[0],
    "first": lambda values: values[0],
    "list": list,
    "mean": lambda values: sum(values) / len(values),
    "sum": cast("Callable[[list[Any]], Any]", sum),
    "min": min,
    "max": max,
}
