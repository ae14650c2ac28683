"""Metrics stay per part until they are reduced by a declared rule."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from verl_protocol import WeightedMean, list_of_dict_to_dict_of_list, merge_meta, reduce_metrics


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([{"loss": 1.0}, {"loss": 2.0}], {"loss": [1.0, 2.0]}),
        ([{"loss": 1.0}, [{"loss": 2.0}, {"loss": 3.0}]], {"loss": [1.0, 2.0, 3.0]}),
        ([{"loss": [1.0, 2.0]}, {"loss": 3.0}], {"loss": [1.0, 2.0, 3.0]}),
        ([{"loss": [[1.0], [2.0]]}], {"loss": [[1.0], [2.0]]}),
        ([{"a": 1}, {"b": 2}], {"a": [1], "b": [2]}),
        ([None, {"a": 1}], {"a": [1]}),
        ([{}, []], {}),
    ],
)
def test_metrics_of_every_form_become_flat_lists(parts: list[Any], expected: dict[str, Any]) -> None:
    assert merge_meta([{"metrics": part} for part in parts]) == {"metrics": expected}


@pytest.mark.parametrize("metrics", [3.0, "loss", [1.0, 2.0]])
def test_metrics_of_no_known_form_are_refused(metrics: Any) -> None:
    with pytest.raises(ValueError, match="a dict, a list of dicts or a dict of lists, got"):
        merge_meta([{"metrics": metrics}])


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("first", 4),
        ("list", [4, 1]),
        ("mean", 2.5),
        ("sum", 5),
        ("min", 1),
        ("max", 4),
        (sorted, [1, 4]),
    ],
)
def test_a_key_is_joined_by_its_rule(rule: Any, expected: Any) -> None:
    assert merge_meta([{"k": 4}, {}, {"k": 1}], {"k": rule}) == {"k": expected}


def test_numbers_in_dicts_are_joined_key_by_key() -> None:
    parts = [{"timing": {"gen": 1.0, "train": 2.0}}, {"timing": {"gen": 3.0}}]
    assert merge_meta(parts, {"timing": "mean"}) == {"timing": {"gen": 2.0, "train": 2.0}}


def test_equal_is_a_rule_and_an_unknown_one_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"meta_info\['k'\] differs"):
        merge_meta([{"k": 1}, {"k": 2}], {"k": "equal"})
    with pytest.raises(ValueError, match=r"no rule 'median' for 'k'.*mean"):
        merge_meta([{"k": 1}, {"k": 2}], {"k": "median"})  # type: ignore[dict-item]


def test_metrics_that_must_be_equal_are_named_where_they_are_not() -> None:
    assert reduce_metrics({"lr": [0.1, 0.1]}, default="equal") == {"lr": 0.1}
    with pytest.raises(ValueError, match=r"meta_info\['lr'\] differs: part 0 has 0.1, part 1 has 0.2"):
        reduce_metrics({"lr": [0.1, 0.2]}, default="equal")


def test_metrics_are_reduced_by_declared_rules() -> None:
    metrics = {"loss": [1.0, 4.0], "tokens": [30, 10], "seconds": [2.0, 3.0]}
    rules: dict[str, Any] = {"loss": WeightedMean("tokens"), "tokens": "sum", "seconds": "max"}
    assert reduce_metrics(metrics, rules) == {"loss": 1.75, "tokens": 40, "seconds": 3.0}
    assert reduce_metrics(metrics)["loss"] == 2.5
    assert reduce_metrics([{"a": 1}, {"a": 3}], default="sum") == {"a": 4}
    assert reduce_metrics(None) == {}
    assert reduce_metrics({"t": [torch.tensor(1.0), torch.tensor(2.0)]})["t"] == 1.5


@pytest.mark.parametrize("weights", [{}, {"w": [1]}, {"w": [0, 0]}])
def test_weights_must_fit_the_values(weights: dict[str, list[float]]) -> None:
    with pytest.raises(ValueError, match="'w' has no weight for each 'loss'"):
        reduce_metrics({"loss": [1.0, 2.0], **weights}, {"loss": WeightedMean("w")})


def test_weights_and_values_must_be_numbers() -> None:
    for metrics in ({"loss": [1.0], "w": ["x"]}, {"loss": ["x"], "w": [0.5]}):
        with pytest.raises(ValueError, match="'loss' and its weights 'w' must be numbers"):
            reduce_metrics(metrics, {"loss": WeightedMean("w")})


@pytest.mark.parametrize("rule", ["mean", "sum", "min", "max", "first", "equal"])
def test_there_is_no_value_of_nothing(rule: Any) -> None:
    with pytest.raises(ValueError, match=f"no {rule} of no values"):
        reduce_metrics({"loss": []}, default=rule)
    assert reduce_metrics({"loss": []}, default="list") == {"loss": []}


def test_containers_keep_their_class_and_attributes_when_copied() -> None:
    weights: Any = torch.nn.Linear(1, 1).state_dict()
    counts = defaultdict(list, {"a": [1]})
    merged = merge_meta([{"weights": weights, "counts": counts, "seen": {1}}])
    assert merged["weights"]._metadata == weights._metadata
    assert merged["counts"]["new"] == []
    merged["counts"]["a"].append(2)
    merged["seen"].add(2)
    assert counts == {"a": [1]}
    loop: list[Any] = [1]
    loop.append(loop)
    copied = merge_meta([{"loop": loop}])["loop"]
    assert copied[1] is copied is not loop


def test_dicts_of_like_keys_become_lists() -> None:
    assert list_of_dict_to_dict_of_list([{"a": 1, "b": [2]}, {"b": 3, "a": 4}]) == {
        "a": [1, 4],
        "b": [[2], 3],
    }
    assert list_of_dict_to_dict_of_list([]) == {}
    with pytest.raises(KeyError, match=r"number 0 has \['a'\], number 1 \['b'\]"):
        list_of_dict_to_dict_of_list([{"a": 1}, {"b": 1}])
