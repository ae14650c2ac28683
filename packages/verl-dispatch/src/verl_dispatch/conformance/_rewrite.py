"""Has pytest explain failing asserts of the suite; imported before the modules that it names."""

try:
    import pytest
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "verl_dispatch.conformance is a pytest suite: pip install verl-dispatch[conformance]", name="pytest"
    ) from missing

_MODULES = ["backend", "binding", "calls", "failures", "modes", "seen", "values"]

pytest.register_assert_rewrite(*(f"{__package__}.{name}" for name in _MODULES))
