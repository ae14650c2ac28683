"""One class for several roles: building, routing, direct methods, names that cannot be."""

import asyncio
import inspect
from typing import Any

import pytest
from verl_dispatch.errors import NotTheOwnerError, UnknownMethodError, UnknownRoleError, WorkerClassError
from verl_dispatch.groups.pool import ClassWithInitArgs
from verl_dispatch.local.group import LocalWorkerGroup
from verl_dispatch.methods.decorator import register
from verl_dispatch.modes import Dispatch
from verl_dispatch.workers.rank import RankInfo
from verl_dispatch.workers.roles import (
    ColocatedWorker,
    clean_up,
    create_colocated_worker_raw_cls,
    has_async_methods,
)
from verl_dispatch.workers.site import WorkerSite, building
from verl_dispatch.workers.worker import Worker
from verl_protocol.errors import InvalidArgumentError


class Actor(Worker):
    def __init__(self, lr: float = 0.1, *, name: str = "actor") -> None:
        super().__init__()
        self.lr, self.name = lr, name

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe(self) -> tuple[int, float, str]:
        return self.rank, self.lr, self.name

    def leave(self) -> None:
        raise SystemExit(3)

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    def generate(self, prompt: str, n: int = 1) -> list[str]:
        """Answers to a prompt."""
        return [f"{self.name}: {prompt}"] * n

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def generate_async(self, prompt: str) -> str:
        await asyncio.sleep(0)
        return f"{self.name}: {prompt}"


