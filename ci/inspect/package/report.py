"""`inspect` of packages: what is in each, and what of that does not fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from ci.artifacts.against_sdk import parts_of
from ci.inspect.package import checks, genie
from ci.inspect.package.contents import Package, PackagedModel, opened
from provisioning.base import answer
from provisioning.base.findings import Finding, Metric, Outcome, outcome_of
from provisioning.base.foreign import in_line
from provisioning.base.settings import Selection
from provisioning.base.stage_run import StageRun
from provisioning.manifest import Soc, soc_named


def run(paths: Sequence[Path], selection: Selection) -> int:
    """One report for all of them."""
    stage = StageRun.as_typed("inspect", selection.profile, "aarch64-android")
    socs = {name: soc_named(name) for name in selection.named_socs}
    packages: dict[str, Metric] = {}
    with stage.reported(selection.reports, "inspect", str(paths[0])):
        for path in paths:
            facts, findings = inspected(path, socs)
            stage.findings += findings
            packages[str(path)] = facts
            sys.stdout.writelines(f"{in_line(line)}\n" for line in _lines(path, facts))
            sys.stdout.flush()
    stage.metrics["packages"] = packages
    answer.add(kind="package", good=outcome_of(stage.findings) is Outcome.PASS, packages=packages)
    return stage.close(selection.reports)


def inspected(path: Path, socs: Mapping[str, Soc]) -> tuple[dict[str, Metric], list[Finding]]:
    with opened(path) as package:
        findings = [*checks.check(package, socs)]
        for config in package.dialogs:
            findings += genie.check(config, package.root)
        return _facts(package), findings


def _facts(package: Package) -> dict[str, Metric]:
    facts: dict[str, Metric] = {"kind": package.kind}
    if manifest := package.manifest:
        facts["Android"] = f"from API {manifest.min_sdk} on, written for {manifest.target_sdk}"
        facts["libraries unpacked at installation"] = manifest.extracted
        facts["asks the phone for"] = [*manifest.native_libraries]
    facts["QNN"] = [*sorted({build for library in package.libraries for build in library.builds})]
    for half in ("Stub", "Skel"):
        arches = {arch for library in package.libraries if (arch := library.arch_of(half))}
        facts[f"{half.lower()}s"] = [f"v{arch}" for arch in sorted(arches)]
    facts["libraries"] = [library.place for library in package.libraries]
    facts["models"] = [_model(model) for model in package.models]
    return facts


def _model(model: PackagedModel) -> str:
    parts = [*parts_of(model.contents)]
    builds = sorted({build for part in parts for build in part.context.build_ids})
    chips = sorted({chip for part in parts for chip in part.context.socs})
    arches = sorted({arch for part in parts for arch in part.arches})
    sizes = sorted({size >> 20 for part in parts for size in part.context.vtcm_bytes})
    made_for = [*chips, *(f"v{arch}" for arch in arches), *(f"{size} MB of VTCM" for size in sizes)]
    by = f"QNN {', '.join(builds) or 'not named'}"
    return f"{model.place}: {model.kind}, {by}, for {', '.join(made_for) or 'no chip named'}"


def _lines(path: Path, facts: Mapping[str, Metric]) -> list[str]:
    lines = [f"{path}: {facts['kind']}"]
    for name, value in facts.items():
        if name == "kind":
            continue
        if name in ("libraries", "models") and isinstance(value, list) and value:
            lines += [f"  {name}:", *(f"    {entry}" for entry in value)]
            continue
        shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        lines.append(f"  {name}: {shown or 'none'}")
    return lines
