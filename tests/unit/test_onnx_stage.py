"""The suite, the judgement of what workers say, and the comparison with ExecuTorch's lane."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from ci.__main__ import VERBS
from ci.engine.memo import VerdictCache
from ci.engine.workers.parent import Setup
from ci.executorch.suite import SHIPPED as LOWERING
from ci.executorch.suite import SUITES as LOWERING_SUITES
from ci.executorch.suite import load_suite
from ci.onnx import measure
from ci.onnx.crosscheck import Lane, executorch_lane, key_of_program
from ci.onnx.judge import cost, cross_check, findings_of, lane_of, pairs_of, row
from ci.onnx.measure import TOOLKIT, Plan, Result, do_model, jobs_of, measured, models_of
from ci.onnx.precision import NOT_ON_HTP, PRECISIONS, precision_named
from ci.onnx.process import Crashed
from ci.onnx.profile import slowest
from ci.onnx.stage import judge, update
from ci.onnx.suite import SHIPPED, Program, choose, programs_of
from ci.report.lanes import lanes_section
from ci.suites.baseline import Baseline, Recorded, baseline_path, load_baseline, load_tolerances
from ci.suites.thresholds import derived
from provisioning.base.command_line import main
from provisioning.base.errors import EnvironmentLacking, ManifestError, UsageError
from provisioning.base.findings import Finding, Metric, Outcome, Report, Severity, StageRun
from provisioning.base.settings import MANIFESTS, ROOT, Selection
from tests.support.onnx_models import with_external_data

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SUITE = """\
schema = 1
[case.net]
factory = "ci.suites.models.vision:resnet"
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
    return {"beside": {**one, **changes}, "embedded": one, "forms_equal": True}


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
            ('factory = "ci.suites.models.vision:resnet"\n', "", "factory or model"),
            ('tags = ["pr"]', 'tags = ["pr"]\noptions = { vtcm = 4 }', "did you mean vtcm_mb"),
            ('tags = ["pr"]', 'tags = ["pr"]\noptions = { soc_model = 4 }', "is set by --soc"),
            ('tags = ["pr"]', 'tags = ["pr"]\noptions = { vtcm_mb = 1.5 }', "expected a whole number"),
            (
                'tags = ["pr"]',
                'tags = ["pr"]\noptions = { "ep.share_ep_contexts" = true }',
                "an embedded context",
            ),
            ('tags = ["pr"]', 'tags = ["pr"]\nunknown = 1', "unknown"),
            ("arguments = { width = 16 }", 'calibrate = "data"', "a factory gives its own inputs"),
            ("arguments = { width = 16 }", "dimensions = { batch = 1 }", "a factory gives its own inputs"),
        ],
    )
    def test_a_slip_is_refused_in_words(self, tmp_path: Path, old: str, new: str, said: str) -> None:
        assert old in SUITE
        with pytest.raises(ManifestError) as caught:
            programs_of(suite(tmp_path, SUITE.replace(old, new)))
        assert said.lower() in caught.value.message.lower()

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

    def test_a_name_says_what_is_computed_and_what_the_other_lane_calls_it(self) -> None:
        types = {"QUInt8": "u8", "QInt8": "s8", "QUInt16": "u16", "QInt16": "s16"}
        for precision in PRECISIONS.values():
            if precision.quantized:
                activations, weights = types[precision.activations], types[precision.weights]
                assert precision.name == activations + weights
                assert precision.executorch == f"{activations[1:]}a{weights[1:]}w"

    @pytest.mark.parametrize("name", NOT_ON_HTP)
    def test_what_is_used_instead_is_there(self, name: str) -> None:
        with pytest.raises(UsageError) as caught:
            precision_named(name)
        assert precision_named(caught.value.remedy.removeprefix("use ")).quantized

    def test_what_htp_does_not_take_gets_the_nearest_that_it_does(self) -> None:
        with pytest.raises(UsageError) as caught:
            precision_named("s16u8")
        assert caught.value.remedy == "use u16u8"


