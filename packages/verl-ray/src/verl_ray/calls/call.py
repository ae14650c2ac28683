"""One call under way on the actors of a group: references to its answers, heard of once somebody waits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import ray
from verl_dispatch.errors import given_to
from verl_dispatch.groups.call import Call
from verl_dispatch.planning.collectors import BatchCollector
from verl_dispatch.planning.options import DEFAULT_OPTIONS, CallOptions
from verl_dispatch.planning.parts import PaddedPart
from verl_dispatch.planning.plan import CallPlan, arguments_of
from verl_dispatch.workers.observed import Stamps
from verl_protocol import DataProtoFuture
from verl_protocol.futures.parts import Deadline

from verl_ray.calls.failures import explained, failure_of, has_failed, is_gone, late
from verl_ray.calls.futures import AnswerPart, BatchFuture, answer_parts
from verl_ray.calls.makers import AN_EARLIER_CALL, Maker, Makers, maker_of_actor
from verl_ray.wire.refs import connection, hear, soon_here, transport_of
from verl_ray.wire.sealed import opened_compact
from verl_ray.wire.store import with_objects


class RayCall(Call):
    """A call that was sent to some workers.

    It is over when all called ranks have answered and all `unread` are there.

    Args:
        made_by: the workers.
        plan: what was sent.
        options: see `Call`.
        unread: answers that nobody reads of earlier calls, whose futures are among the arguments.
        can_be_cancelled: whether a worker can be told to stop: in async methods.

    Attributes:
        refs: the answer of each called rank; who sends fills it.
        rows_refs: the row count of each answer, where that comes as a value of its own.
        objects: the large columns of each answer, where they stay remote.
    """

    def __init__(
        self,
        made_by: Makers,
        plan: CallPlan,
        options: CallOptions = DEFAULT_OPTIONS,
        unread: Sequence[AnswerPart] = (),
        can_be_cancelled: bool = False,
    ) -> None:
        super().__init__(plan, made_by.name, options)
        self.grace_s: float = made_by.grace_s
        self.refs: dict[int, Any] = {}
        self.rows_refs: dict[int, Any] = {}
        self.objects: dict[int, Sequence[Any]] = {}
        self._made_by, self._generation = made_by, made_by.generation
        self._unread, self._can_be_cancelled = unread, can_be_cancelled
        self._keys = (*self._keys, *unread)
        self._asked = False

    # --- hearing of the answers ----------------------------------------------------------------------------

    def check(self, waiting: bool) -> None:
        """Refuse what earlier workers answer, or what is out of reach; ask for the answers.

        Raises:
            StaleFutureError: the workers were restarted since.
            WorkerGroupError: this process has left their cluster.
        """
        if not waiting:
            # Who waits while the workers are restarted hears of their end.
            self._made_by.check_generation(self.plan.method, self._generation)
            return
        self._made_by.check_connected(self.plan.method)
        if not self._asked:
            self._asked = True
            for rank, ref in self.refs.items():
                hear(ref, partial(self._heard, rank))
            for part in self._unread:
                hear(part.ref, partial(self.take, part))

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        """As `Call.wait`; answers that come in a moment are not heard of one by one."""
        asked = None if timeout_s is None else Deadline(timeout_s)
        if not (self._asked or self._unread or self._wakes_at_each or self.traced):
            self.check(waiting=False)
            self._made_by.check_connected(self.plan.method)
            for rank, value in soon_here(self.refs, (asked or self.deadline).left).items():
                self.answered(rank, value)
        return self._sleeping(self._all_answers(asked))

    def _heard(self, rank: int, value: Any, error: BaseException | None) -> None:
        if error is None:
            self.answered(rank, value)
        else:
            self.failed(rank, error)

    def read(self, rank: int, value: Any) -> Any:
        """The answer itself, which comes sealed, with what stays remote named by where it lies."""
        if rank not in self.objects:
            return opened_compact(value)
        return with_objects(value, self.objects[rank], self._maker(rank))

    def _maker(self, rank: int) -> Maker:
        return Maker(self.group, self.plan.method, rank, self._generation, self._made_by)

    def done(self) -> bool:
        """Whether every call has ended, or one has failed; also before anybody has asked for an answer."""
        if self._asked or connection() is None:
            return super().done()
        refs = [*self.refs.values(), *(part.ref for part in self._unread)]
        done, waiting = _looked_at(refs)
        return not waiting or any(map(has_failed, done))

    # --- how it ends badly ---------------------------------------------------------------------------------

    def error(self, errors: Mapping[Any, BaseException], silent: Sequence[Any]) -> BaseException:
        """The failure of this call, or of an earlier one whose future it was given."""
        failed = {rank: error for rank, error in errors.items() if isinstance(rank, int)}
        if not failed:
            earlier = [each.maker for each in silent if isinstance(each, AnswerPart)]
            return explained({part.maker: error for part, error in errors.items()}, earlier)
        # Ray prints failures that nobody has read: those of columns are told with that of the answer.
        for ref in (ref for rank in failed for ref in self.objects.get(rank, ())):
            has_failed(ref)
        ranks = [rank for rank in silent if isinstance(rank, int)]
        lacking = [self._failed_inputs(rank) for rank in failed]
        if ranks or any(map(is_gone, failed.values())) or not all(lacking):
            return self._made_by.failure(self.plan.method, failed, ranks, self._generation)
        told = explained({maker: error for each in lacking for maker, error in each.items()})
        return given_to(told, self.plan.method, self.group)

    def late(self, limit_s: float, silent: Sequence[Any]) -> TimeoutError:
        """The error for this call, or an earlier one; async methods, which hold their worker, are stopped."""
        ranks = [rank for rank in silent if isinstance(rank, int)]
        if self._can_be_cancelled and self.deadline.left == 0:
            for rank in ranks:
                ray.cancel(self.refs[rank])
        if ranks and all(waits := [self._waits_for(rank) for rank in ranks]):
            told = late([maker for makers in waits for maker in makers], limit_s)
            return given_to(told, self.plan.method, self.group)
        return super().late(limit_s, ranks) if ranks else late([part.maker for part in silent], limit_s)

    def _inputs(self, rank: int) -> dict[Any, AnswerPart]:
        """The results that a rank got before they were there, of workers known here, by reference."""
        call = next(call for call in self.plan.calls if call.rank == rank)
        parts = (part for value in arguments_of(call) for part in _parts_of(value))
        known = (part for part in parts if part.maker.workers is not None)
        return {part.ref: part for part in known if not transport_of(part.ref)}

    def _failed_inputs(self, rank: int) -> dict[Maker, BaseException]:
        """Who failed to make them, where it is known in which call."""
        known = [part for part in self._inputs(rank).values() if part.maker.method != AN_EARLIER_CALL]
        failures = [(part.maker, failure_of(part.ref)) for part in known]
        return {maker: error for maker, error in failures if error is not None}

    def _waits_for(self, rank: int) -> list[Maker]:
        """Who is yet to make the results without which a rank does not begin."""
        parts = self._inputs(rank)
        return [parts[ref].maker for ref in _looked_at(parts)[1]]

    # --- what a caller gets who does not wait --------------------------------------------------------------

    def futures(self) -> list[Any]:
        """A reference for each fetched rank."""
        return [self.refs[rank] for rank in self.plan.fetched_ranks]

    def reported(self) -> Callable[[], Mapping[int, Stamps]]:
        """What gives the workers' times later, as far as they are there."""
        return partial(_arrived, self.stamps)

    def data_future(self) -> DataProtoFuture[Any]:
        """The future of a batch, which the driver can hand on without fetching any of it."""
        fetched = self.plan.fetched_ranks
        dropped = [self._part(rank, ref) for rank, ref in self.refs.items() if rank not in fetched]
        unread = (*_still_open(self._unread), *dropped)
        return BatchFuture(
            self.plan.collect.collect,
            [self._part(rank, self.refs[rank], unread) for rank in fetched],
            row_counts=[self._part(rank, self.rows_refs[rank]) for rank in fetched]
            if self.rows_refs
            else None,
            row_aligned=_joins_in_order(self.plan),
        )

    def _part(self, rank: int, ref: Any, unread: tuple[AnswerPart, ...] = ()) -> AnswerPart:
        return AnswerPart(ref, self._maker(rank), unread, self.objects.get(rank, ()))


