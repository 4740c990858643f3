"""The ONNX suite, and its stage with a stand-in for the worker."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from ci.lanes.onnx import steps as onnx_steps
from ci.lanes.onnx.orders import CompiledContext, QuantizedModel
from ci.lanes.onnx.suite import programs_of
from ci.lanes.onnx.task_files import CALIBRATION, EXPECTED, SAMPLES
from ci.report.collect import report_in, rows_of
from ci.suite.accepted import Recorded, accepted_path, load_baseline
from ci.work import trouble
from ci.work.plain import to_json
from provisioning.accepted_file import Values, accept
from provisioning.base.command_line import main
from provisioning.base.errors import ManifestError
from provisioning.base.findings import Outcome, Report, Severity
from tests.support import onnx_worker
from tests.support.onnx_suites import CONTEXT, PREPARED, SUITE, near, write_suite

BARE = SUITE.partition("thresholds")[0]
RECORDED = BARE.replace("arguments", "recorded = true\narguments")
REFUSES_ERF: dict[str, object] = {
    "error": {
        "kind": "cpu-node",
        "message": "1 of 9 nodes does not run on HTP",
        "fix": "",
        "exit_code": 1,
        "operators": [["Erf"], ["Add"]],
        "build_id": "v2.51.0",
    }
}


class TestSuite:
    @pytest.mark.parametrize(
        ("old", "new", "words"),
        [
            ('"16a8w"', '"16a9w"', "did you mean 16a8w"),
            ('factory = "ci.models.shipped.vision:resnet"\n', "", "factory or model"),
            ('tags = ["pr"]', 'tags = ["pr"]\noptions = { vtcm = 4 }', "did you mean vtcm_mb"),
            ("arguments = { width = 16 }", "dimensions = { batch = 1 }", "only with model"),
        ],
    )
    def test_a_slip_is_refused_in_words(self, tmp_path: Path, old: str, new: str, words: str) -> None:
        assert old in SUITE
        with pytest.raises(ManifestError) as caught:
            programs_of(write_suite(tmp_path, SUITE.replace(old, new)))
        assert words.lower() in caught.value.message.lower()


class TestStage:
    @pytest.fixture(autouse=True)
    def _worker(self, monkeypatch: pytest.MonkeyPatch, stand_in_folder: Path) -> None:
        self.answers: CompiledContext | dict[str, object] = CONTEXT
        self.wrong: dict[str, str] = {}
        self.made: dict[str, object] = {}
        self.folder = stand_in_folder
        environment = {"PATH": os.environ["PATH"], onnx_worker.STAND_IN: str(stand_in_folder)}
        monkeypatch.setattr(onnx_steps, "WORKER", onnx_worker.__name__)
        monkeypatch.setattr(onnx_steps, "environment", lambda own=None: environment)

    def stage(self, folder: Path, *arguments: str, text: str = SUITE) -> int:
        (self.folder / "orders.jsonl").write_text("")
        replies = {
            "prepare": to_json(PREPARED),
            "quantize": to_json(QuantizedModel(model="m", calibrated_by=32)),
            "compile_context": self.answers if isinstance(self.answers, dict) else to_json(self.answers),
        }
        (self.folder / "replies.json").write_text(
            json.dumps({"replies": replies, "wrong": self.wrong, "made": self.made})
        )
        command = ["test_onnx", "--suite", str(write_suite(folder, text)), *self.places(folder), *arguments]
        return main("python -m ci", "", VERBS, command)

    def places(self, folder: Path) -> list[str]:
        return ["--store", str(folder / "store"), "--reports", str(folder / "reports")]

    def agreed(self, folder: Path) -> Mapping[str, Recorded]:
        return load_baseline(folder / "onnx.toml", "wheels", "onnx").programs

    def held(self, folder: Path) -> dict[str, float]:
        """The thresholds of the suite's run."""
        thresholds = programs_of(folder / "onnx.toml")[0].thresholds
        return thresholds.model_dump(exclude_none=True) if thresholds else {}

    def done(self) -> list[str]:
        orders = map(json.loads, (self.folder / "orders.jsonl").read_text().splitlines())
        return [f"{order['do']} {order['precision']} {order['soc']}" for order in orders]

    def report(self, folder: Path) -> Report:
        return Report.read(folder / "reports/test_onnx.json")

    def rules(self, folder: Path) -> set[str]:
        findings = self.report(folder).findings
        return {finding.rule for finding in findings if finding.severity is Severity.ERROR}

    @pytest.mark.parametrize(
        ("crash", "bad"),
        [("compile_context", ["SM8650"]), ("prepare", ["SM8650", "SM8750"])],
    )
    def test_a_crash_concerns_what_needed_the_step(self, tmp_path: Path, crash: str, bad: list[str]) -> None:
        self.wrong = {"do": crash, "soc": "SM8650", "how": "crashes"}
        assert self.stage(tmp_path) == 1
        crashes = [finding for finding in self.report(tmp_path).findings if finding.rule == "onnx-crash"]
        assert [finding.subject for finding in crashes] == [f"net/16a8w/{soc}" for soc in bad]
        assert all("SIGSEGV" in finding.message for finding in crashes)
        counts = [self.report(tmp_path).metrics[name] for name in ("selected", "failed", "cached")]
        assert (self.report(tmp_path).outcome, counts) == (Outcome.FAIL, [2, len(bad), 0])
        # The failure is done again; what passed is not. Nothing that it reads has changed.
        self.wrong = {}
        assert self.stage(tmp_path) == 0
        assert self.report(tmp_path).metrics["cached"] == 2 - len(bad)

    @pytest.mark.parametrize(
        ("words", "how", "rule", "code"),
        [
            ("", "computes", "onnx-timeout", 1),
            ("", "waits", "onnx-machine", 3),
            ("terminate called: std::bad_alloc", "crashes", "onnx-machine", 3),
        ],
    )
    def test_what_the_machine_does_is_no_result_of_a_recorded_case(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        words: str,
        how: str,
        rule: str,
        code: int,
    ) -> None:
        # Other tests run beside this one: what computes does so however little of the processor it gets, and
        # no processor is idle.
        monkeypatch.setattr(trouble, "BUSY", 0.0 if how == "computes" else math.inf)
        monkeypatch.setattr(trouble, "IDLE", math.inf)
        self.wrong = {"do": "compile_context", "soc": "SM8650", "how": how, "words": words}
        limit = ("--timeout", "1")
        assert self.stage(tmp_path, "--accept", *limit, text=RECORDED) == code
        assert self.rules(tmp_path) == {rule}
        agreed = self.agreed(tmp_path)
        assert list(agreed) == ["net/16a8w/SM8750"]
        assert self.stage(tmp_path, *limit, text=RECORDED) == code and self.rules(tmp_path) == {rule}

    def test_what_qnn_refused_before_and_takes_now_is_no_longer_agreed_as_refused(
        self, tmp_path: Path
    ) -> None:
        path = accepted_path(tmp_path / "onnx.toml", "wheels")
        row: Values = {"build_id": "v2.51.0.260929181845", "refused": ["Erf"], "taken": ["Add"]}
        accept(path, lambda accepted: accepted.updated({"onnx/net/16a8w/SM8650": row}))
        self.stage(tmp_path, "--accept")
        recorded = self.agreed(tmp_path)["net/16a8w/SM8650"]
        assert (recorded.refused, recorded.taken, recorded.context_bytes) == ((), (), 50_000)

    def test_a_models_own_error_beside_one_of_the_machine_does_not_make_it_a_verdict(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Where a processor is idle, what waits is the model's own.
        monkeypatch.setattr(trouble, "BUSY", math.inf)
        monkeypatch.setattr(trouble, "IDLE", math.inf)
        self.wrong = {"do": "compile_context", "soc": "SM8650", "how": "waits"}
        self.answers = REFUSES_ERF
        assert self.stage(tmp_path, "--timeout", "1") == 3
        assert self.rules(tmp_path) == {"onnx-machine", "onnx-cpu-node"}

    def test_what_passed_is_remembered_and_judged_by_the_thresholds_of_today(self, tmp_path: Path) -> None:
        for text, code, cached in ((SUITE, 0, 0), (SUITE, 0, 2), (SUITE.replace(" 20,", " 40,"), 1, 0)):
            assert self.stage(tmp_path, text=text) == code
            assert self.report(tmp_path).metrics["cached"] == cached

    def test_a_model_or_sample_of_other_values_is_compiled_again_and_another_trace_is_not(
        self, tmp_path: Path
    ) -> None:
        assert self.stage(tmp_path) == 0
        wanted: list[tuple[dict[str, object], int]] = [
            ({"trace": "net.py:9"}, 2),
            ({"weight": 1}, 0),
            ({SAMPLES: 1}, 0),
            ({CALIBRATION: 1}, 0),
            ({EXPECTED: 1}, 0),
            ({}, 2),
        ]
        for made, cached in wanted:
            self.made = made
            assert self.stage(tmp_path) == 0
            assert self.report(tmp_path).metrics["cached"] == cached, made

    @pytest.mark.parametrize(
        ("answers", "rule"),
        [(REFUSES_ERF, "onnx-cpu-node"), (replace(CONTEXT, near=near(sqnr_db=12.0)), "onnx-accuracy")],
    )
    def test_what_passes_no_more_removes_a_remembered_pass_also_with_no_cache(
        self, tmp_path: Path, answers: CompiledContext | dict[str, object], rule: str
    ) -> None:
        assert self.stage(tmp_path) == 0
        self.answers = answers
        assert self.stage(tmp_path, "--no-cache") == 1 and self.rules(tmp_path) == {rule}
        assert self.stage(tmp_path) == 1 and len(self.done()) == 4

    def test_costs_are_agreed_on_and_held_to_from_then_on(self, tmp_path: Path) -> None:
        assert self.stage(tmp_path, "--accept") == 0
        path = accepted_path(tmp_path / "onnx.toml", "wheels")
        recorded = self.agreed(tmp_path)["net/16a8w/SM8750"]
        assert recorded.context_bytes == 50_000 and (recorded.peak_mb or 0) > 1
        assert (recorded.build_id, recorded.accuracy["sqnr_db"]) == ("v2.51.0.260929181845", 30.0)
        # As the report's page reads it.
        row = rows_of(report_in(tmp_path / "reports/test_onnx.json"), "programs")["net/16a8w/SM8750"]
        assert row.passed and (row.case, row.run, row.precision) == ("net", "16a8w", "16a8w")
        assert (row.figures["sqnr_db"], row.thresholds["sqnr_db"]) == (30.0, 20.0) and row.command
        assert row.costs["context_bytes"] == row.baseline["context_bytes"] == 50_000
        path.write_text(path.read_text().replace("50000", "1234"))
        assert self.stage(tmp_path) == 1
        assert self.rules(tmp_path) == {"cost-context-bytes"}

    def test_a_crash_is_a_result_of_a_recorded_case_and_another_result_is_an_error(
        self, tmp_path: Path
    ) -> None:
        self.wrong = {"do": "compile_context", "soc": "SM8650", "how": "crashes"}
        assert self.stage(tmp_path, "--accept", text=RECORDED) == 0
        agreed = self.agreed(tmp_path)
        assert agreed["net/16a8w/SM8650"].failed == "crash"
        assert "SIGSEGV" in agreed["net/16a8w/SM8650"].message
        assert agreed["net/16a8w/SM8750"].accuracy["reference_sqnr_db"] == 50.0
        assert self.stage(tmp_path, text=RECORDED) == 0
        assert self.report(tmp_path).metrics["cached"] == 1
        self.wrong = {}
        self.answers = replace(CONTEXT, near=near(reference_sqnr_db=40.0))
        assert self.stage(tmp_path, "--no-cache", text=RECORDED) == 1
        assert self.rules(tmp_path) == {"onnx-changed"}
        changed = [finding for finding in self.report(tmp_path).findings if finding.rule == "onnx-changed"]
        assert [finding.subject for finding in changed] == ["net/16a8w/SM8650", "net/16a8w/SM8750"]

    def test_a_result_that_is_not_the_recorded_one_is_done_again(self, tmp_path: Path) -> None:
        assert self.stage(tmp_path, "--accept", text=RECORDED) == 0
        shutil.rmtree(tmp_path / "store")
        self.answers = replace(CONTEXT, near=near(reference_sqnr_db=40.0))
        for _ in range(2):
            assert self.stage(tmp_path, text=RECORDED) == 1
            assert self.report(tmp_path).metrics["cached"] == 0

    @pytest.mark.parametrize(
        ("answers", "rule", "said", "agreed"),
        [
            (
                replace(CONTEXT, near=near(sqnr_db=-4.0, reference_sqnr_db=-3.0)),
                "onnx-wrong",
                "-3.0 dB",
                ((), (), "v2.51.0.260929181845"),
            ),
            (REFUSES_ERF, "onnx-refuses", "does not run on HTP", (("Erf",), ("Add",), "v2.51.0")),
        ],
    )
    def test_wrong_outputs_and_refusals_of_a_recorded_case_are_its_result_and_pass(
        self,
        tmp_path: Path,
        answers: CompiledContext | dict[str, object],
        rule: str,
        said: str,
        agreed: tuple[object, ...],
    ) -> None:
        self.answers = answers
        assert self.stage(tmp_path, "--accept", text=RECORDED) == 0
        rows = self.agreed(tmp_path).values()
        assert {(row.refused, row.taken, row.build_id) for row in rows} == {agreed}
        assert self.stage(tmp_path, text=RECORDED) == 0
        found = [finding for finding in self.report(tmp_path).findings if finding.rule == rule]
        assert len(found) == 2 and said in found[0].message

    def test_less_than_is_required_fails_until_the_suite_says_so(self, tmp_path: Path) -> None:
        demanded = BARE + "thresholds = { sqnr_db = 6.0 }\n"
        self.answers = replace(CONTEXT, near=near(sqnr_db=7.0))
        assert self.stage(tmp_path, text=BARE) == 1
        assert self.rules(tmp_path) == {"onnx-accuracy"}
        assert self.stage(tmp_path, "--accept", text=BARE) == 1
        (refusal,) = self.report(tmp_path).findings
        assert "SM8650 (sqnr_db 7)" in refusal.message and "by hand" in refusal.fix
        assert not self.agreed(tmp_path)
        assert self.stage(tmp_path, "--accept", text=demanded) == 0

    def test_without_the_provider_nothing_counts_as_passed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        assert self.stage(tmp_path) == 3
        assert self.report(tmp_path).outcome is Outcome.ERROR
