"""The rules of dispatch as a pytest suite that every backend passes.

A backend describes itself once, and its test module takes over all tests and the fixtures they need:

    import pytest
    from verl_dispatch.conformance import *  # noqa: F403
    from verl_dispatch.conformance import Backend

    class MyBackend(Backend): ...

    @pytest.fixture(scope="session")
    def backend():
        yield MyBackend()

Needs pytest (`pip install verl-dispatch[conformance]`); nothing else imports this package. Groups that tests
only call are made once and shared; tests that break a group get one of their own.
"""

from verl_dispatch.conformance import _rewrite as _rewrite
from verl_dispatch.conformance.backend import Backend, GroupCache, groups
from verl_dispatch.conformance.binding import TestBinding, TestColocation
from verl_dispatch.conformance.calls import TestCalls, TestOrder, TestPrograms
from verl_dispatch.conformance.failures import TestFailures, TestLifecycle
from verl_dispatch.conformance.modes import TestArguments, TestMeshes, TestModes, TestRows
from verl_dispatch.conformance.seen import TestNotebooks, TestRecords, TestTraces
from verl_dispatch.conformance.values import TestDeclaredColumns, TestFutures, TestIsolation, TestRemote

__all__ = [
    "Backend",
    "GroupCache",
    "TestArguments",
    "TestBinding",
    "TestCalls",
    "TestColocation",
    "TestDeclaredColumns",
    "TestFailures",
    "TestFutures",
    "TestIsolation",
    "TestLifecycle",
    "TestMeshes",
    "TestModes",
    "TestNotebooks",
    "TestOrder",
    "TestPrograms",
    "TestRecords",
    "TestRemote",
    "TestRows",
    "TestTraces",
    "groups",
]