class TestJudgement:
    def test_a_good_program_has_no_finding(self, program: Program) -> None:
        assert rules(program, Result(facts())) == []

    def test_a_missed_threshold_is_an_error(self, program: Program) -> None:
        near = {**facts()["beside"]["near"], "cosine": 0.98}
        result = Result(facts(near=near))
        assert rules(program, result) == [("onnx-accuracy", Severity.ERROR)]
        assert "the float model" in next(findings_of(program, result)).message

    def test_a_figure_that_is_missing_does_not_pass(self, program: Program) -> None:
        assert rules(program, Result(facts(near={}))) == [("onnx-accuracy", Severity.ERROR)]

    def test_other_outputs_after_reloading_are_an_error(self, program: Program) -> None:
        assert rules(program, Result(facts(reload_equal=False))) == [("onnx-reload", Severity.ERROR)]

    def test_other_outputs_of_the_embedded_context_are_an_error(self, program: Program) -> None:
        assert rules(program, Result({**facts(), "forms_equal": False})) == [("onnx-forms", Severity.ERROR)]

    def test_a_node_on_the_cpu_is_an_error_with_its_name_and_reason(self, program: Program) -> None:
        node = {"node": "erf_1", "operator": "Erf", "reason": "not supported"}
        made = facts(audit={"nodes": 9, "unsupported": [node], "graphs": 2})
        for form in (made["beside"], facts()["embedded"]):
            result = Result({**made, "embedded": form})
            assert [each.message for each in findings_of(program, result)] == ["erf_1 (Erf): not supported"]

    def test_one_that_only_the_embedded_form_has_there_is_an_error_too(self, program: Program) -> None:
        node = {"node": "erf_1", "operator": "Erf", "reason": "not supported"}
        made = facts(audit={"nodes": 9, "unsupported": [node], "graphs": 2})
        result = Result({**made, "beside": made["embedded"], "embedded": made["beside"]})
        assert rules(program, result) == [("onnx-cpu-node", Severity.ERROR)]

    def test_a_fault_is_an_error_with_the_command_to_repeat_it(self, program: Program) -> None:
        finding = next(iter(findings_of(program, Result(rule="onnx-crash", message="m", remedy="r"))))
        assert finding.rule == "onnx-crash"
        assert finding.remedy.startswith("r; then nox -s test_onnx")
        assert finding.remedy.endswith("-k net/u16u8/SM8650")

    def test_a_fault_without_a_mend_has_that_command_alone(self, program: Program) -> None:
        finding = next(iter(findings_of(program, Result(facts(reload_equal=False)))))
        assert finding.remedy.startswith("nox -s test_onnx")

    def test_slow_operators_are_a_note(self, program: Program) -> None:
        result = Result({**facts(), "slowest": ["conv 90% (9 cycles)"]})
        assert rules(program, result) == [("onnx-profile", Severity.NOTE)]


class TestCost:
    tolerances = load_tolerances()

    def rules(self, program: Program, agreed: Recorded | None, **changes: Any) -> dict[str, Severity]:
        baseline = Baseline(Path("onnx-wheels.json"), programs={program.name: agreed} if agreed else {})
        result = Result({**facts(**changes), "cpu_seconds": 2.0})
        return {each.rule: each.severity for each in cost(program, result, baseline, self.tolerances)}

    @property
    def agreed(self) -> Recorded:
        return Recorded(
            ddr_read=100, ddr_written=10, ddr_spilled=0, ddr_filled=0, context_bytes=1234, cpu_seconds=2.0
        )

    def test_the_same_costs_nothing_to_say(self, program: Program) -> None:
        assert self.rules(program, self.agreed) == {}

    @pytest.mark.parametrize("name", ["read", "written", "spilled", "filled"])
    def test_more_traffic_than_is_tolerated_is_an_error(self, program: Program, name: str) -> None:
        ddr = {**facts()["beside"]["ddr"], name: 10_000}
        assert self.rules(program, self.agreed, ddr=ddr) == {f"cost-ddr-{name}": Severity.ERROR}

    def test_a_larger_context_is_an_error(self, program: Program) -> None:
        assert self.rules(program, self.agreed, bytes=20_000) == {"cost-context-bytes": Severity.ERROR}

    @pytest.mark.parametrize("more", [0, 1])
    def test_what_is_tolerated_is_tolerated_to_the_byte(self, program: Program, more: int) -> None:
        most = int(self.tolerances.costs["context_bytes"].most(1234)) + more
        assert len(self.rules(program, self.agreed, bytes=most)) == more

    def test_traffic_that_the_compiler_does_not_tell_is_an_error(self, program: Program) -> None:
        assert self.rules(program, self.agreed, ddr=None) == {"cost-unknown": Severity.ERROR}

    def test_no_baseline_is_said(self, program: Program) -> None:
        assert self.rules(program, None) == {"cost-no-baseline": Severity.WARNING}

    def test_a_program_that_was_not_made_costs_nothing(self, program: Program) -> None:
        result = Result(rule="onnx-crash")
        assert list(cost(program, result, Baseline(Path("b.json")), self.tolerances)) == []


def lane_report(
    folder: Path, stage: str, rows: Mapping[str, Any], build_id: str = "v2.49.40.260810104044"
) -> None:
    run = StageRun(stage, "wheels", "x86_64-linux", "nox")
    run.metrics |= {"programs": dict(rows), "build_id": build_id}
    run.finish(Outcome.PASS).write(folder)


ERROR = Finding("onnx-crash", Severity.ERROR, "bad", "gone", "again")

LOWERED = """\
schema = 1
[case.other]
factory = "ci.suites.models.vision:resnet"
arguments = { width = 16 }
[[case.other.run]]
scheme = "16a8w"
socs = ["SM8650"]
tags = ["pr"]
thresholds = { cosine = 0.9 }
[[case.other.run]]
scheme = "8a8w"
qat = true
socs = ["SM8650"]
tags = ["pr"]
thresholds = { cosine = 0.9 }
"""