def _looked_at(refs: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Those that are there by now, and those that are not; nothing is fetched."""
    known = list(refs)
    if not known:
        return [], []
    return ray.wait(known, num_returns=len(known), timeout=0, fetch_local=False)


def _arrived(stamps: Mapping[int, Any]) -> dict[int, Stamps]:
    """What has come of these references; a call that failed has no times."""
    if not stamps or not ray.is_initialized():
        return {}
    ready = set(ray.wait(list(stamps.values()), num_returns=len(stamps), timeout=0)[0])
    came = {rank: ref for rank, ref in stamps.items() if ref in ready}
    try:
        return dict(zip(came, ray.get(list(came.values())), strict=True))
    except Exception:  # whatever a worker raised
        return {rank: ray.get(ref) for rank, ref in came.items() if not has_failed(ref)}


def _joins_in_order(plan: CallPlan) -> bool:
    """Whether the result is the answers' rows, one rank after the other."""
    collect = plan.collect
    return isinstance(collect, BatchCollector) and (
        collect.layout is None or not collect.layout.changes_answers
    )


# --- Ranks whose answers nobody reads: their failures show all the same, also to who only hands a future on
#
# In a mesh one rank of several answers for a shard of the rows, and the others are only waited for. A future
# knows them; so does the call that the future is handed to, which succeeds only if they did.


def unread_behind(futures: Iterable[DataProtoFuture[Any]]) -> tuple[AnswerPart, ...]:
    """The answers that nobody reads of the calls that make these futures."""
    parts = (part for future in futures for part in answer_parts(future))
    return tuple(dict.fromkeys(each for part in parts for each in part.unread))


def _parts_of(argument: Any) -> Iterator[AnswerPart]:
    value = argument.value if isinstance(argument, PaddedPart) else argument
    if isinstance(value, ray.ObjectRef):
        maker = maker_of_actor(value.task_id().actor_id().hex())
        if maker is not None:
            yield AnswerPart(value, maker)
    elif isinstance(value, DataProtoFuture):
        yield from answer_parts(value)


def _still_open(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Those that may still fail, or have failed: in a chain of futures the others need not be remembered."""
    running = set(_looked_at([part.ref for part in parts])[1])
    return [part for part in parts if part.ref in running or has_failed(part.ref)]
