"""Dynamic enums: members come and go at run time, and travel by name."""

import copy
import pickle
from collections.abc import Iterator

import pytest
from verl_dispatch import Dispatch, DynamicEnum, Execute, init_predefined_dispatch_mode

PREDEFINED = [
    "RANK_ZERO",
    "ONE_TO_ALL",
    "ALL_TO_ALL",
    "DP_COMPUTE",
    "DP_COMPUTE_PROTO",
    "DP_COMPUTE_PROTO_WITH_FUNC",
    "DP_COMPUTE_METRIC",
    "ONE_TO_ONE",
    "DIRECT_ROLLOUT_METHOD",
]


class Colour(DynamicEnum):
    """An enum of these tests."""


@pytest.fixture
def red() -> Iterator[Colour]:
    yield Colour.register("red")
    if "RED" in Colour:
        Colour.remove("RED")


def test_predefined_members_are_there_in_order() -> None:
    assert Dispatch.names() == PREDEFINED
    assert Execute.names() == ["ALL", "RANK_ZERO"]
    assert [mode.value for mode in Dispatch] == list(range(len(PREDEFINED)))


def test_predefined_members_can_be_asked_for_again() -> None:
    before = Dispatch.values()
    init_predefined_dispatch_mode()
    assert Dispatch.values() == before


def test_a_registered_member_is_found_by_every_door(red: Colour) -> None:
    assert red.name == "RED"
    assert Colour["red"] is Colour.from_name("Red") is Colour.RED is red  # type: ignore[attr-defined]
    assert list(Colour) == Colour.values() == [red]
    assert len(Colour) == 1
    assert red in Colour
    assert "red" in Colour
    assert Dispatch.ONE_TO_ALL not in Colour
    assert repr(red) == "Colour.RED"


def test_a_removed_member_is_gone_from_every_door(red: Colour) -> None:
    assert Colour.remove("red") is red
    assert red not in Colour
    assert Colour.from_name("red") is None
    assert not hasattr(Colour, "RED")
    with pytest.raises(KeyError, match="'red'; known members: none"):
        Colour["red"]


def test_values_are_never_used_twice(red: Colour) -> None:
    Colour.remove("red")
    green = Colour.register("green")
    assert green.value > red.value
    Colour.remove("green")


@pytest.mark.parametrize("name", ["red", "RED", "no name", "", "_hidden", 3])
def test_a_name_that_is_taken_or_no_identifier_is_refused(red: Colour, name: str) -> None:
    with pytest.raises(ValueError, match=r"already has a member 'RED'|needs an identifier"):
        Colour.register(name)


def test_an_unknown_member_names_the_known_ones() -> None:
    with pytest.raises(KeyError, match="Execute has no member 'NONE'; known members: ALL, RANK_ZERO"):
        Execute["NONE"]


def test_a_misspelt_member_is_told_what_was_meant() -> None:
    misspelt = "ONE_TO_AL"
    with pytest.raises(AttributeError, match=r"'ONE_TO_AL'; maybe 'ONE_TO_ALL'\?; known members: ALL_TO"):
        getattr(Dispatch, misspelt)
    assert not hasattr(Dispatch, "NOPE")
    assert not hasattr(Dispatch, "_nope")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_member_survives_pickle_and_copies_by_identity(protocol: int) -> None:
    assert pickle.loads(pickle.dumps(Dispatch.ONE_TO_ALL, protocol)) is Dispatch.ONE_TO_ALL
    assert copy.deepcopy(Dispatch.ONE_TO_ALL) is copy.copy(Dispatch.ONE_TO_ALL) is Dispatch.ONE_TO_ALL
