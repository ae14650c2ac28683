"""Every example in a public docstring runs and prints what it says."""

import doctest
import importlib
import inspect
import pkgutil

import pytest

PACKAGES = ("verl_protocol", "verl_dispatch", "verl_ray", "verl_examples")
NOT_IMPORTED = ("__main__", "conformance", "mypy_plugin")


def module_names() -> list[str]:
    names = []
    for package in PACKAGES:
        root = importlib.import_module(package)
        names.append(package)
        for info in pkgutil.walk_packages(root.__path__, f"{package}."):
            if not any(part in NOT_IMPORTED for part in info.name.split(".")):
                names.append(info.name)
    return names


@pytest.mark.parametrize("name", module_names())
def test_docstring_examples_run(name: str) -> None:
    module = importlib.import_module(name)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.testmod(module, optionflags=flags).failed == 0


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_is_documented(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__doc__
    names = list(module.__all__)
    assert len(names) == len(set(names))
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__, f"{package}.{name} has no docstring"
