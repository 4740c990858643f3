"""Reports with two programs, one good, one with an operator on the CPU; and some with all else on a page."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from ci.lanes.registry import lanes_by_stage
from ci.report.collect import LayersPart, PlacedOperators, ReportRow, TextFigure
from ci.suite.accepted import COSTS
from ci.suite.figures import FIGURES
from provisioning.base.findings import Artifact, Finding, Metric, Outcome, Report, Severity
from provisioning.base.foreign import map_values
from provisioning.base.rendering import LOG

GOOD, BAD = "resnet/8a8w/SM8650", "gelu/fp16/SM8750"


def row(name: str, verdict: str, stage: str) -> dict[str, Metric]:
    case, run, soc = name.split("/")
    identity: dict[str, Metric] = {"case": case, "run": run, "scheme": run, "soc": soc, "tags": ["pr"]}
    return {**identity, "verdict": verdict, "command": f"nox -s {stage} -- -k {name}"}


def _lowered(name: str, verdict: str, on_cpu: int) -> dict[str, Metric]:
    operators: dict[str, Metric] = {**dict.fromkeys("abcde", 2), "aten.convolution.default": 40}
    operators["aten.add.Tensor"] = 3
    costs: dict[str, Metric] = {"ddr_written": 2048, "pte_bytes": 58712}
    htp: dict[str, Metric] = {"where": "htp 0", "count": 52, "operators": operators}
    cpu: dict[str, Metric] = {"where": "cpu", "count": 1, "operators": {"aten.erf.default": 1}}
    tail: dict[str, Metric] = {**htp, "where": "htp 1"}
    return {
        **row(name, verdict, "test_lowering"),
        "cached": False,
        "seconds": 3.5,
        "delegates": 1 + on_cpu,
        "cpu_operators": on_cpu,
        "partition": [htp, cpu, tail] if on_cpu else [htp],
        "costs": {**costs, "ddr_read": 2_854_912, "ddr_spilled": 0, "cpu_seconds": 3.1},
        "baseline": {**costs, "ddr_read": 2_000_000, "cpu_seconds": 3.0},
    }


def _ran(name: str) -> dict[str, Metric]:
    return {
        **row(name, "pass", "test_emulator"),
        "figures": {"sqnr_db": 34.5, "cosine": 0.9998, "reference_sqnr_db": 60.0, "max_abs": 0.01},
        "thresholds": {"sqnr_db": 33.5, "cosine": 0.9997, "max_abs": 0.02},
        "baseline": {"sqnr_db": 35.0},
        "cached": True,
    }


ERF = Finding(
    "lowering-cpu-operator",
    Severity.ERROR,
    BAD,
    "aten.erf.default at net.py:12 `torch.erf(x)` stays on the CPU: No node visitor, unsupported",
    "for GELU call torch.nn.functional.gelu",
)


def reports() -> list[Report]:
    lowered: dict[str, Metric] = {GOOD: _lowered(GOOD, "pass", 0), BAD: _lowered(BAD, "fail", 1)}
    ran: dict[str, Metric] = {GOOD: _ran(GOOD), BAD: _ran(BAD)}
    return [
        _of_programs("test_lowering", lowered, ERF),
        _of_programs("test_emulator", ran),
    ]


SPEAKER = "tiny/genie-16a8w/SM8650"


def _reading(divergence: float) -> dict[str, Metric]:
    names = ("top1", "perplexity_ratio", "divergence", "divergence_99")
    return {name: {"value": divergence, "error": divergence / 10} for name in names}


def speaker() -> Report:
    """A language model of whose two parts one is wrong."""
    row_of_model: dict[str, Metric] = {
        "verdict": "fail",
        "through": "genie",
        "precision": "16a8w",
        "soc": "SM8650",
        "bytes": 1_260_000,
        "figures": {"decode_htp": _reading(0.0012)},
        "parts": [
            {"name": "prefill_0, layers 0 to 1", "output": "hidden_2", "db": 40.5, "least_db": 30.0},
            {
                "name": "prefill_1, layers 2 to 3",
                "output": "logits",
                "db": -2.3,
                "least_db": 30.0,
                "cpu_db": 3.0,
            },
        ],
    }
    lost = Finding("llm-accuracy", Severity.ERROR, SPEAKER, "a layer is wrong", "raise the precision")
    return _of_programs("test_llm", {SPEAKER: row_of_model}, lost)


ONNX: dict[str, Metric] = {
    "net/u8u8/SM8650": {
        "case": "net",
        "run": "u8u8",
        "soc": "SM8650",
        "verdict": "pass",
        "precision": "u8u8",
        "figures": {"sqnr_db": 34.0, "cosine": 0.99},
        "costs": {"context_bytes": 4096, "ddr_read": 2048},
        "baseline": {"context_bytes": 4096},
        "baseline_build_id": "2.36.0",
    },
}


def onnx() -> Report:
    return _of_programs("test_onnx", ONNX)


COMMANDS: dict[str, Metric] = {
    "models": {
        "./net.py:make 8a8w SM8650": {
            "verdict": "pass",
            "said": ["operator  8a8w", "conv2d    1 htp"],
            "command": "qnn-ci audit net.py:make",
            "when": "2026-11-20T08:00:00+00:00",
        },
    },
}

NAMES = [part.name for kind in (ReportRow, PlacedOperators, LayersPart, TextFigure) for part in fields(kind)]
OURS = {
    *NAMES,
    *FIGURES,
    *COSTS,
    *lanes_by_stage(),
    *Severity,
    *Outcome,
    "audit",
    "programs",
    "models",
    "pass",
    "fail",
    "cpu",
    LOG,
}


def with_text_everywhere(text: str) -> list[Report]:
    """Reports that have the text in each name and message that is not ours."""
    found = replace(ERF, subject="elsewhere")
    risk = replace(found, severity=Severity.WARNING)
    artifacts = [Artifact(kind, "build/a.pte", "ab", 1234) for kind in (LOG, "pte")]
    whole = [
        report_of("audit", metrics=COMMANDS),
        *reports(),
        onnx(),
        speaker(),
        report_of("other", found, risk, outcome=Outcome.FAIL, metrics={"figure": "1"}),
    ]

    def put(value: object) -> object:
        return value + text if isinstance(value, str) and value not in OURS else value

    return [map_values(replace(report, artifacts=tuple(artifacts)), put) for report in whole]


def report_of(stage: str, /, *findings: Finding, outcome: Outcome = Outcome.PASS, **changed: Any) -> Report:
    begun, command = "2026-11-20T08:00:00+00:00", f"nox -s {stage}"
    report = Report(stage, "wheels", "x86_64-linux", outcome, begun, 1.25, findings, (), {}, command)
    return replace(report, **changed)


def _of_programs(stage: str, programs: dict[str, Metric], *findings: Finding) -> Report:
    outcome = Outcome.FAIL if findings else Outcome.PASS
    metrics = {"selected": len(programs), "programs": programs}
    return report_of(stage, *findings, outcome=outcome, seconds=12.5, metrics=metrics)
