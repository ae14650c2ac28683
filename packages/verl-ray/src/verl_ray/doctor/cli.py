"""`python -m verl_ray doctor`: what will bite on this machine and cluster, and what to do about it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from verl_ray.doctor.checks import Finding, check
from verl_ray.doctor.facts import DoctorFacts, gather_facts, gib
from verl_ray.pools.cluster import NodeFacts

_BYTES = ("memory", "object_store_memory")


def main(arguments: Sequence[str] | None = None, environ: Mapping[str, str] | None = None) -> int:
    """Run the command line; returns 1 where something will bite, else 0."""
    parser = argparse.ArgumentParser(prog="python -m verl_ray", description="Worker groups on Ray.")
    commands = parser.add_subparsers(dest="command", required=True)
    doctor = commands.add_parser("doctor", help="look for what will bite; exit code 1 where something will")
    doctor.add_argument("--json", action="store_true", help="one JSON object instead of text")
    doctor.add_argument("--address", help="the cluster to look at; by default the running one")
    options = parser.parse_args(arguments)
    facts = gather_facts(os.environ if environ is None else environ, options.address)
    findings = check(facts)
    bites = any(finding.level == "error" for finding in findings)
    if options.json:
        told = {"ok": not bites, "findings": [asdict(finding) for finding in findings], **asdict(facts)}
        report = json.dumps(told, indent=2, default=str)
    else:
        report = report_as_text(facts, findings)
    sys.stdout.write(report + "\n")
    return int(bites)


def report_as_text(facts: DoctorFacts, findings: Sequence[Finding]) -> str:
    """The report for people."""
    versions = [f"{name} {version}" for name, version in facts.versions.items()]
    lines = [", ".join([f"python {facts.python}", *versions]), *_cluster_lines(facts)]
    for disk in (facts.shared_memory, facts.session_disk):
        lines += [f"{disk.path}: {gib(disk.free)} of {gib(disk.total)} free"] if disk else []
    lines += [f"{name}={value!r}" for name, value in sorted(facts.environ.items())]
    for finding in findings:
        lines += ["", f"{finding.level}: {finding.what}", f"  {finding.remedy}"]
    return "\n".join(lines if findings else [*lines, "", "nothing found that would bite"])


def _cluster_lines(facts: DoctorFacts) -> list[str]:
    if not facts.cluster.nodes:
        held = ", ".join(f"{name} {_amount(name, amount)}" for name, amount in facts.machine.items())
        return [f"no Ray cluster is running; a pool would start one on this machine ({held})"]
    return [f"node {node.title}: {_resources(node)}" for node in facts.cluster.nodes]


def _resources(node: NodeFacts) -> str:
    names = sorted(name for name in node.total if not name.startswith("node:") and "_group_" not in name)
    return ", ".join(
        f"{name} {_amount(name, node.free.get(name, 0))} of {_amount(name, node.total[name])}"
        for name in names
    )


def _amount(name: str, amount: float) -> str:
    return gib(amount) if name in _BYTES else f"{amount:g}"
