"""Findings about compiled programs: where nodes run, how near outputs are, what a program costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from ci.onnx.crosscheck import Key, Lane, key_of_program, markdown
from ci.onnx.measure import Result
from ci.onnx.suite import SUITES, Program
from ci.suites.accuracy import missed
from ci.suites.baseline import Baseline, Tolerances, beside, growth
from ci.suites.findings import placeholder, shown_thresholds, verdict
from provisioning.base.findings import Artifact, Finding, Metric, Severity, StageRun

DDR = ("read", "written", "spilled", "filled")


def findings_of(program: Program, result: Result) -> Iterator[Finding]:
    """What is wrong whatever was agreed on before."""
    again = SUITES.repeat(program)

    def wrong(rule: str, message: str, remedy: str = "") -> Finding:
        said = f"{remedy}; then {again}" if remedy else again
        return Finding(rule, Severity.ERROR, program.name, message, said)

    if result.rule:
        yield wrong(result.rule, result.message, result.remedy)
        return
    forms = {form: result.facts[form] for form in ("beside", "embedded")}
    for form, facts in forms.items():
        if not facts["reload_equal"]:
            yield wrong(
                "onnx-reload",
                f"the reloaded context ({form}) gives other outputs than the session that made it",
            )
    nodes = [node for facts in forms.values() for node in facts["audit"]["unsupported"]]
    # Of both forms it is the same node.
    for said in dict.fromkeys(f"{node['node']} ({node['operator']}): {node['reason']}" for node in nodes):
        yield wrong("onnx-cpu-node", said)
    if not result.facts["forms_equal"]:
        yield wrong("onnx-forms", "the embedded context gives other outputs than the one beside its .onnx")
    yield from placeholder(program, f"{again} --update-thresholds")
    if misses := misses_of(program, result):
        yield wrong("onnx-accuracy", "; ".join(misses), "raise the precision or calibrate with more samples")
    if top := result.facts.get("slowest"):
        yield Finding(
            "onnx-profile",
            Severity.NOTE,
            program.name,
            f"slowest operators: {', '.join(top)}",
            "cycles are the emulator's model of the chip; measure on a device before you optimize",
        )


def misses_of(program: Program, result: Result) -> list[str]:
    figures = result.facts["beside"]["near"]
    return [str(each) for each in missed(program.run.effective_thresholds, figures)]


def cost(program: Program, result: Result, baseline: Baseline, tolerances: Tolerances) -> Iterator[Finding]:
    """What costs more than was agreed on; nothing of a program that was not made."""
    if not result.facts:
        return
    again = f"{SUITES.repeat(program)} --update-baseline"
    if result.facts["beside"]["ddr"] is None:
        yield Finding(
            "cost-unknown",
            Severity.ERROR,
            program.name,
            "the compiler gave no summary of its traffic with DDR",
            f"read what it prints: {SUITES.repeat(program)} --no-cache --keep",
        )
    build_id = result.facts["beside"]["record"]["build_id"]
    yield from growth(program.name, costs_of(result), build_id, baseline, tolerances, again)


def costs_of(result: Result) -> dict[str, float]:
    """Of the context beside its .onnx, by the names of the baseline."""
    facts = result.facts["beside"]
    ddr = facts["ddr"] or {}
    return {
        **{f"ddr_{name}": ddr[name] for name in DDR if name in ddr},
        "context_bytes": facts["bytes"],
        "cpu_seconds": result.facts["cpu_seconds"],
    }


def lane_of(result: Result) -> Lane:
    facts = result.facts["beside"]
    ddr = facts["ddr"] or {}
    return Lane(
        cosine=facts["near"]["cosine"],
        sqnr_db=facts["near"]["sqnr_db"],
        size=facts["bytes"],
        ddr_read=ddr.get("read"),
        ddr_written=ddr.get("written"),
        build_id=facts["record"]["build_id"],
    )


Pair = tuple[str, Lane, Lane]


def pairs_of(
    programs: Sequence[Program], results: Mapping[str, Result], others: Mapping[Key, Lane]
) -> list[Pair]:
    """Programs that ExecuTorch's lane has too, with both lanes' figures; special runs are no match."""
    return [
        (program.name, lane_of(results[program.name]), other)
        for program in programs
        if program.run.name == program.run.kind
        and results[program.name].facts
        and (other := others.get(key_of_program(program)))
    ]


def cross_check(stage: StageRun, pairs: Sequence[Pair], folder: Path) -> None:
    """A table in a file, and a note where it has not what it could have."""
    stage.metrics["cross_checked"] = len(pairs)
    again = "nox -s provision test_lowering test_emulator, then this again"
    if not pairs:
        said = "no model here is in ExecuTorch's lane at the same precision for the same chip"
        stage.add("onnx-cross-check", Severity.NOTE, stage.stage, f"{said}: nothing was compared", again)
        return
    if agreed := sum(other.agreed for _, _, other in pairs):
        said = f"{agreed} of {len(pairs)} programs stand beside ExecuTorch's baseline, not beside a run of it"
        stage.add("onnx-cross-check", Severity.NOTE, stage.stage, said, again)
    path = folder / "cross_check.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(pairs), encoding="utf-8")
    stage.artifacts.append(Artifact.of("cross-check", path))


def row(
    program: Program, result: Result, findings: Sequence[Finding], baseline: Baseline, other: Lane | None
) -> dict[str, Metric]:
    """What the page shows of a program."""
    shown: dict[str, Metric] = {
        "case": program.case_name,
        "run": program.run.name,
        "precision": program.run.precision,
        "soc": program.soc,
        "tags": list(program.run.tags),
        "verdict": verdict(findings),
        "command": SUITES.repeat(program),
        "thresholds": shown_thresholds(program),
    }
    if not result.facts:
        return shown
    facts = result.facts["beside"]
    lanes: dict[str, Metric] = {"onnx": asdict(lane_of(result))}
    if other is not None:
        lanes["executorch"] = asdict(other)
    return shown | {
        "cached": result.cached,
        "figures": dict(facts["near"]),
        "nodes": facts["audit"]["nodes"],
        "graphs": facts["audit"]["graphs"],
        "costs": dict(costs_of(result)),
        **beside(costs_of(result), facts["record"]["build_id"], baseline.of(program.name)),
        "slowest": list(result.facts.get("slowest", [])),
        "lanes": lanes,
    }
