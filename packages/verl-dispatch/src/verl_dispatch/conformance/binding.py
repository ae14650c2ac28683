"""What a group shows of its worker class, and which names it keeps for itself."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from verl_dispatch.conformance.backend import Backend, GroupCache
from verl_dispatch.conformance.workers import ModesWorker
from verl_dispatch.methods.decorator import register
from verl_dispatch.modes import Dispatch
from verl_dispatch.workers.worker import Worker


class TestBinding:
    """Bound methods of a group of 4."""

    @pytest.fixture
    def group(self, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, 4)

    def test_methods_keep_signature_docstring_and_mode(self, group: Any) -> None:
        method = group.one_to_all
        assert list(inspect.signature(method).parameters) == ["x", "y"]
        assert method.__doc__ == "Documented."
        assert method.__name__ == "one_to_all"
        assert method.dispatch_mode is Dispatch.ONE_TO_ALL
        assert method.blocking

    def test_methods_are_listed(self, group: Any) -> None:
        assert {"one_to_all", "rows", "over_pairs"} <= set(dir(group))
        assert "unregistered" not in dir(group.methods)

    def test_a_method_may_be_named_in_several_ways(self, group: Any) -> None:
        expected = [(rank, 1, None) for rank in range(4)]
        assert group.one_to_all(1) == expected
        assert group.methods.one_to_all(1) == expected
        assert group.call("one_to_all", 1) == expected
        assert group.call(ModesWorker.one_to_all, 1) == expected
        assert group.bind(ModesWorker.one_to_all)(1) == expected
        assert group.submit(ModesWorker.one_to_all, 1).result() == expected
        assert [answer for _, answer in sorted(group.stream(ModesWorker.one_to_all, 1))] == expected

    def test_a_plan_sends_nothing(self, group: Any) -> None:
        group.keep("before")
        plan = group.keep.plan("after")
        assert [call.args for call in plan.calls] == [("after",)] * 4
        assert plan.method == "keep"
        assert group.get_kept() == ["before"] * 4

    @pytest.mark.parametrize("name", ["execute_all", "spawn", "world_size", "shutdown", "workers", "restart"])
    def test_names_that_the_group_needs_are_refused(self, backend: Backend, name: str) -> None:
        function = register(dispatch_mode=Dispatch.ONE_TO_ALL)(lambda self: 1)
        with pytest.raises(ValueError, match=rf"'{name}'.*reserved"):
            backend.make_group(type("Clashing", (Worker,), {name: function}), 1)