class TestCrossCheck:
    """`net` of the one suite is `other` of the other: the same factory with the same arguments."""

    @pytest.fixture
    def lowered(self, tmp_path: Path) -> Path:
        path = tmp_path / "lowering.toml"
        path.write_text(LOWERED)
        return path

    def found(self, reports: Path, lowered: Path, program: Program) -> Lane:
        return executorch_lane(reports, lowered, "wheels")[key_of_program(program)]

    def test_the_same_factory_is_found_in_the_other_lanes_reports(
        self, tmp_path: Path, lowered: Path, program: Program
    ) -> None:
        name = "other/16a8w/SM8650"
        costs = {"pte_bytes": 5.0, "ddr_read": 7.0}
        lane_report(tmp_path, "test_lowering", {name: {"costs": costs}}, build_id="v2.49.1")
        lane_report(tmp_path, "test_emulator", {name: {"figures": {"cosine": 0.5}}}, build_id="v2.49.2")
        lane = self.found(tmp_path, lowered, program)
        assert lane == Lane(
            cosine=0.5, sqnr_db=None, size=5, ddr_read=7, ddr_written=None, build_id="v2.49.1"
        )

    def test_one_report_is_enough(self, tmp_path: Path, lowered: Path, program: Program) -> None:
        lane_report(tmp_path, "test_emulator", {"other/16a8w/SM8650": {"figures": {"cosine": 0.5}}})
        lane = self.found(tmp_path, lowered, program)
        assert (lane.size, lane.build_id) == (None, "v2.49.40.260810104044")

    def test_the_order_of_arguments_does_not_matter(self, tmp_path: Path, lowered: Path) -> None:
        lowered.write_text(LOWERED.replace("width = 16", "width = 16, depth = 2"))
        lane_report(tmp_path, "test_emulator", {"other/16a8w/SM8650": {"figures": {"cosine": 0.5}}})
        program = programs_of(suite(tmp_path, SUITE.replace("width = 16", "depth = 2, width = 16")))[0]
        assert self.found(tmp_path, lowered, program).cosine == 0.5

    def test_a_report_that_cannot_be_read_counts_as_none(self, tmp_path: Path, lowered: Path) -> None:
        (tmp_path / "test_emulator.json").write_text("{")
        assert executorch_lane(tmp_path, lowered, "wheels") == {}

    def test_without_a_report_the_baseline_is_taken_and_said(
        self, tmp_path: Path, lowered: Path, program: Program
    ) -> None:
        agreed: dict[str, dict[str, object]] = {
            "other/16a8w/SM8650": {"build_id": "v2.49", "pte_bytes": 9, "accuracy": {"sqnr_db": 40.0}}
        }
        load_baseline(baseline_path(lowered, "wheels")).with_values(agreed).write()
        lane = self.found(tmp_path, lowered, program)
        assert (lane.size, lane.sqnr_db, lane.agreed, lane.build_id) == (9, 40.0, True, "v2.49")

    def test_a_run_with_qat_is_no_match(self, tmp_path: Path, lowered: Path) -> None:
        lane_report(tmp_path, "test_emulator", {"other/8a8w-qat/SM8650": {"figures": {"cosine": 0.5}}})
        assert executorch_lane(tmp_path, lowered, "wheels") == {}

    def test_where_nothing_is_the_same_the_stage_says_so(self, tmp_path: Path) -> None:
        stage = StageRun("test_onnx", "wheels", "x86_64-linux", "nox")
        cross_check(stage, [], tmp_path)
        assert [(f.rule, f.severity) for f in stage.findings] == [("onnx-cross-check", Severity.NOTE)]
        assert "nothing was compared" in stage.findings[0].message

    def test_both_lanes_stand_side_by_side(self, tmp_path: Path) -> None:
        lane = lane_of(Result(facts()))
        stage = StageRun("test_onnx", "wheels", "x86_64-linux", "nox")
        # Where all verdicts were kept, nobody has made the folder.
        other = replace(lane, agreed=True, ddr_written=None)
        cross_check(stage, [("net", lane, other)], tmp_path / "onnx")
        text = (tmp_path / "onnx/cross_check.md").read_text()
        assert text.splitlines()[2:] == [
            "| net | ONNX Runtime (QNN v2.51.0.260929181845) | 0.999000 | 30.0 | 1,234 | 100 | 10 |",
            "| net | ExecuTorch, baseline (QNN v2.51.0.260929181845) | 0.999000 | 30.0 | 1,234 | 100 | – |",
        ]
        assert "1 of 1 programs stand beside ExecuTorch's baseline" in stage.findings[0].message
        assert [artifact.kind for artifact in stage.artifacts] == ["cross-check"]

    @pytest.fixture
    def page(self, program: Program) -> list[list[str]]:
        """The cells of the page's tables, row by row."""
        result = Result({**facts(), "cpu_seconds": 1.0})
        lane = replace(lane_of(result), sqnr_db=41.5, ddr_read=None, build_id="v2.49", agreed=True)
        baseline = Baseline(Path("b.json"))
        rows: dict[str, Metric] = {
            "pair": row(program, result, [], baseline, lane),
            "alone": row(program, result, [], baseline, None),
            "bad": row(program, Result(rule="onnx-crash"), [ERROR], baseline, lane),
        }
        finished = StageRun("test_onnx", "wheels", "x86_64-linux", "nox").finish()
        section = lanes_section([replace(finished, metrics={"programs": rows})])
        assert section is not None
        return [["".join(cell.itertext()) for cell in line] for line in section.iter("tr")]

    def test_the_page_has_both_lanes_in_one_row(self, page: list[list[str]]) -> None:
        rows = [cells for cells in page if cells[0] == "pair"]
        assert rows[0] == ["pair", "30.0", "41.5", "1.23 kB", "1.23 kB", "100 B", "–", "10 B", "10 B"]

    def test_the_page_has_every_program_and_the_bad_ones_first(self, page: list[list[str]]) -> None:
        assert [cells[:3] for cells in page[-3:]] == [
            ["bad", "✗ fail", "–"],
            ["pair", "✓ pass", "30.0"],
            ["alone", "✓ pass", "30.0"],
        ]

    def test_the_page_has_no_such_part_without_the_stage(self) -> None:
        assert lanes_section([StageRun("lint", "wheels", "x86_64-linux", "nox").finish()]) is None


