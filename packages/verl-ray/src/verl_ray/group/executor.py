"""Sends the calls of a plan to a set of workers: what goes to each rank, and how its answer is wanted."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.planning.collectors import BatchCollector
from verl_dispatch.planning.options import CallOptions
from verl_dispatch.planning.plan import CallPlan, RankCall

from verl_ray.calls.call import RayCall, unread_behind
from verl_ray.calls.futures import learn_row_counts
from verl_ray.calls.packing import Arguments, Packer
from verl_ray.errors import TransportRefusedError, out_of_reach
from verl_ray.group.worker_set import WorkerSet
from verl_ray.wire.message import ONE_READER, Answer, count_rows
from verl_ray.wire.refs import maker_of, transport_of
from verl_ray.worker.actor import ANY_METHOD, routes_of

_connecting = threading.Lock()
"""Views of several roles, and several threads, may ask for the same connection."""


class Executor:
    """The calls of one group, or of the view of one role, on its workers.

    Args:
        worker_set: the workers.
        user_class: the class that the workers run, of all roles.
        role: whose methods are called; None where the workers hold one class only.
    """

    def __init__(self, worker_set: WorkerSet, user_class: type, role: str | None) -> None:
        self._worker_set, self._role = worker_set, role
        self._label = user_class.__name__
        self._routes = {route.method.name: route for route in routes_of(user_class) if route.role == role}
        self._generation = -1
        self._connected: set[str] = set()
        self._remotes: dict[tuple[str, int, str | None], list[Any]] = {}

    def send(self, plan: CallPlan, options: CallOptions, timed: bool = False) -> RayCall:
        """Start every call of the plan; returns at once.

        Args:
            timed: whether the workers are to report their times, where the transport allows that.
        """
        self._worker_set.ready()
        if self._generation != self._worker_set.generation:
            # What is known of the handles of earlier workers says nothing about these.
            self._generation, self._connected, self._remotes = self._worker_set.generation, set(), {}
        route = self._routes.get(plan.method)
        transport = route.transport if options.blocking is False and route is not None else None
        if transport is not None and transport not in self._connected:
            self._connect(plan.method, transport)
        read = _asked(plan, options, transport, timed)
        dropped = Answer(dropped=True, guarded=read.guarded, timed=read.timed)
        arguments = Arguments(plan.calls)
        materializes = route is not None and route.method.options.materialize_futures
        if options.blocking and options.timeout_s is None and materializes:
            # For a caller who waits anyway: who knows the counts sends less, and spares the workers to ask.
            for future in arguments.futures:
                learn_row_counts(future)
        fetched = set(plan.fetched_ranks)
        answers = [read if call.rank in fetched else dropped for call in plan.calls]
        # All are packed before any is sent: what cannot be packed shall reach no rank.
        given = self._packed(plan, arguments, answers)
        remotes = self._remotes_of(plan.method, read.num_values, transport)
        # What nobody reads has no rows that anybody counts: Ray would print a failure of either.
        unread = remotes if plan.fetches_all else self._remotes_of(plan.method, dropped.num_values, transport)
        sent = RayCall(
            self._worker_set,
            plan,
            options,
            unread=unread_behind(arguments.futures),
            can_be_cancelled=route is not None and route.method.is_async,
        )
        # All ranks get the calls of several threads in one order, or two calls could wait for each other.
        with self._worker_set.sending:
            try:
                for call, answer, message in zip(plan.calls, answers, given, strict=True):
                    made = (unread if answer.dropped else remotes)[call.rank].remote(*message)
                    ref, *more = made if isinstance(made, list) else [made]
                    sent.refs[call.rank] = ref
                    if answer.timed:
                        sent.stamps[call.rank] = more.pop()
                    if answer.remote:
                        sent.objects[call.rank] = more
                    elif answer.with_rows:
                        (sent.rows_refs[call.rank],) = more
                    elif answer.transport is not None and isinstance(plan.collect, BatchCollector):
                        # Ray takes one return value with a direct transport, so a second call counts them.
                        handle = self._worker_set.handles[call.rank]
                        sent.rows_refs[call.rank] = handle.__ray_call__.remote(count_rows, ref)
            except BaseException:
                # Ranks of which only some got a call no longer agree about what comes next.
                if sent.refs:
                    left = [rank for rank in plan.called_ranks if rank not in sent.refs]
                    self._worker_set.mark_broken(plan.method, left, self._generation)
                raise
        sent.sent_at = time.perf_counter()
        return sent

    def _packed(
        self, plan: CallPlan, arguments: Arguments, answers: Sequence[Answer]
    ) -> list[tuple[Any, ...]]:
        """The arguments for the runner of each rank."""
        route = self._routes.get(plan.method)
        packer = Packer(
            arguments.stored("read_only" if plan.read_only else "many"),
            arguments.bulky,
            "read_only" if plan.read_only else "one",
            route is not None and route.method.options.materialize_futures,
            partial(self._is_own, plan.method),
        )
        given: list[tuple[Any, ...]] = []
        before: RankCall | None = None
        for call, answer in zip(plan.calls, answers, strict=True):
            alike = before is not None and call.args is before.args and call.kwargs is before.kwargs
            if alike and answer is ONE_READER:
                given.append(given[-1])
                continue
            routed = call
            if route is None:
                routed = RankCall(call.rank, (self._role, plan.method, *call.args), call.kwargs)
            given.append(packer.pack(routed, answer))
            # With references beside it, or a way to answer, a message may be one rank's own.
            before = call if answer is ONE_READER and len(given[-1]) < 2 else None
        return given

    def _remotes_of(self, method: str, num_returns: int, transport: str | None) -> list[Any]:
        """The method of each rank's handle; made once per generation, as that costs as much as the call."""
        found = self._remotes.get((method, num_returns, transport))
        if found is None:
            runner = self._routes[method].runner if method in self._routes else ANY_METHOD
            options: dict[str, Any] = {} if transport is None else {"tensor_transport": transport}
            options |= {"name": f"{self._label}.{method}", "num_returns": num_returns}
            found = [getattr(handle, runner).options(**options) for handle in self._worker_set.handles]
            self._remotes[method, num_returns, transport] = found
        return found

    # --- Results that stay in the worker's memory and go from there to the next: Ray Direct Transport ------
    # Only non-blocking calls use it: what a blocking call answers is for the driver, which the store serves
    # better. gloo and nccl send between the members of one collective group, and Ray allows a worker one such
    # group for each of them. It is made at the first call that needs it, so that the workers' own
    # `init_process_group` can come before.

    def _connect(self, method: str, transport: str) -> None:
        """Make the transport that the method was registered with ready for use, once the workers are idle.

        Raises:
            TransportRefusedError: somebody else started the workers.
            WorkerGroupError: they could not connect.
        """
        if not self._worker_set.owned:
            raise TransportRefusedError(
                method,
                transport,
                "the group was attached to",
                "call it from the driver that started the workers",
            )
        if transport != "nixl":
            with _connecting:
                self._make_collective_group(method, transport)
        self._connected.add(transport)

    def _make_collective_group(self, method: str, transport: str) -> None:
        from ray.experimental.collective import create_collective_group, get_collective_groups
        from ray.experimental.collective.collective import RemoteCommunicatorManager

        handles = list(self._worker_set.handles)
        if get_collective_groups(handles, transport):
            return
        try:
            made = create_collective_group(handles, transport)
            # Ray has written its own meeting point over the group's.
            ray.get([handle.__ray_call__.remote(_restore_environment) for handle in handles])
        except (RayError, RuntimeError, ValueError) as error:
            reason = f"the workers could not connect for tensor_transport={transport!r}: {error}"
            raise WorkerGroupError(self._worker_set.name, method, reason=reason) from error
        # So that Ray drops its record of the connection once the workers are gone.
        forget = RemoteCommunicatorManager.get().remove_remote_communicator
        weakref.finalize(self._worker_set, forget, made.name).atexit = False

    def _is_own(self, method: str, ref: Any, rank: int) -> bool:
        """Whether the worker of this rank itself made, and still holds, what is behind a direct reference.

        Raises:
            ValueError: the tensors cannot get to that worker.
        """
        transport, maker, handle = str(transport_of(ref)), maker_of(ref), self._worker_set.handles[rank]
        # Ray warns, maybe on a thread of its own, where a result also goes to the worker that made it. There
        # it is copied; and where warnings are errors, this one would end the driver.
        warnings.filterwarnings("ignore", message="RDT ObjectRef")
        if maker is None or not _reaches(maker, handle, transport):
            raise out_of_reach(f"method {method!r} of group {self._worker_set.name!r}", transport)
        return bool(maker == handle)


def _asked(plan: CallPlan, options: CallOptions, transport: str | None, timed: bool) -> Answer:
    """How those answers of a call are wanted that somebody reads."""
    handed_on, stored = options.blocking is False, transport is None
    in_future = handed_on and isinstance(plan.collect, BatchCollector)
    # A list of references is for `ray.get`, which knows nothing of columns that lie elsewhere.
    remote = plan.remote and stored and (in_future or not handed_on)
    asked = Answer(
        readers="many" if handed_on else "one",
        with_rows=in_future and stored and not remote,
        guarded=plan.read_only,
        transport=transport,
        remote=remote,
        timed=timed and stored,
    )
    return ONE_READER if asked == ONE_READER else asked


def _reaches(maker: Any, handle: Any, transport: str) -> bool:
    if transport == "nixl":
        return bool(handle._ray_enable_tensor_transport)
    from ray.experimental.collective import get_collective_groups

    return bool(get_collective_groups([maker, handle], transport))


def _restore_environment(worker: Any) -> None:
    os.environ.update(worker._verl_report.assignment.rank_info.environment())
