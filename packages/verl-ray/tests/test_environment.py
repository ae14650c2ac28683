"""Environments of several sources: merged deeply, conflicts named, owned variables refused."""

from __future__ import annotations

from typing import Any

import pytest
from verl_ray.pools.devices import DEVICE_MASKS
from verl_ray.worker.environment import (
    RANK_VARIABLES,
    checked_env,
    forwarded_env,
    merge_settings,
)


@pytest.mark.parametrize("name", sorted(RANK_VARIABLES | DEVICE_MASKS))
def test_rank_and_device_variables_cannot_be_set_from_outside(name: str) -> None:
    with pytest.raises(ValueError, match=f"worker_env may not set {name}:"):
        checked_env("worker_env", {name: "7"})
    with pytest.raises(ValueError, match=f"forward_env may not set {name}:"):
        forwarded_env([name], {name: "7"})


@pytest.mark.parametrize("variables", [{"A": 1}, {1: "a"}, {"A": None}])
def test_variables_are_strings(variables: dict[Any, Any]) -> None:
    with pytest.raises(TypeError, match=r"worker_env has .* expected strs"):
        checked_env("worker_env", variables)


def test_no_error_shows_a_value_which_may_be_a_secret() -> None:
    secret: Any = {"TOKEN": 31337}
    with pytest.raises(TypeError) as told:
        checked_env("worker_env", secret)
    assert "31337" not in str(told.value)
    with pytest.raises(ValueError, match="TOKEN differs") as told_of_two:
        merge_settings(worker_env={"TOKEN": "31337"}, forward_env={"TOKEN": "4711"})
    assert not {"31337", "4711"} & set(str(told_of_two.value).split("'"))


@pytest.mark.parametrize("variables", [{"": "1"}, {"A=B": "1"}, {"A\0": "1"}, {"A": "1\0"}])
def test_what_no_system_takes_is_refused_here(variables: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no system takes"):
        checked_env("worker_env", variables)


def test_the_callers_dict_is_copied() -> None:
    given = {"NCCL_DEBUG": "INFO"}
    checked = checked_env("worker_env", given)
    checked["X"] = "1"
    assert given == {"NCCL_DEBUG": "INFO"}
    assert checked_env("worker_env", None) == {}


def test_forwarding_by_name_and_by_pattern() -> None:
    environ = {"NCCL_DEBUG": "INFO", "NCCL_IB": "0", "HOME": "/", "RANK": "3", "CUDA_VISIBLE_DEVICES": "3"}
    assert forwarded_env(["NCCL_*"], environ) == {"NCCL_DEBUG": "INFO", "NCCL_IB": "0"}
    assert forwarded_env(["HOME"], environ) == {"HOME": "/"}
    assert forwarded_env(["*"], environ).keys() == {"NCCL_DEBUG", "NCCL_IB", "HOME"}
    assert forwarded_env(["GLOO_*"], environ) == {}
    assert forwarded_env(None, environ) == {}


def test_a_missing_name_is_an_error_and_not_dropped() -> None:
    with pytest.raises(ValueError, match="'HF_TOKEN', which is not set"):
        forwarded_env(["HF_TOKEN"], {})


def test_merging_names_what_disagrees_and_who_said_it() -> None:
    with pytest.raises(
        ValueError, match=r"^X differs between worker_env and forward_env; set it in one place"
    ):
        merge_settings(worker_env={"X": "1"}, forward_env={"X": "2"})
    assert merge_settings(worker_env={"X": "1"}, forward_env={"X": "1", "Y": "2"}, nothing=None) == {
        "X": "1",
        "Y": "2",
    }


def test_runtime_environments_merge_deeply_and_stay_untouched() -> None:
    options = {"env_vars": {"X": "1"}, "working_dir": "/code", "pip": ["a"]}
    merged = merge_settings(options=options, worker_env={"env_vars": {"Y": "2"}})
    assert merged == {"env_vars": {"X": "1", "Y": "2"}, "working_dir": "/code", "pip": ["a"]}
    merged["env_vars"]["Z"] = "3"
    assert options == {"env_vars": {"X": "1"}, "working_dir": "/code", "pip": ["a"]}


def test_a_conflict_deep_inside_is_named_by_its_path() -> None:
    with pytest.raises(ValueError, match=r"env_vars\.X differs between options and worker_env"):
        merge_settings(options={"env_vars": {"X": "1"}}, worker_env={"env_vars": {"X": "2"}})
    with pytest.raises(ValueError, match="pip differs"):
        merge_settings(options={"pip": ["a"]}, job={"pip": ["b"]})