def plan_of(programs: Sequence[Program], folder: Path) -> Plan:
    baselines = {program.suite: Baseline(folder / "baseline.json") for program in programs}
    return Plan(tuple(programs), {}, baselines, folder / "onnx", None, 1.0, False)


def test_the_report_counts_and_shows_every_program(tmp_path: Path) -> None:
    programs = programs_of(suite(tmp_path))
    stage = StageRun("test_onnx", "wheels", "x86_64-linux", "nox")
    good = Result({**facts(), "cpu_seconds": 1.0})
    results = {programs[0].name: good, programs[1].name: Result(rule="onnx-crash", message="gone")}
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path)
    judge(stage, plan_of(programs, tmp_path), results, selection)
    report = stage.finish()
    Report.read(report.write(tmp_path))
    rows = json.loads(json.dumps(report.metrics["programs"]))
    assert [row["verdict"] for row in rows.values()] == ["pass", "fail"]
    assert (report.outcome, report.metrics["failed"]) == (Outcome.FAIL, 1)


def test_a_row_has_all_that_the_page_shows(program: Program) -> None:
    result = Result({**facts(), "cpu_seconds": 1.0, "slowest": ["conv 90% (9 cycles)"]})
    agreed = Baseline(
        Path("b.json"), programs={program.name: Recorded(context_bytes=1000, ddr_read=90, build_id="v1")}
    )
    shown = row(program, result, [], agreed, None)
    assert shown.pop("lanes") == {"onnx": asdict(lane_of(result))}
    costs = {"ddr_read": 100, "ddr_written": 10, "ddr_spilled": 0, "ddr_filled": 0, "context_bytes": 1234}
    assert shown == {
        "case": "net",
        "run": "u16u8",
        "precision": "u16u8",
        "soc": "SM8650",
        "tags": ["pr"],
        "verdict": "pass",
        "command": f"nox -s test_onnx -- --suite {program.suite} -k net/u16u8/SM8650",
        "thresholds": {"cosine": 0.99},
        "cached": False,
        "figures": facts()["beside"]["near"],
        "nodes": 9,
        "graphs": 1,
        "costs": {**costs, "cpu_seconds": 1.0},
        "baseline": {**dict.fromkeys([*costs, "cpu_seconds"]), "context_bytes": 1000, "ddr_read": 90},
        "baseline_build_id": "v1",
        "slowest": ["conv 90% (9 cycles)"],
    }


def test_a_row_without_traffic_or_baseline_is_shown_too(program: Program) -> None:
    shown = row(program, Result({**facts(ddr=None), "cpu_seconds": 1.0}), [], Baseline(Path("b.json")), None)
    assert (shown["costs"], shown["baseline"]) == ({"context_bytes": 1234, "cpu_seconds": 1.0}, {})


def test_what_was_measured_becomes_the_baseline(tmp_path: Path) -> None:
    programs = programs_of(suite(tmp_path))
    made = Result({**facts(), "cpu_seconds": 1.5, "peak": 9 << 20})
    results = {programs[0].name: made, programs[1].name: Result(rule="onnx-crash", message="gone")}
    plan = plan_of(programs, tmp_path)
    old: dict[str, dict[str, object]] = {"gone/u16u8/SM8650": {"build_id": "v1", "context_bytes": 1}}
    plan.baselines[programs[0].suite] = plan.baseline(programs[0]).with_values(old)
    update(plan, results)
    again = load_baseline(tmp_path / "baseline.json")
    recorded = again.programs[programs[0].name]
    assert list(again.programs) == [programs[0].name]
    assert recorded.build_id == "v2.51.0.260929181845"
    assert (recorded.context_bytes, recorded.ddr_read, recorded.peak_mb) == (1234, 100, 9)
    assert recorded.accuracy["sqnr_db"] == 30.0


