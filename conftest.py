"""Time limits that also end a test which waits inside Ray, and bytecode for the processes that tests start.

Ray's waits swallow every exception of a signal handler but KeyboardInterrupt, so the one that pytest-timeout
raises would be lost and the test would wait for ever. Here the alarm raises a KeyboardInterrupt, which is
then the test's failure; where even that is not heeded, all stacks are printed and the run ends.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

_LAST_RESORT_AFTER_S = 60

_has_expired = pytest.StashKey[float]()
_stderr = pytest.StashKey[int]()


def _keep_bytecode_in(folder: Path) -> None:
    """Keep bytecode away from the sources, for this process and its children, where it would not be kept.

    Tests start hundreds of processes that import torch, which takes twice as long when each compiles it.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(folder))


_keep_bytecode_in(Path(__file__).parent / ".pytest_cache" / "bytecode")


class TestTimeout(KeyboardInterrupt):
    """The test has used up its time."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    def expire(*_: object) -> NoReturn:
        item.stash[_has_expired] = settings.timeout
        raise TestTimeout

    signal.signal(signal.SIGALRM, expire)
    _start(item, settings.timeout)
    return True


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()
    return True


def _start(item: pytest.Item, seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)
    last = seconds + _LAST_RESORT_AFTER_S
    faulthandler.dump_traceback_later(last, exit=True, file=item.config.stash[_stderr])


def _failing_when_expired(item: pytest.Item) -> Generator[None, None, None]:
    try:
        return (yield)
    except KeyboardInterrupt:
        seconds = item.stash.get(_has_expired, None)
        if seconds is None:
            raise
        # Tearing down gets the same time again.
        del item.stash[_has_expired]
        _start(item, seconds)
        pytest.fail(f"Timeout (>{seconds}s)")


pytest_runtest_setup = pytest.hookimpl(wrapper=True, tryfirst=True)(_failing_when_expired)
pytest_runtest_call = pytest.hookimpl(wrapper=True, tryfirst=True)(_failing_when_expired)
pytest_runtest_teardown = pytest.hookimpl(wrapper=True, tryfirst=True)(_failing_when_expired)
