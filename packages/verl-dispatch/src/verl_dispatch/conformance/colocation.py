"""Several roles in one worker: reached by role and method, sharing one life."""

from __future__ import annotations

from typing import Any

import pytest

from verl_dispatch.conformance.backend import Backend, GroupCache, end
from verl_dispatch.conformance.batches import batch, ids_of
from verl_dispatch.conformance.workers import BothRoles, RoleA, RoleAB
from verl_dispatch.errors import WorkerGroupError

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
        assert parent.spawn({"a"})["a"].later(5) == [5, 6]

    def test_meshes_belong_to_the_role(self, parent: Any) -> None:
        views = parent.spawn({"a", "a_b"})
        assert ids_of(views["a_b"].rows(batch(4))) == [0, 1, 2, 3]
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
        view = parent.spawn({"a"})["a"]
        with pytest.raises(WorkerGroupError) as caught:
            view.raise_on(1)
        assert caught.value.failed_ranks == [1]
        assert caught.value.method == "raise_on"
        assert view.b_c() == ["A.b_c 0", "A.b_c 1"]

    def test_unknown_roles_are_refused(self, parent: Any) -> None:
        with pytest.raises((KeyError, ValueError), match=r"'c'.*a_b"):
            parent.spawn({"c"})

    def test_typed_view_of_a_role(self, parent: Any) -> None:
        assert parent.role("a_b", RoleAB).c() == ["AB.c 0", "AB.c 1"]

    def test_fused_roles_call_each_other(self, fused: Any) -> None:
        assert fused.spawn({"a"})["a"].ask_sibling() == ["AB.c 0", "AB.c 1"]

    def test_roles_are_attributes_of_the_fused_worker(self, backend: Backend) -> None:
        group = backend.make_group(BothRoles, 2, word="both")
        try:
            assert group.both() == [("both", "A.b_c 0", "AB.c 0"), ("both", "A.b_c 1", "AB.c 1")]
        finally:
            end(group)

    def test_fuse_makes_roles_attributes(self, fused: Any) -> None:
        fused.fuse({"a", "a_b"})
        assert fused.a.b_c() == ["A.b_c 0", "A.b_c 1"]
        assert fused.a_b.c() == ["AB.c 0", "AB.c 1"]

    def test_roles_that_are_not_fused_do_not_know_each_other(self, groups: GroupCache) -> None:
        view = groups.colocated(ROLES, 2, fused=False).spawn({"a"})["a"]
        with pytest.raises(WorkerGroupError, match="unknown role 'a_b'; colocated roles: none"):
            view.ask_sibling()
