"""What is no good argument is told before anything is sent: which, what was given, what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verl_dispatch.conformance.backend import GroupCache
from verl_dispatch.conformance.batches import batch
from verl_dispatch.conformance.workers import ModesWorker
from verl_dispatch.modes import Execute


class TestArguments:
    """Bad arguments, on a group of 4."""

    @pytest.fixture
    def group(self, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, 4)

    @pytest.mark.parametrize("given", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5], (1, 2)])
    @pytest.mark.parametrize("method", ["all_to_all", "dp_compute", "one_to_one"])
    def test_a_list_of_another_length_is_refused(self, group: Any, method: str, given: Any) -> None:
        with pytest.raises(ValueError, match=rf"4 workers .*got {len(given)}"):
            group.bind(method)(given)

    @pytest.mark.parametrize("given", [5, "abcd", {"a": 1}, None, torch.arange(4)])
    @pytest.mark.parametrize("method", ["all_to_all", "dp_compute"])
    def test_what_has_no_entries_is_refused(self, group: Any, method: str, given: Any) -> None:
        with pytest.raises(TypeError, match=r"(?s)argument 0.*Broadcast"):
            group.bind(method)(given)

    @pytest.mark.parametrize("given", [[1, 2, 3, 4], {"i": torch.arange(4)}, torch.arange(4), "abcd", None])
    @pytest.mark.parametrize("method", ["rows", "metric", "over_each"])
    def test_what_is_no_batch_is_never_copied_to_all(self, group: Any, method: str, given: Any) -> None:
        with pytest.raises(TypeError, match=r"argument 0 .*cannot be split"):
            group.bind(method)(given)

    def test_the_argument_is_named(self, group: Any) -> None:
        with pytest.raises(TypeError, match="'more'"):
            group.rows(batch(4), more={"lr": 1e-6})
        with pytest.raises(ValueError, match="'y'"):
            group.all_to_all([1, 2, 3, 4], y=[1])

    def test_rows_that_do_not_divide_are_refused_with_the_ways_out(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"10 rows .*4 workers.*pad.*uneven"):
            group.rows(batch(10))

    def test_ranks_of_all_arguments_must_agree(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"(?s)0.*2"):
            group.one_to_one({0: 1}, {2: 1})
        with pytest.raises(ValueError, match="4"):
            group.one_to_one({4: 1})

    def test_batches_of_a_padded_call_must_have_equal_rows(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"(?s)5 rows.*8 rows"):
            group.rows.options(auto_padding=True)(batch(5), batch(8))

    @pytest.mark.parametrize("args", [(), (1, 2, 3)])
    def test_the_workers_signature_holds(self, group: Any, args: Any) -> None:
        with pytest.raises(TypeError, match="one_to_all"):
            group.one_to_all(*args)

    def test_unknown_names_list_the_known_ones(self, group: Any) -> None:
        with pytest.raises(AttributeError, match=r"one_to_al.*one_to_all"):
            _ = group.one_to_al

    @pytest.mark.parametrize("options", [{"timeout": 3}, {"uneven": "yes"}, {"timeout_s": 0}])
    def test_options_are_checked(self, group: Any, options: dict[str, Any]) -> None:
        with pytest.raises((ValueError, TypeError), match=next(iter(options))):
            group.rows.options(**options)

    def test_execute_modes_that_make_no_sense_are_refused(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"RANK_ZERO .*DP_COMPUTE"):
            group.rows.options(execute_mode=Execute.RANK_ZERO)

    def test_custom_modes_must_give_one_entry_per_worker(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"(?s)5.*4|4.*5"):
            group.custom_wrong(1)

    def test_answers_that_are_no_batch_point_to_the_mode_for_values(self, group: Any) -> None:
        with pytest.raises(TypeError, match=r"rank 0 .*DP_COMPUTE_METRIC"):
            group.no_batch(batch(4))
