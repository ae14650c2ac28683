"""Worker classes that the files here call on groups: every mode, sync and async, blocking and not."""

from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, cast

import torch
from tensordict import TensorDict
from verl_dispatch import (
    Dispatch,
    Execute,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_dispatch_mode,
    register_execute_mode,
)
from verl_dispatch.typed_modes import Arg, Mode, Ref, Res
from verl_protocol import DataProto, DataProtoFuture

T = TypeVar("T")
B = TypeVar("B", bound=DataProto)
P = ParamSpec("P")
R = TypeVar("R")
W = TypeVar("W")


class Rollouts(DataProto):
    """A user's own batch class."""


class Settings:
    """A user's own value class."""


class Options(TypedDict, total=False):
    """Keywords of a method."""

    steps: int


class Silent(Mode[tuple[()], Res, Ref[Res]]):
    """No arguments at all."""


class Summing(Mode[Arg, Res, Ref[Res]]):
    """Arguments as they are; one value of the type that each worker returns."""


def to_all(group: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
    return [[arg] * group.world_size for arg in args], {}


def add_up(group: Any, answers: list[Any]) -> Any:
    return sum(answers)


UNTYPED_SUM = register_dispatch_mode("TYPING_UNTYPED_SUM", to_all, add_up)
SUM = cast(Summing, register_dispatch_mode("TYPING_SUM", to_all, add_up))
EVEN_RANKS = register_execute_mode("TYPING_EVEN_RANKS", lambda world_size: range(0, world_size, 2))
ACTOR_MESH = make_nd_compute_dataproto_dispatch_fn("actor")


def logged(function: Callable[P, R]) -> Callable[P, R]:
    return function


def shown(function: Callable[Concatenate[W, P], object]) -> Callable[Concatenate[W, P], str]:
    def show(worker: W, /, *args: P.args, **kwargs: P.kwargs) -> str:
        return str(function(worker, *args, **kwargs))

    return show


class Trainer(Worker):
    """One method for each thing that is checked."""

    def __init__(self, lr: float, name: str = "trainer") -> None:
        super().__init__()

    def helper(self) -> int:
        return self.rank

    # ALL_TO_ALL, the default
    @register()
    def ping(self) -> str:
        return "pong"

    @register(Dispatch.ALL_TO_ALL)
    def scale(self, factor: float, offset: int = 0) -> float:
        return factor

    @register(Dispatch.ALL_TO_ALL)
    def tokenize(self, batch: DataProto) -> int:
        return len(batch)

    @register(blocking=False)
    def ping_later(self) -> str:
        return "pong"

    @register(execute_mode=Execute.RANK_ZERO)
    def first_only(self, path: str) -> str:
        return path

    # ONE_TO_ALL
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load(self, path: str, *, strict: bool = True) -> int:
        return 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def load_later(self, path: str, *, strict: bool = True) -> int:
        return 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def load_async(self, path: str) -> Settings:
        return Settings()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def save(self, path: str) -> str:
        return path

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO, blocking=False)
    async def save_later(self, path: str) -> str:
        return path

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=EVEN_RANKS)
    def on_even_ranks(self, value: int) -> int:
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_many(self, /, *values: int, **named: str) -> None: ...

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def anything(self, value: Any, *more: Any) -> int:
        return 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def same(self, value: T) -> T:
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def itself(self) -> Self:
        return self

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def configure(self, path: str, **options: Unpack[Options]) -> int:
        return 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def name_all(self, **named: str) -> int:
        return len(named)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @logged
    def wrapped(self, path: str, *, strict: bool = True) -> int:
        return 0

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    @shown
    def wrapped_anew(self, seed: int, name: str) -> int:
        return seed

    # RANK_ZERO
    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def step_of(self, path: str) -> int:
        return 0

    # DP_COMPUTE
    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def seed(self, seed: int, name: str) -> float:
        return 0.0

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def echo(self, value: T) -> T:
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def beside(self, other: Self) -> int:
        return 0

    @register(dispatch_mode=Dispatch.DP_COMPUTE, blocking=False)
    def seed_later(self, seed: int) -> float:
        return 0.0

    # DP_COMPUTE_PROTO and its kin
    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO,
        reads=("input_ids", "old_log_probs"),
        writes={"loss": (torch.float32, ()), "why": object, "steps": None},
    )
    def update_actor(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def filtered(self, batch: B) -> B:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def generate(self, prompts: DataProto) -> Rollouts:
        return Rollouts()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    async def generate_async(self, prompts: DataProto, temperature: float = 1.0) -> DataProto:
        return prompts

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compare(self, policy: Rollouts, reference: DataProto) -> Rollouts:
        return policy

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def tune(self, batch: DataProto, *, lr: float = 1e-3) -> DataProto:
        return batch

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO,
        reads={"batch": {"loss": torch.float32, "x": (None, (None, 4))}, "reference": ["loss"]},
    )
    def weigh(self, batch: DataProto, reference: DataProto, weight: float = 1.0) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def values_of(self, batch: TensorDict) -> TensorDict:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    def hand_on(self, future: DataProtoFuture[DataProto]) -> DataProto:
        return future.get()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, function: Callable[[DataProto], DataProto], batch: DataProto) -> DataProto:
        return function(batch)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def losses(self, batch: DataProto) -> dict[str, float]:
        return {}

    @register(dispatch_mode=ACTOR_MESH)
    def update_on_mesh(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"), blocking=False)
    def update_on_mesh_later(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=ACTOR_MESH)
    def on_last_stage(self, batch: DataProto) -> DataProto | None:
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def with_options(self, /, batch: DataProto, **options: float) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def chat(self, prompt: str) -> str:
        return prompt

    # ONE_TO_ONE
    @register(dispatch_mode=Dispatch.ONE_TO_ONE)
    def place(self, value: int) -> str:
        return str(value)

    @register(dispatch_mode=Dispatch.ONE_TO_ONE, blocking=False)
    def place_later(self, value: int) -> str:
        return str(value)

    # Custom modes
    @register(dispatch_mode=UNTYPED_SUM)
    def untyped(self, value: int) -> int:
        return value

    @register(dispatch_mode={"dispatch_fn": to_all, "collect_fn": add_up})
    def from_dict(self, value: int) -> int:
        return value

    @register(dispatch_mode=Dispatch["DP_COMPUTE"])
    def looked_up(self, value: int) -> int:
        return value

    @register(dispatch_mode=cast(Silent, SUM))
    def count(self, value: int = 0) -> int:
        return value

    @register(dispatch_mode=SUM)
    def total(self, value: int) -> int:
        return value


class BiggerTrainer(Trainer):
    """Inherits, overrides with the same mode, and adds."""

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO,
        reads=("input_ids", "old_log_probs"),
        writes={"loss": (torch.float32, ()), "why": object, "steps": None},
    )
    def update_actor(self, batch: DataProto) -> Rollouts:
        super().update_actor(batch)
        return Rollouts()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def size(self) -> int:
        return 1


class Other(Worker):
    """Has nothing to do with the others."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def size(self) -> str:
        return ""


class Keeper(Worker, Generic[T]):
    """A worker that is generic in what it keeps."""

    def __init__(self, kept: T) -> None:
        super().__init__()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def swap(self, value: T) -> T:
        return value
