"""Which release of a sibling a package must still work with."""

import pytest
from affected import packages
from oldest_siblings import oldest_release, siblings
from packaging.requirements import Requirement

TAGS = ["verl-protocol-v0.2.0", "verl-protocol-v0.10.0", "verl-protocol-v0.3.1", "verl-ray-v0.4.0", "old"]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (">=0.1,<0.2", None),
        (">=0.1,<1", "verl-protocol-v0.2.0"),
        (">=0.3,<0.11", "verl-protocol-v0.3.1"),
        (">=0.4,<0.11", "verl-protocol-v0.10.0"),
    ],
)
def test_it_is_the_lowest_version_within_the_bounds(bounds: str, expected: str | None) -> None:
    assert oldest_release(Requirement(f"verl-protocol{bounds}"), TAGS) == expected


def test_siblings_are_what_a_package_names_of_the_workspace() -> None:
    named = {package.name: {sibling.name for sibling in siblings(package)} for package in packages()}
    assert named["verl-protocol"] == set()
    assert named["verl-dispatch"] == {"verl-protocol"}