class Critic(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.sibling_at_start = self.fused_worker_dict.get("actor")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def describe(self) -> tuple[int, str]:
        return self.rank, "critic"


class Plain:
    def describe(self) -> str:
        return "plain"


def built(cls: type[ColocatedWorker], rank: int = 1, world_size: int = 2) -> ColocatedWorker:
    with building(WorkerSite(RankInfo(rank, world_size))):
        return cls()


def test_every_role_is_built_with_its_arguments_and_the_workers_rank() -> None:
    roles = {"actor": ClassWithInitArgs(Actor, 0.5, name="mine"), "critic": Critic, "plain": Plain}
    cls = create_colocated_worker_raw_cls(roles)
    worker = built(cls)
    assert worker.rank == 1
    assert worker.call_role("actor", "describe") == (1, 0.5, "mine")
    assert worker.call_role("critic", "describe") == (1, "critic")
    assert worker.call_role("plain", "describe") == "plain"
    assert cls.raw_cls_dict == {"actor": Actor, "critic": Critic, "plain": Plain}


def test_a_class_may_play_several_roles() -> None:
    worker = built(
        create_colocated_worker_raw_cls({"actor": Actor, "ref": ClassWithInitArgs(Actor, name="ref")})
    )
    assert worker.call_role("ref", "describe") == (1, 0.1, "ref")
    assert worker.role_worker("actor") is not worker.role_worker("ref")


def test_fused_roles_find_those_built_before_them() -> None:
    worker = built(create_colocated_worker_raw_cls({"actor": Actor, "critic": Critic}))
    actor, critic = worker.role_worker("actor"), worker.role_worker("critic")
    assert critic.sibling_at_start is actor
    assert actor.fused_worker_dict is critic.fused_worker_dict is worker.fused_worker_dict
    assert actor.get_fused_worker_by_name("critic") is critic
    with pytest.raises(
        UnknownRoleError, match=r"'reward'; colocated roles: actor \(Actor\), critic \(Critic\)"
    ):
        actor.get_fused_worker_by_name("reward")


@pytest.mark.parametrize("name", ["rank", "process_group", "worker_dict", "call_role", "generate"])
def test_a_fused_role_is_named_like_nothing_else_in_the_worker(name: str) -> None:
    with pytest.raises(ValueError, match=f"role '{name}' cannot be an attribute of FusedWorker.*rename"):
        create_colocated_worker_raw_cls({name: Actor})
    create_colocated_worker_raw_cls({name: Actor}, fused=False)


def test_a_class_derived_from_a_fused_one_may_not_hide_a_role() -> None:
    fused: Any = create_colocated_worker_raw_cls({"actor": Actor})
    with pytest.raises(ValueError, match="role 'actor' cannot be an attribute of Hiding"):

        class Hiding(fused):  # type: ignore[misc]
            def actor(self) -> None: ...


def test_roles_that_are_not_fused_are_strangers() -> None:
    worker = built(create_colocated_worker_raw_cls({"actor": Actor, "critic": Critic}, fused=False))
    assert worker.role_worker("critic").sibling_at_start is None
    with pytest.raises(UnknownRoleError, match="'critic'; colocated roles: none"):
        worker.role_worker("actor").get_fused_worker_by_name("critic")


def test_direct_methods_are_bound_without_their_role() -> None:
    worker: Any = built(create_colocated_worker_raw_cls({"actor": Actor, "critic": Critic}))
    assert worker.generate("hi", n=2) == ["actor: hi"] * 2
    assert asyncio.run(worker.generate_async("hi")) == "actor: hi"
    assert inspect.iscoroutinefunction(worker.generate_async)
    assert list(inspect.signature(worker.generate).parameters) == ["prompt", "n"]
    assert worker.generate.__doc__ == "Answers to a prompt."


def test_direct_method_of_two_roles_is_an_error_where_it_is_called() -> None:
    worker: Any = built(create_colocated_worker_raw_cls({"actor": Actor, "ref": Actor}))
    with pytest.raises(WorkerClassError, match=r"'generate'.*actor, ref"):
        worker.generate("hi")
    assert worker.call_role("ref", "generate", "hi") == ["actor: hi"]


def test_an_async_method_of_a_role_gives_its_coroutine() -> None:
    worker = built(create_colocated_worker_raw_cls({"actor": Actor}))
    assert asyncio.run(worker.call_role("actor", "generate_async", "hi")) == "actor: hi"


@pytest.mark.parametrize(
    ("cls", "expected"),
    [
        (Actor, True),
        (Critic, False),
        (create_colocated_worker_raw_cls({"critic": Critic, "actor": Actor}), True),
        (create_colocated_worker_raw_cls({"critic": Critic}), False),
    ],
)
def test_async_methods_are_found(cls: type, expected: bool) -> None:
    assert has_async_methods(cls) is expected


def test_unknown_roles_list_the_known_ones() -> None:
    worker = built(create_colocated_worker_raw_cls({"actor": Actor}))
    with pytest.raises(KeyError, match=r"unknown role 'critic'; colocated roles: actor \(Actor\)"):
        worker.call_role("critic", "describe")


@pytest.mark.parametrize("roles", [{}, {"actor": 3}, {"actor": "Actor"}, {"actor": None}])
def test_roles_need_classes(roles: Any) -> None:
    with pytest.raises(ValueError, match="class_dict"):
        create_colocated_worker_raw_cls(roles)


def test_constructor_that_fails_names_its_role() -> None:
    class Failing(Worker):
        def __init__(self) -> None:
            super().__init__()
            raise ValueError("no model")

    with pytest.raises(ValueError, match="no model") as caught:
        built(create_colocated_worker_raw_cls({"actor": Actor, "critic": Failing}))
    assert caught.value.__notes__ == ["while building role 'critic'"]


class Noting:
    """Notes what is called at its end."""

    def __init__(self, notes: list[str], name: str) -> None:
        self.notes, self.name = notes, name


class Closing(Noting):
    def close(self) -> None:
        self.notes.append(self.name)


class FailingToClose(Noting):
    def close(self, wait_s: float = 0.0) -> None:
        raise OSError(f"{self.name} cannot")


class ClosingLater(Noting):
    async def close(self) -> None:
        self.notes.append(f"{self.name}, later")


class NotTheHook(Noting):
    def close(self, path: str) -> None:
        raise AssertionError


class RegisteredClose(Noting):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def close(self) -> None:
        raise AssertionError


def test_clean_up_goes_from_the_last_role_to_the_first(caplog: pytest.LogCaptureFixture) -> None:
    notes: list[str] = []
    classes = [Closing, ClosingLater, NotTheHook, RegisteredClose, FailingToClose, Closing]
    roles = {f"r{index}": ClassWithInitArgs(cls, notes, f"r{index}") for index, cls in enumerate(classes)}
    left = clean_up(built(create_colocated_worker_raw_cls(roles)), ["__ray_shutdown__", "close"])
    assert notes == ["r5", "r0"]
    assert left is not None
    asyncio.run(left)
    assert notes == ["r5", "r0", "r1, later"]
    assert "the clean-up of a FailingToClose failed" in caplog.text
    assert clean_up(Closing(notes, "alone"), ["close"]) is None
    assert notes[-1] == "alone"


# --- on a group ---------------------------------------------------------------------------------------------


@pytest.fixture(params=[False, True], ids=["turns", "threads"])
def group(request: pytest.FixtureRequest) -> Any:
    cls = create_colocated_worker_raw_cls({"actor": Actor, "critic": Critic})
    with LocalWorkerGroup(cls, 2, concurrent=request.param) as made:
        yield made


def test_views_live_and_end_with_their_parent(group: Any) -> None:
    actor = group.spawn({"actor"})["actor"]
    future = actor.describe.options(blocking=False)()[1]
    assert future.result() == (1, 0.1, "actor")
    group.restart()
    assert actor.generation == 1
    assert actor.describe() == [(0, 0.1, "actor"), (1, 0.1, "actor")]
    with pytest.raises(RuntimeError, match="generation 0"):
        future.result()
    group.shutdown()
    with pytest.raises(RuntimeError, match="shut down"):
        actor.describe()


def test_leaving_a_view_ends_nothing(group: Any) -> None:
    with group.spawn({"critic"})["critic"] as critic:
        assert critic.describe() == [(0, "critic"), (1, "critic")]
    assert critic.describe() == [(0, "critic"), (1, "critic")]
    with pytest.raises(NotTheOwnerError, match="'critic'"):
        critic.shutdown()


def test_a_broken_group_is_broken_for_all_its_roles(group: Any) -> None:
    views = group.spawn(["actor", "critic"])
    with pytest.raises(RuntimeError, match="SystemExit"):
        views["actor"].execute_rank_zero_sync("leave")
    with pytest.raises(RuntimeError, match="broken by an earlier failure in 'leave' on rank 0"):
        views["critic"].describe()


def test_fused_roles_become_attributes(group: Any) -> None:
    group.fuse({"actor", "critic"})
    assert group.critic.describe() == [(0, "critic"), (1, "critic")]
    assert group.actor.workers[1] is group.workers[1].role_worker("actor")


def test_fuse_refuses_names_that_the_group_needs() -> None:
    with (
        LocalWorkerGroup(create_colocated_worker_raw_cls({"spawn": Critic}), 1) as group,
        pytest.raises(ValueError, match="'spawn'"),
    ):
        group.fuse({"spawn"})


@pytest.mark.parametrize("name", ["reward", "", None, 3])
def test_a_role_must_exist(group: Any, name: Any) -> None:
    with pytest.raises(UnknownRoleError, match=rf"unknown role {name!r}; .*critic \(Critic\)"):
        group.role(name)


@pytest.mark.parametrize("cls", [Actor, "Critic", Critic.describe])
def test_a_role_must_be_of_the_class(group: Any, cls: Any) -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"role 'critic' is of class Critic, got cls=.*expected Critic or"
    ) as caught:
        group.role("critic", cls)
    assert isinstance(caught.value, ValueError)
    assert group.role("critic", Worker).describe() == group.role("critic", Critic).describe()


@pytest.mark.parametrize("roles", [3, None])
def test_roles_to_spawn_are_names(group: Any, roles: Any) -> None:
    with pytest.raises(WorkerClassError, match=f"prefix_set={roles}, expected names"):
        group.spawn(roles)


@pytest.mark.parametrize(
    ("name", "roles"),
    [("describe", "actor, critic"), ("critic_describe", "critic"), ("critic_describ", None)],
)
def test_a_method_of_a_role_is_looked_for_on_its_view(group: Any, name: str, roles: str | None) -> None:
    with pytest.raises(UnknownMethodError) as caught:
        getattr(group, name)()
    told = str(caught.value).partition("call it on the view of its role ")[2]
    assert told == ("" if roles is None else f"({roles}), which spawn gives")


def test_a_group_without_roles_has_none_to_spawn() -> None:
    with LocalWorkerGroup(Critic, 1) as group, pytest.raises(UnknownRoleError, match="roles: none"):
        group.spawn({"critic"})
