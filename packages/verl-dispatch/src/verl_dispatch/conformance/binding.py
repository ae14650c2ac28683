"""What a group shows of its worker class and of the roles in it, and which names it keeps for itself."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from verl_dispatch.conformance.backend import Backend, GroupCache, SharedGroups, batch, failure_of, said
from verl_dispatch.conformance.workers import BothRoles, ModesWorker, RoleA, RoleAB, ids_of
from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.methods.decorator import register
from verl_dispatch.modes import Dispatch
from verl_dispatch.workers.worker import Worker


class TestBinding(SharedGroups):
    """Bound methods of a group of 4."""

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
        assert group.one_to_all(1) == group.methods.one_to_all(1) == said(1)
        assert group.call("one_to_all", 1) == group.call(ModesWorker.one_to_all, 1) == said(1)
        assert group.bind(ModesWorker.one_to_all)(1) == said(1)
        assert group.submit(ModesWorker.one_to_all, 1).result() == said(1)
        assert sorted(group.stream(ModesWorker.one_to_all, 1)) == list(enumerate(said(1)))

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


# --- Several roles in one worker: reached by role and method, sharing one life ------------------------------


ROLES: dict[str, type] = {"a": RoleA, "a_b": RoleAB}


class TestColocation:
    """Roles `a` and `a_b`, whose joined names would mean the same method, on groups of 2."""

    @pytest.fixture(params=[False, True], ids=["spawned", "fused"])
    def parent(self, request: pytest.FixtureRequest, groups: GroupCache) -> Any:
        return groups.colocated(ROLES, 2, fused=request.param)

    @pytest.fixture
    def fused(self, groups: GroupCache) -> Any:
        return groups.colocated(ROLES, 2, fused=True)

    def test_names_never_collide(self, parent: Any) -> None:
        views = parent.spawn({"a", "a_b"})
        assert views["a"].b_c() == ["A.b_c 0", "A.b_c 1"]
        assert views["a_b"].c() == ["AB.c 0", "AB.c 1"]
        assert not hasattr(views["a"], "b_b_c")
        assert not hasattr(views["a"], "c")

    def test_async_methods_work(self, parent: Any) -> None:
        assert parent.spawn({"a_b"})["a_b"].one_to_all_async(5) == [(0, 5, None), (1, 5, None)]

    def test_meshes_belong_to_the_role(self, parent: Any) -> None:
        views = parent.spawn({"a", "a_b"})
        assert ids_of(views["a_b"].over_each(batch(4))) == [0, 1, 2, 3]
        assert views["a"].get_dispatch_collect()[0]["dispatch_dp_rank"] == {}

    def test_views_share_the_generation_and_end_with_the_parent(self, parent: Any) -> None:
        view = parent.spawn({"a"})["a"]
        assert view.generation == parent.generation
        assert view.world_size == parent.world_size
        for action in ("shutdown", "restart"):
            with pytest.raises(RuntimeError, match=action):
                getattr(view, action)()
        assert view.b_c() == ["A.b_c 0", "A.b_c 1"]

    def test_failure_names_rank_and_method(self, parent: Any) -> None:
        view = parent.spawn({"a_b"})["a_b"]
        error = failure_of(view.raise_on, 1)
        assert (error.method, error.failed_ranks) == ("raise_on", [1])
        assert view.c() == ["AB.c 0", "AB.c 1"]

    def test_unknown_roles_are_refused(self, parent: Any) -> None:
        with pytest.raises((KeyError, ValueError), match=r"'c'.*a_b"):
            parent.spawn({"c"})

    def test_typed_view_of_a_role(self, parent: Any) -> None:
        assert parent.role("a_b", RoleAB).c() == ["AB.c 0", "AB.c 1"]

    def test_fused_roles_call_each_other(self, fused: Any) -> None:
        assert fused.spawn({"a"})["a"].ask_sibling() == ["AB.c 0", "AB.c 1"]

    def test_roles_are_attributes_of_the_fused_worker(self, backend: Backend) -> None:
        with backend.make_group(BothRoles, 2, word="both") as group:
            assert group.both() == [("both", "A.b_c 0", "AB.c 0"), ("both", "A.b_c 1", "AB.c 1")]

    def test_fuse_makes_roles_attributes(self, fused: Any) -> None:
        fused.fuse({"a", "a_b"})
        assert fused.a.b_c() == ["A.b_c 0", "A.b_c 1"]
        assert fused.a_b.c() == ["AB.c 0", "AB.c 1"]

    def test_roles_that_are_not_fused_do_not_know_each_other(self, groups: GroupCache) -> None:
        view = groups.colocated(ROLES, 2, fused=False).spawn({"a"})["a"]
        with pytest.raises(WorkerGroupError, match="unknown role 'a_b'; colocated roles: none"):
            view.ask_sibling()