def test_models_of_the_users_stand_beside_no_other_lane(tmp_path: Path) -> None:
    (program,) = programs_of(suite(tmp_path, OWN.format(calibrate="c", affinity=suite(tmp_path))))
    stage = StageRun("test_onnx", "wheels", "x86_64-linux", "nox")
    selection = Selection("wheels", "x86_64-linux", "SM8650", tmp_path, tmp_path)
    judge(stage, plan_of([program], tmp_path), {program.name: Result(rule="onnx-crash")}, selection)
    assert [finding.rule for finding in stage.findings] == ["onnx-crash"]
    assert stage.metrics["build_id"] == "unknown"


def test_each_suite_has_its_own_baseline(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (one,) = programs_of(suite(tmp_path / "a"), ["SM8650"])
    (other,) = programs_of(suite(tmp_path / "b", SUITE.replace("case.net", "case.other")), ["SM8650"])
    plan = plan_of([one, other], tmp_path)
    plan.baselines.update({each.suite: Baseline(each.suite.with_suffix(".json")) for each in (one, other)})
    made = Result({**facts(), "cpu_seconds": 1.5, "peak": 0})
    update(plan, {one.name: made, other.name: made})
    assert list(load_baseline(tmp_path / "a/onnx.json").programs) == [one.name]
    assert list(load_baseline(tmp_path / "b/onnx.json").programs) == [other.name]


def test_where_nothing_was_made_the_baseline_stays_as_it_is(tmp_path: Path) -> None:
    programs = programs_of(suite(tmp_path))
    plan = plan_of(programs, tmp_path)
    agreed: dict[str, dict[str, object]] = {programs[0].name: {"build_id": "v1", "context_bytes": 1}}
    before = plan.baseline(programs[0]).with_values(agreed)
    plan.baselines[programs[0].suite] = before
    update(plan, {program.name: Result(rule="onnx-crash") for program in programs})
    assert load_baseline(tmp_path / "baseline.json") == before


def test_a_chip_that_was_asked_for_beside_the_suite_has_a_baseline_too(tmp_path: Path) -> None:
    (program,) = programs_of(suite(tmp_path), ["SA8295"])
    update(plan_of([program], tmp_path), {program.name: Result({**facts(), "cpu_seconds": 1.5, "peak": 0})})
    assert list(load_baseline(tmp_path / "baseline.json").programs) == [program.name]


class Worker:
    """Answers orders as it is told to; one that crashes is gone."""

    def __init__(self, crash: str = "", at: str = "") -> None:
        self.crash, self.at = crash, at
        self.orders: list[str] = []

    def order(self, what: str, log: Path, **given: Any) -> dict[str, Any]:
        self.orders.append(f"{what} {given.get('soc', given.get('precision', ''))}".strip())
        if self.orders[-1] == self.crash:
            raise Crashed("crash", "it was ended by signal 11", "look")
        if what == "case":
            Path(given["into"]).mkdir()
        return {"model": "m.onnx", "source": "digest", **(facts() if what == "case" else {})}


class TestModels:
    @pytest.fixture
    def programs(self, tmp_path: Path) -> list[Program]:
        second = SUITE[SUITE.index("[[case") :].replace("u16u8", "u8u8")
        return programs_of(suite(tmp_path, SUITE + second))

    def done(self, programs: list[Program], folder: Path, worker: Worker) -> dict[str, Result]:
        return do_model(plan_of(programs, folder), programs, worker, folder / "scratch")  # type: ignore[arg-type]

    def test_a_model_is_exported_once_and_quantized_once_a_run(
        self, programs: list[Program], tmp_path: Path
    ) -> None:
        worker = Worker()
        results = self.done(programs, tmp_path, worker)
        assert list(results) == [program.name for program in programs]
        assert worker.orders == [
            *("prepare", "variant u16u8", "case SM8650", "case SM8750"),
            *("variant u8u8", "case SM8650", "case SM8750"),
        ]
        assert not (tmp_path / "scratch").exists()

    def test_a_crash_leaves_the_rest_for_another_turn(self, programs: list[Program], tmp_path: Path) -> None:
        results = self.done(programs, tmp_path, Worker("case SM8750"))
        assert {name: result.rule for name, result in results.items()} == {
            "net/u16u8/SM8650": "",
            "net/u16u8/SM8750": "onnx-crash",
        }

    def test_a_crash_of_quantizing_concerns_that_run_alone(
        self, programs: list[Program], tmp_path: Path
    ) -> None:
        results = self.done(programs, tmp_path, Worker("variant u16u8"))
        assert {name: result.rule for name, result in results.items()} == {
            "net/u16u8/SM8650": "onnx-crash",
            "net/u16u8/SM8750": "onnx-crash",
        }

    def test_a_crash_of_the_export_concerns_all(self, programs: list[Program], tmp_path: Path) -> None:
        results = self.done(programs, tmp_path, Worker("prepare"))
        assert len(results) == 4 and all(result.rule == "onnx-crash" for result in results.values())

    def test_cases_of_one_name_in_two_suites_are_two_models(self, tmp_path: Path) -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        one = programs_of(suite(tmp_path / "a"))
        other = programs_of(suite(tmp_path / "b", SUITE.replace("u16u8", "u8u8")))
        assert {name: len(each) for name, each in models_of([*one, *other]).items()} == {"net": 2, "net/2": 2}

    def test_a_job_is_as_long_as_its_baseline_says(self, programs: list[Program]) -> None:
        recorded = {program.name: Recorded(cpu_seconds=10.0) for program in programs}
        known = {programs[0].suite: Baseline(Path("b"), programs=recorded)}
        unknown = {programs[0].suite: Baseline(Path("b"))}
        assert jobs_of(programs, known)[0].seconds > jobs_of(programs, unknown)[0].seconds > 0


STUB = """\
import json, os, signal, sys
replies = os.fdopen(int(sys.argv[1]), "w")
def say(message):
    replies.write(json.dumps(message) + "\\n")
    replies.flush()
say({})
facts = json.loads(os.environ["FACTS"])
for line in sys.stdin:
    order = json.loads(line)
    if order.get("soc") == os.environ["CRASH"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    if order["do"] == "case":
        os.mkdir(order["into"])
    say({"model": "m.onnx", "source": "digest", **(facts if order["do"] == "case" else {})})
"""


OWN = """\
schema = 1
[case.net]
model = "nets/net.onnx"
calibrate = "{calibrate}"
[[case.net.run]]
precision = "u16u8"
socs = ["SM8650"]
tags = ["pr"]
thresholds = {{ cosine = 0.99 }}
options = {{ op_affinity = "{affinity}" }}
"""


class TestKeys:
    """Each thing that a verdict depends on, changed alone."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "nets/data").mkdir(parents=True)
        with_external_data(tmp_path / "nets/net.onnx", "data/weights.bin")
        (tmp_path / "samples").mkdir()
        for file, text in {
            "samples/one.npy": "1",
            "affinity.json": "{}",
            "feed.py": "import numbers_of",
            "numbers_of.py": "",
            "nets/else.txt": "",
        }.items():
            (tmp_path / file).write_text(text)
        return tmp_path

    def key(self, folder: Path, calibrate: str = "samples") -> str:
        text = OWN.format(calibrate=calibrate, affinity=folder / "affinity.json")
        programs = programs_of(suite(folder, text))
        return plan_of(programs, folder).key(programs[0])

    @pytest.mark.parametrize(
        "file", ["nets/net.onnx", "nets/data/weights.bin", "samples/one.npy", "affinity.json"]
    )
    def test_a_changed_file_gives_another(self, folder: Path, file: str) -> None:
        before = self.key(folder)
        content = (folder / file).read_bytes()
        (folder / file).write_bytes(content + content[-1:])
        after = self.key(folder)
        (folder / file).write_bytes(content)
        assert after != before == self.key(folder)

    @pytest.mark.parametrize("file", ["feed.py", "numbers_of.py"])
    def test_so_does_a_module_of_the_function_that_gives_samples(self, folder: Path, file: str) -> None:
        before = self.key(folder, "feed:samples")
        (folder / file).write_text("changed = 1")
        assert self.key(folder, "feed:samples") != before

    def test_a_file_that_the_model_does_not_name_has_no_say(self, folder: Path) -> None:
        before = self.key(folder)
        (folder / "nets/else.txt").write_text("changed")
        assert self.key(folder) == before

    def test_a_model_that_is_damaged_still_has_one(self, folder: Path) -> None:
        (folder / "nets/data/weights.bin").unlink()
        assert self.key(folder)


class TestMeasured:
    @pytest.fixture
    def crashing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A worker that goes down whenever it is to compile for the SM8650."""
        environment = {"FACTS": json.dumps({**facts(), "cpu_seconds": 1.0}), "CRASH": "SM8650"}
        setup = Setup(("-c", STUB), environment, tmp_path / "logs", 30, "onnxruntime", "install it")
        monkeypatch.setattr(measure, "setup_of", lambda *args, **kwargs: setup)

    def test_a_crash_is_one_fault_and_all_others_are_made_and_kept(
        self, crashing: None, tmp_path: Path
    ) -> None:
        second = SUITE[SUITE.index("[[case") :].replace("u16u8", "u8u8")
        programs = programs_of(suite(tmp_path, SUITE + second))
        plan, cache = plan_of(programs, tmp_path), VerdictCache(tmp_path / "store", "onnx")
        results = measured(plan, cache, lambda program, result: True)
        assert {name: result.rule for name, result in results.items()} == {
            "net/u16u8/SM8650": "onnx-crash",
            "net/u16u8/SM8750": "",
            "net/u8u8/SM8650": "onnx-crash",
            "net/u8u8/SM8750": "",
        }
        assert "SIGSEGV" in results["net/u16u8/SM8650"].message
        again = measured(plan, cache, lambda program, result: True)
        assert [name for name, result in again.items() if result.cached] == [
            "net/u16u8/SM8750",
            "net/u8u8/SM8750",
        ]

    def test_one_that_is_not_fine_any_more_is_done_again(self, crashing: None, tmp_path: Path) -> None:
        programs = programs_of(suite(tmp_path), ["SM8750"])
        plan, cache = plan_of(programs, tmp_path), VerdictCache(tmp_path / "store", "onnx")
        measured(plan, cache, lambda program, result: True)
        (result,) = measured(plan, cache, lambda program, result: False).values()
        assert not result.cached


class TestStage:
    """The command, with a stand-in for the worker."""

    @pytest.fixture(autouse=True)
    def _worker(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        answer = json.dumps({**facts(bytes=50_000), "cpu_seconds": 1.0, "peak": 5 << 20})
        environment = {"FACTS": answer, "CRASH": "SM8650"}
        setup = Setup(("-c", STUB), environment, tmp_path / "logs", 30, "onnxruntime", "install it")
        monkeypatch.setattr(measure, "setup_of", lambda *args, **kwargs: setup)
        monkeypatch.setattr("ci.onnx.stage.require_installed", lambda: None)
        monkeypatch.setattr("ci.onnx.stage.basis", dict)

    def stage(self, folder: Path, *arguments: str, text: str = SUITE) -> int:
        places = ["--store", str(folder / "store"), "--reports", str(folder / "reports")]
        command = ["test_onnx", "--suite", str(suite(folder, text)), *places, *arguments]
        return main("python -m ci", "", VERBS, command)

    def report(self, folder: Path) -> Report:
        return Report.read(folder / "reports/test_onnx.json")

    def test_keep_leaves_the_models_of_programs_whose_verdicts_were_kept(self, tmp_path: Path) -> None:
        assert self.stage(tmp_path, "--soc", "SM8750") == 0
        assert self.stage(tmp_path, "--soc", "SM8750", "--keep") == 0
        assert (tmp_path / "reports/onnx/net/u16u8/SM8750").is_dir()

    def test_one_bad_program_is_exit_code_1_and_in_the_report(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "argv", ["ci", "test_onnx", "--suite", "onnx.toml"])
        assert self.stage(tmp_path, "--soc", "SM8650", "--soc", "SM8750", "--soc", "SM8850") == 1
        report = self.report(tmp_path)
        assert report.command == "nox -s test_onnx -- --suite onnx.toml"
        assert {finding.rule for finding in report.findings} >= {"onnx-crash", "onnx-cross-check"}
        counts = [report.metrics[name] for name in ("selected", "failed", "socs", "cached")]
        assert (report.outcome, counts) == (Outcome.FAIL, [3, 1, 3, 0])
        assert report.metrics["build_id"] == "v2.51.0.260929181845"

    def test_a_verdict_is_kept_and_judged_by_the_thresholds_of_today(self, tmp_path: Path) -> None:
        for text, code, cached in ((SUITE, 0, 0), (SUITE, 0, 1), (SUITE.replace("0.99 ", "0.9999 "), 1, 0)):
            assert self.stage(tmp_path, "--soc", "SM8750", text=text) == code
            assert self.report(tmp_path).metrics["cached"] == cached

    def test_no_cache_does_it_all_again(self, tmp_path: Path) -> None:
        for _ in range(2):
            assert self.stage(tmp_path, "--soc", "SM8750", "--no-cache") == 0
            assert self.report(tmp_path).metrics["cached"] == 0

    def test_costs_are_agreed_on_and_held_to_from_then_on(self, tmp_path: Path) -> None:
        assert self.stage(tmp_path, "--soc", "SM8750", "--update-baseline") == 0
        assert "cost-no-baseline" not in [finding.rule for finding in self.report(tmp_path).findings]
        path = baseline_path(tmp_path / "onnx.toml", "wheels")
        recorded = load_baseline(path).programs["net/u16u8/SM8750"]
        assert (recorded.context_bytes, recorded.peak_mb) == (50_000, 5)
        path.write_text(path.read_text().replace("50000", "1234"))
        assert self.stage(tmp_path, "--soc", "SM8750") == 1
        assert [
            finding.rule for finding in self.report(tmp_path).findings if finding.severity is Severity.ERROR
        ] == ["cost-context-bytes"]

    def test_list_runs_nothing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert self.stage(tmp_path, "--list") == 0
        assert capsys.readouterr().out.splitlines() == ["net/u16u8/SM8650  [pr]", "net/u16u8/SM8750  [pr]"]
        assert not (tmp_path / "reports").exists()

    @pytest.mark.parametrize(
        ("flags", "code", "chosen"),
        [
            (("-k", "8750"), 0, ["net/u16u8/SM8750  [pr]"]),
            (("--tag", "pr", "--case", "net", "-k", "8650"), 0, ["net/u16u8/SM8650  [pr]"]),
            (("--tag", "nightly"), 2, []),
            (("--case", "other"), 2, []),
        ],
    )
    def test_flags_choose(
        self,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
        flags: tuple[str, ...],
        code: int,
        chosen: list[str],
    ) -> None:
        assert self.stage(tmp_path, "--list", *flags) == code
        assert capsys.readouterr().out.splitlines() == chosen

    def test_without_a_suite_the_shipped_one_is_taken(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main("python -m ci", "", VERBS, ["test_onnx", "--list"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == len(programs_of(SHIPPED))

    def test_shards_have_each_model_once(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        case = SUITE[SUITE.index("[case") :]
        text = SUITE + case.replace("case.net", "case.other") + case.replace("case.net", "case.third")
        found = []
        for shard in ("1/3", "2/3", "3/3"):
            assert self.stage(tmp_path, "--list", "--shard", shard, text=text) == 0
            found.append(capsys.readouterr().out.splitlines())
        assert [len(lines) for lines in found] == [2, 2, 2]
        assert len({line for lines in found for line in lines}) == 6

    def test_a_suite_that_is_not_there_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        absent = str(tmp_path / "absent.toml")
        assert main("python -m ci", "", VERBS, ["test_onnx", "--suite", absent]) == 2
        assert f"--suite {absent}: there is no file" in capsys.readouterr().err

    def test_another_target_than_the_emulators_is_refused(self, tmp_path: Path) -> None:
        assert self.stage(tmp_path, "--target", "aarch64-android") == 2

    def test_without_the_provider_nothing_counts_as_passed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def lacking() -> None:
            raise EnvironmentLacking("onnxruntime-qnn is not installed", remedy="install it")

        monkeypatch.setattr("ci.onnx.stage.require_installed", lacking)
        assert self.stage(tmp_path) == 3
        report = self.report(tmp_path)
        assert report.outcome is Outcome.ERROR
        assert [finding.rule for finding in report.findings] == ["onnx-not-run"]


class TestShipped:
    programs = programs_of(SHIPPED)

    def test_settings_of_every_scope_are_there(self) -> None:
        given = [program.run.settings(program.soc).as_dict() for program in self.programs]
        assert any(all(settings.values()) for settings in given)

    def test_a_run_with_settings_of_its_own_stands_beside_no_other(self) -> None:
        (special,) = [program for program in self.programs if program.run.label]
        lane = lane_of(Result(facts()))
        results = {special.name: Result(facts())}
        assert pairs_of([special], results, {key_of_program(special): lane}) == []

    def test_the_committed_schemas_take_the_manifests(self) -> None:
        for name, file in (("onnx_suite", SHIPPED), ("onnx_options", MANIFESTS / "onnx_options.toml")):
            rules = json.loads((MANIFESTS / "schema" / f"{name}.json").read_text())
            jsonschema.validate(tomllib.loads(file.read_text()), rules)

    def test_the_committed_schema_refuses_a_slip(self) -> None:
        rules = json.loads((MANIFESTS / "schema" / "onnx_suite.json").read_text())
        slip = tomllib.loads(SHIPPED.read_text().replace('precision = "u16u8"', 'precision = "u16u9"', 1))
        with pytest.raises(jsonschema.ValidationError, match="u16u9"):
            jsonschema.validate(slip, rules)

    def test_models_of_both_suites_meet_wherever_they_can(self) -> None:
        precisions = {each.executorch for each in PRECISIONS.values() if each.executorch}
        cases = {program.case_name for program in self.programs}
        meeting = {(p.case_name, PRECISIONS[p.run.precision].executorch, p.soc) for p in self.programs}
        wanted = {
            (p.case_name, p.run.scheme, p.soc)
            for p in LOWERING_SUITES.programs_of(LOWERING)
            if p.case_name in cases and p.run.name == p.run.scheme and p.run.scheme in precisions
        }
        assert wanted <= meeting and len(wanted) >= 15

    def test_every_program_has_a_baseline_of_all_costs(self) -> None:
        baseline = load_baseline(baseline_path(SHIPPED, "wheels"))
        assert {program.name for program in self.programs} == set(baseline.programs)
        for recorded in baseline.programs.values():
            assert recorded.context_bytes and recorded.ddr_read and recorded.accuracy

    def test_thresholds_are_what_was_measured_less_the_margin(self) -> None:
        baseline, margin = load_baseline(baseline_path(SHIPPED, "wheels")), load_tolerances().sqnr_margin_db
        for program in self.programs:
            run = program.run
            runs = [baseline.programs[each.name] for each in self.programs if each.run is run]
            told = derived(run.held, run.thresholds, [each.accuracy for each in runs], margin)
            assert run.thresholds and run.thresholds.model_dump(exclude_none=True) == told, program.name

    @pytest.mark.parametrize(
        "part",
        ["mobilenet", "resnet", "segmenter", "keywords", "vit", "bert", "llama_prefill", "llama_decode"],
    )
    def test_every_kind_of_model_is_there_at_u16u8_for_four_chips(self, part: str) -> None:
        socs = {p.soc for p in self.programs if part in p.case_name and p.run.precision == "u16u8"}
        assert len(socs) >= 4


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


def test_every_file_that_the_steps_are_made_of_counts_as_the_toolkit() -> None:
    text = "".join((ROOT / name).read_text() for name in TOOLKIT)
    imported = {
        name.replace(".", "/") + ".py"
        for name in re.findall(r"^ *from (ci\.[\w.]+) import", text, re.MULTILINE)
        if name != "ci.onnx"
    }
    # Options come in as settings, which are part of a run's key; thresholds are judged later; and reading
    # what was compiled decides nothing of it.
    others = {"ci/onnx/options.py", "ci/suites/model.py"}
    assert {name for name in imported - others if not name.startswith("ci/suites/programs/")} <= set(TOOLKIT)
