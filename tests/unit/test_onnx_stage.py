"""The suite, the judgement of what workers say, and the comparison with ExecuTorch's lane."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ci.lowering.suite import SHIPPED as LOWERING
from ci.lowering.suite import load_suite
from ci.onnx.crosscheck import executorch_lane, key_of_program, markdown
from ci.onnx.precision import PRECISIONS, precision_named
from ci.onnx.profile import slowest
from ci.onnx.stage import TOOLKIT, Plan, Result, cross_check, findings_of, judge, lane_of
from ci.onnx.suite import SHIPPED, Program, choose, programs_of
from provisioning.errors import ManifestError, UsageError
from provisioning.findings import Outcome, Report, Severity, StageRun
from provisioning.settings import ROOT, Selection

SUITE = """\
schema = 1
[case.net]
factory = "ci.models.vision:resnet"
arguments = { width = 16 }
[[case.net.run]]
precision = "u16u8"
socs = ["SM8650", "SM8750"]
tags = ["pr"]
thresholds = { cosine = 0.99 }
"""


def suite(folder: Path, text: str = SUITE) -> Path:
    path = folder / "onnx.toml"
    path.write_text(text)
    return path


def facts(**changes: Any) -> dict[str, Any]:
    one = {
        "near": {"cosine": 0.999, "sqnr_db": 30.0, "max_abs": 0.1, "max_rel": 0.01, "top1": 1.0},
        "reload_equal": True,
        "audit": {"nodes": 9, "unsupported": [], "graphs": 1},
        "ddr": {"read": 100, "written": 10, "spilled": 0, "filled": 0},
        "bytes": 1234,
        "record": {"build_id": "v2.51.0.260929181845"},
    }
    return {"beside": {**one, **changes}, "embedded": one}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return programs_of(suite(tmp_path))[0]


def rules(program: Program, result: Result) -> list[tuple[str, Severity]]:
    return [(finding.rule, finding.severity) for finding in findings_of(program, result)]


class TestSuite:
    def test_a_program_is_a_run_for_a_chip(self, tmp_path: Path) -> None:
        assert [p.name for p in programs_of(suite(tmp_path))] == ["net/u16u8/SM8650", "net/u16u8/SM8750"]

    def test_chips_asked_for_replace_those_of_the_suite(self, tmp_path: Path) -> None:
        assert [p.soc for p in programs_of(suite(tmp_path), ["SA8295"])] == ["SA8295"]

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            ('"u16u8"', '"u16u9"', "did you mean u16u8"),
            ('"u16u8"', '"s16s16"', "use u16s16"),
            ('"SM8750"', '"SM9999"', "SM9999"),
            ("{ cosine = 0.99 }", "{}", "nothing would be compared"),
            ('factory = "ci.models.vision:resnet"\n', "", "factory or model"),
            ('tags = ["pr"]', 'tags = ["pr"]\noptions = { vtcm = 4 }', "did you mean vtcm_mb"),
            ('tags = ["pr"]', 'tags = ["pr"]\noptions = { soc_model = 4 }', "is set by --soc"),
            ('tags = ["pr"]', 'tags = ["pr"]\nunknown = 1', "unknown"),
            ("arguments = { width = 16 }", 'calibrate = "data"', "a factory gives its own inputs"),
        ],
    )
    def test_a_slip_is_refused_in_words(self, tmp_path: Path, old: str, new: str, said: str) -> None:
        assert old in SUITE
        with pytest.raises(ManifestError) as caught:
            programs_of(suite(tmp_path, SUITE.replace(old, new)))
        assert said.lower() in caught.value.message.lower()

    def test_the_shipped_suite_has_what_the_page_promises(self) -> None:
        programs = [program for program in programs_of(SHIPPED) if program.run.precision == "u16u8"]
        chips = {name: {p.soc for p in programs if p.case_name == name} for name in ("vit", "bert")}
        assert all(len(socs) >= 4 for socs in chips.values())

    def test_cases_of_the_same_name_are_the_same_model_in_both_suites(self) -> None:
        other = load_suite(LOWERING).cases
        for program in programs_of(SHIPPED):
            if program.case_name in other:
                case = other[program.case_name]
                assert (case.factory, case.arguments) == (program.case.factory, program.case.arguments)

    def test_programs_are_chosen_by_words_and_tags(self, tmp_path: Path) -> None:
        programs = programs_of(suite(tmp_path))
        assert [p.soc for p in choose(programs, tags=["pr"], words=["net*8750"])] == ["SM8750"]

    def test_a_choice_that_leaves_nothing_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no program is left by --tag nightly"):
            choose(programs_of(suite(tmp_path)), tags=["nightly"])


class TestPrecision:
    @pytest.mark.parametrize("text", ["u16u8", "u16/u8", "U16U8", "uint16_uint8"])
    def test_is_found_however_it_is_written(self, text: str) -> None:
        assert precision_named(text) is PRECISIONS["u16u8"]

    def test_what_htp_does_not_take_gets_the_nearest_that_it_does(self) -> None:
        with pytest.raises(UsageError) as caught:
            precision_named("s16u8")
        assert caught.value.remedy == "use u16u8"


class TestJudgement:
    def test_a_good_program_has_no_finding(self, program: Program) -> None:
        assert rules(program, Result(facts())) == []

    def test_a_missed_threshold_is_an_error(self, program: Program) -> None:
        near = {**facts()["beside"]["near"], "cosine": 0.98}
        assert rules(program, Result(facts(near=near))) == [("onnx-accuracy", Severity.ERROR)]

    def test_a_figure_that_is_missing_does_not_pass(self, program: Program) -> None:
        assert rules(program, Result(facts(near={}))) == [("onnx-accuracy", Severity.ERROR)]

    def test_other_outputs_after_reloading_are_an_error(self, program: Program) -> None:
        assert rules(program, Result(facts(reload_equal=False))) == [("onnx-reload", Severity.ERROR)]

    def test_a_node_on_the_cpu_is_an_error_with_its_name_and_reason(self, program: Program) -> None:
        node = {"node": "erf_1", "operator": "Erf", "reason": "not supported"}
        result = Result(facts(audit={"nodes": 9, "unsupported": [node], "graphs": 2}))
        assert [finding.message for finding in findings_of(program, result)] == ["erf_1 (Erf): not supported"]

    def test_a_fault_is_an_error_with_the_command_to_repeat_it(self, program: Program) -> None:
        finding = next(iter(findings_of(program, Result(rule="onnx-crash", message="m", remedy="r"))))
        assert finding.rule == "onnx-crash"
        assert finding.remedy.startswith("r; then nox -s test_onnx")
        assert finding.remedy.endswith("-k net/u16u8/SM8650")

    def test_slow_operators_are_a_note(self, program: Program) -> None:
        result = Result({**facts(), "slowest": ["conv 90% (9 cycles)"]})
        assert rules(program, result) == [("onnx-profile", Severity.NOTE)]


def lane_report(folder: Path, stage: str, rows: Mapping[str, Any]) -> None:
    run = StageRun(stage, "wheels", "x86_64-linux", "nox")
    run.metrics |= {"programs": dict(rows), "build_id": "v2.49.40.260810104044"}
    run.finish(Outcome.PASS).write(folder)


class TestCrossCheck:
    identity: ClassVar = {"case": "resnet10", "run": "16a8w", "scheme": "16a8w", "soc": "SM8650"}

    def test_the_same_factory_is_found_in_the_other_lanes_reports(self, tmp_path: Path) -> None:
        lane_report(
            tmp_path, "test_lowering", {"p": {**self.identity, "costs": {"pte_bytes": 5.0, "ddr_read": 7.0}}}
        )
        lane_report(tmp_path, "test_emulator", {"p": {**self.identity, "figures": {"cosine": 0.5}}})
        program = next(p for p in programs_of(SHIPPED) if p.name == "resnet10/u16u8/SM8650")
        lane = executorch_lane(tmp_path, LOWERING)[key_of_program(program)]
        assert (lane.cosine, lane.size, lane.ddr_read, lane.ddr_written) == (0.5, 5, 7, None)

    def test_one_report_is_enough(self, tmp_path: Path) -> None:
        lane_report(tmp_path, "test_emulator", {"p": {**self.identity, "figures": {"cosine": 0.5}}})
        assert [lane.size for lane in executorch_lane(tmp_path, LOWERING).values()] == [None]

    def test_a_run_with_qat_is_no_match(self, tmp_path: Path) -> None:
        lane_report(tmp_path, "test_emulator", {"p": {**self.identity, "run": "16a8w-qat"}})
        assert executorch_lane(tmp_path, LOWERING) == {}

    def test_without_reports_the_stage_says_that_nothing_was_compared(
        self, tmp_path: Path, program: Program
    ) -> None:
        stage = StageRun("test_onnx", "wheels", "x86_64-linux", "nox")
        plan = Plan((program,), {}, tmp_path / "onnx", None, 1.0, False)
        selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path)
        cross_check(stage, plan, {program.name: Result(facts())}, selection)
        assert [(f.rule, f.severity) for f in stage.findings] == [("onnx-cross-check", Severity.NOTE)]
        assert "nothing was compared" in stage.findings[0].message

    def test_both_lanes_stand_side_by_side(self) -> None:
        lane = lane_of(Result(facts()))
        text = markdown([("net", lane, lane)])
        assert text.count("| net |") == 2
        assert "| ExecuTorch (QNN v2.51.0.260929181845) | 0.999000 | 30.0 | 1,234 | 100 | 10 |" in text


def test_the_report_counts_and_shows_every_program(tmp_path: Path) -> None:
    programs = programs_of(suite(tmp_path))
    stage = StageRun("test_onnx", "wheels", "x86_64-linux", "nox")
    plan = Plan(tuple(programs), {}, tmp_path / "onnx", None, 1.0, False)
    results = {programs[0].name: Result(facts()), programs[1].name: Result(rule="onnx-crash", message="gone")}
    judge(stage, plan, results, Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path))
    report = stage.finish()
    Report.read(report.write(tmp_path))
    rows = json.loads(json.dumps(report.metrics["programs"]))
    assert [row["verdict"] for row in rows.values()] == ["pass", "fail"]
    assert (report.outcome, report.metrics["failed"]) == (Outcome.FAIL, 1)


def test_operators_of_a_profile_are_summed_and_ranked(tmp_path: Path) -> None:
    path = tmp_path / "profile.csv"
    path.write_text(
        "Msg Timestamp,Message,Time,Unit of Measurement,Timing Source,Event Level,Event Identifier\n"
        "0,EXECUTE,20482,US,BACKEND,ROOT,QNN (execute) time\n"
        "0,NODE,10,CYCLES,BACKEND,SUB-EVENT,conv:OpId_23 (cycles)\n"
        "0,NODE,60,CYCLES,BACKEND,SUB-EVENT,mm:OpId_31 (cycles)\n"
        "0,NODE,30,CYCLES,BACKEND,SUB-EVENT,conv:OpId_24 (cycles)\n"
        "0,NODE,828,CYCLES,BACKEND,SUB-EVENT,Input OpId_2 (cycles)\n"
        "broken\n"
    )
    assert list(map(str, slowest(path))) == ["mm 60% (60 cycles)", "conv 40% (40 cycles)"]


def test_every_file_that_the_steps_import_counts_as_the_toolkit() -> None:
    text = (ROOT / "ci/onnx/steps.py").read_text() + (ROOT / "ci/onnx/engine.py").read_text()
    imported = {
        name.replace(".", "/") + ".py"
        for name in re.findall(r"^ *from (ci\.[\w.]+) import", text, re.MULTILINE)
        if name != "ci.onnx"
    }
    # Options come in as settings, which are part of a run's key.
    assert imported - {"ci/onnx/options.py"} <= set(TOOLKIT)
    assert all((ROOT / name).is_file() for name in TOOLKIT)
