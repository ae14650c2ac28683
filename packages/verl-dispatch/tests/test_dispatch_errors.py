"""Errors: what they hold, what they say, and that they cross process borders."""

import copy
import pickle
import pkgutil
from importlib import import_module
from typing import Any

import pytest
import verl_dispatch
from verl_dispatch import CallTimeout, WorkerFailure, WorkerGroupError
from verl_dispatch import errors as module
from verl_dispatch.errors import (
    AnswerError,
    CallOptionError,
    EntryCountError,
    InvalidModeError,
    MeshError,
    UnevenRowsError,
    UnknownMemberError,
    UnknownMeshError,
    UnsplittableArgumentError,
)
from verl_protocol.errors import PortableError

FAILURE = WorkerFailure(1, "10.0.0.2", 4711, KeyError("boom"), "Traceback ...\nKeyError: 'boom'\n")
SAMPLES: list[Exception] = [
    WorkerGroupError("actor", "f", {1: FAILURE}, [3, 2]),
    CallTimeout("actor", "f", 1.5, [1, 0]),
    UnknownMemberError("Dispatch", "X", ["A"]),
    UnsplittableArgumentError("argument 0", 3, 2, "a batch"),
    EntryCountError("argument 0", 2, 3),
    UnevenRowsError("argument 0: 10 rows", 10, 3),
    InvalidModeError("it has none"),
    AnswerError("why"),
    MeshError("m", "problem", "table"),
    UnknownMeshError("m", ["a"]),
    CallOptionError("uneven", "problem"),
]


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickle_and_copy(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert set(again.__dict__) == set(error.__dict__)


def test_a_group_error_names_group_method_rank_node_pid_and_cause() -> None:
    error = WorkerGroupError("actor", "f", {1: FAILURE}, [3, 2])
    for fact in ("actor", "'f'", "rank 1", "KeyError", "boom", "pid 4711", "node 10.0.0.2", "ranks 2, 3"):
        assert fact in str(error)
    assert error.failed_ranks == [1]
    assert error.unanswered_ranks == [2, 3]
    assert isinstance(error.errors[1].cause, KeyError)
    assert str(error).endswith("KeyError: 'boom'")


def test_a_group_error_may_have_another_reason() -> None:
    error = WorkerGroupError("actor", "f", reason="the group is shut down")
    assert str(error) == "group 'actor', method 'f': the group is shut down"
    assert error.failed_ranks == []


def test_failures_are_kept_in_rank_order() -> None:
    failures = {rank: WorkerFailure(rank, "n", None, ValueError(str(rank))) for rank in (2, 0)}
    error = WorkerGroupError("g", "f", failures)
    assert error.failed_ranks == [0, 2]
    assert "failed on ranks 0, 2" in str(error)
    assert "pid unknown" in str(error)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("says nothing")


def test_a_message_stays_readable_whatever_a_worker_says() -> None:
    huge = WorkerFailure(0, "n", 1, ValueError("start" + "x" * 1_000_000 + "end"), "y" * 1_000_000)
    text = str(WorkerGroupError("g", "f", {0: huge, 1: WorkerFailure(1, "n", 2, Mute())}))
    assert len(text) < 30_000
    assert all(piece in text for piece in ("ValueError: start", "xend", "characters left out", "Mute: ("))
    assert len(str(huge.cause)) > 1_000_000 == len(huge.traceback)


def test_a_timeout_names_who_is_silent() -> None:
    error = CallTimeout("actor", "f", 1.5, [1, 0])
    assert isinstance(error, TimeoutError)
    assert error.unanswered_ranks == [0, 1]
    assert str(error).startswith("group 'actor', method 'f': no answer within 1.5 s from ranks 0, 1")


@pytest.mark.parametrize(
    ("error", "bases"),
    [
        ("UnknownMemberError", KeyError),
        ("UnknownMeshError", KeyError),
        ("UnsplittableArgumentError", TypeError),
        ("AnswerError", TypeError),
        ("AnswerError", ValueError),
        ("InvalidModeError", TypeError),
        ("EntryCountError", ValueError),
        ("UnevenRowsError", ValueError),
        ("RowCountError", ValueError),
        ("InvalidModeError", ValueError),
        ("MeshError", ValueError),
        ("WorkerClassError", ValueError),
        ("WorkerClassError", TypeError),
        ("MissingRankVariablesError", KeyError),
        ("CollectiveError", RuntimeError),
        ("UnknownMethodError", AttributeError),
        ("WorkerGroupError", RuntimeError),
    ],
)
def test_errors_are_of_the_promised_kinds(error: str, bases: Any) -> None:
    assert issubclass(getattr(module, error), bases)


def test_every_error_of_the_package_is_in_its_module_and_has_the_one_base() -> None:
    modules = [
        import_module(found.name)
        for found in pkgutil.walk_packages(verl_dispatch.__path__, "verl_dispatch.")
        if found.name != "verl_dispatch.mypy_plugin"
    ]
    kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
    own = {kind for kind in kinds if issubclass(kind, Exception) and "verl_dispatch" in kind.__module__}
    assert {kind.__module__ for kind in own} == {module.__name__}
    assert all(issubclass(kind, PortableError | Warning) for kind in own)
