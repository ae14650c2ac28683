"""Has pytest explain failing asserts of the suite; imported before the modules that it names."""

import pytest

_MODULES = [
    "arguments",
    "binding",
    "calls",
    "colocation",
    "failures",
    "futures",
    "isolation",
    "meshes",
    "modes",
    "order",
    "rows",
]

pytest.register_assert_rewrite(*(f"{__package__}.{name}" for name in _MODULES))
