# Ray must not start its workers with `uv run`: the environment is already the right one.
export RAY_ENABLE_UV_RUN_RUNTIME_ENV := "0"

# Arguments reach the commands as they were given, as "$@": `just faults --only "a worker hangs"` names one fault.
set positional-arguments

# List the recipes.
default:
    @just --list

# Install everything into .venv.
setup:
    uv sync

# Train the tiny model with PPO and watch it learn.
demo *ARGS:
    uv run verl-ppo "$@"

# The whole test suite, or the part named.
test *ARGS:
    uv run pytest "$@"

# One package's suite with only that package's own dependencies: `just isolated verl-protocol`.
isolated PACKAGE *ARGS:
    shift; uv run --isolated --package {{ PACKAGE }} --group test "$@" pytest {{ if PACKAGE == "verl-examples" { "examples" } else { "packages" / PACKAGE } }}

# One package's suite with the oldest Python, torch, tensordict, Ray that its bounds admit: `just oldest verl-ray -k start`.
oldest PACKAGE *ARGS:
    #!/usr/bin/env bash
    set -euo pipefail
    folder={{ if PACKAGE == "verl-examples" { "examples" } else { "packages" / PACKAGE } }}
    environment=$(mktemp -d)
    trap 'rm -rf "$environment"' EXIT
    uv venv --quiet --no-project --clear --python 3.11 "$environment"
    uv pip install --quiet --python "$environment" --resolution lowest-direct \
        --editable "$folder" --group "$folder/pyproject.toml:test"
    uv pip list --quiet --python "$environment" | grep -E "^(numpy|ray|tensordict|torch) "
    shift
    "$environment/bin/python" -P -m pytest "$folder" "$@"

# Each package's suite beside the oldest releases of its siblings that its bounds admit.
oldest-siblings:
    uv run --isolated --only-group dev python tests/tools/oldest_siblings.py

# Style and likely mistakes.
lint:
    uv run ruff check
    uv run ruff format --check

# mypy strict everywhere; pyright over the sources, and how completely they are typed.
types:
    uv run python tests/tools/typecheck.py

# Who may import whom.
layers:
    uv run lint-imports

# What this machine or cluster offers, and what will bite.
doctor *ARGS:
    uv run python -m verl_ray doctor "$@"

# Everything that must be green before a change lands.
check: lint types layers docs test

# Build one wheel per package into dist/.
wheels:
    rm -rf dist
    uv build --quiet --all-packages --wheel --out-dir dist
    ls dist

# Benchmarks of one layer (protocol, dispatch, ray) or of all: tables of medians and ratios.
bench LAYER="all" *ARGS:
    uv run python tests/tools/bench.py "$@"

# Each fault done to a real group: what users see of it, as a table (docs/reliability.md).
faults *ARGS:
    uv run python packages/verl-ray/benchmarks/faults.py "$@"

# Thousands of calls, groups, futures and remote batches: is memory flat? Up to 15 minutes.
soak *ARGS:
    uv run python packages/verl-ray/benchmarks/soak.py "$@"

# The documentation as a site, docs/_build/index.html; a warning is an error.
docs:
    uv run --group docs python -m sphinx --fail-on-warning --keep-going --quiet --jobs auto docs docs/_build

# The small programs of examples/tour, all or those named: `just examples mesh futures`. A breakpoint runs on.
examples *ARGS:
    PYTHONBREAKPOINT=0 uv run python examples/tour "$@"

# What is due for a release and whether it is ready, built and tried in fresh environments; `--only-plan`, `--full`.
release-plan *ARGS:
    uv run python tests/tools/release_plan.py "$@"
