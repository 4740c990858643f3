"""The suite's model, and what the shipped suite promises to cover."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ci.lanes.executorch.suite import SHIPPED, ExecutorchProgram, all_programs, choose, programs_of
from ci.lanes.onnx.suite import SHIPPED as ONNX
from ci.lanes.onnx.suite import programs_of as programs_of_onnx
from ci.suite.accepted import derive_thresholds, load_baseline, load_tolerances
from ci.suite.accepting import accepted_figures
from ci.suite.precision import SCHEMES
from provisioning.base.errors import ManifestError, UsageError
from provisioning.base.settings import ROOT
from provisioning.known_faults import load_fixes

NIGHTLY = ROOT / "lab/suites/models.toml"
CASES_OF_FIXES = {
    "erf-on-cpu": "op_gelu",
    "softmax-on-cpu": "op_softmax_of_columns",
    "sort-on-cpu": "op_sort_of_columns",
    "cumprod-on-cpu": "op_cumprod_as_sum",
    "embedding-bag-on-cpu": "op_embedding",
    "repeated-batch-on-cpu": "op_grouped_attention",
    "repeated-heads-on-cpu": "op_grouped_attention",
    "assignment-on-cpu": "op_where",
    "causal-mask-on-cpu": "bert_layer",
    "cosine-on-cpu": "op_cosine",
    "deviation-on-cpu": "op_roots",
    "hypot-on-cpu": "op_roots",
    "reduced-to-a-scalar": "op_total",
}
"""By the rule of a fix, the case with what it says, of the default suite or of every night's."""

MINE = """\
schema = 2

[case.mine]
factory = "mine:net"

[[case.mine.run]]
lane = "executorch"
precision = "8a8w"
socs = ["SM8650", "SM8750"]
tags = ["pr"]
thresholds = { top1 = 0.99 }
"""


def _suite(tmp_path: Path, text: str = MINE) -> Path:
    path = tmp_path / "suite.toml"
    path.write_text(text)
    return path


class TestModel:
    def test_a_run_becomes_a_program_for_each_chip(self, tmp_path: Path) -> None:
        names = [program.name for program in programs_of(_suite(tmp_path))]
        assert names == ["mine/8a8w/SM8650", "mine/8a8w/SM8750"]

    def test_chips_asked_for_take_the_place_of_the_runs_own(self, tmp_path: Path) -> None:
        assert [program.soc for program in programs_of(_suite(tmp_path), ["SM8850"])] == ["SM8850"]

    def test_an_input_may_be_one_value(self, tmp_path: Path) -> None:
        text = MINE.replace("factory", "inputs = [{ shape = [1], low = 1 }]\nfactory", 1)
        assert programs_of(_suite(tmp_path, text))[0].case.inputs[0].low == 1.0

    @pytest.mark.parametrize(
        ("old", "new", "says"),
        [
            ('"SM8750"]', '"SM9999"]', "SM9999"),
            ("factory =", 'backend = "dsp"\nfactory =', "backend"),
            ("factory =", "inputs = [{ shape = [1], low = 1.01 }]\nfactory =", "low"),
            (
                "factory =",
                'inputs = [{ shape = [1], dtype = "int32", low = 0.5 }]\nfactory =',
                "low",
            ),
        ],
    )
    def test_what_makes_no_sense_is_refused_by_name(
        self, tmp_path: Path, old: str, new: str, says: str
    ) -> None:
        with pytest.raises(ManifestError, match=re.escape(says)):
            programs_of(_suite(tmp_path, MINE.replace(old, new)))

    def test_two_suites_may_not_name_one_program(self, tmp_path: Path) -> None:
        one, other = _suite(tmp_path), tmp_path / "other.toml"
        other.write_text(MINE)
        with pytest.raises(ManifestError, match="mine"):
            all_programs([one, other])


class TestChoice:
    @pytest.fixture
    def programs(self, tmp_path: Path) -> list[ExecutorchProgram]:
        return programs_of(_suite(tmp_path))

    @pytest.mark.parametrize("word", ["sm8750", "ine*8750", "mine and not (8650 or 8550)"])
    def test_words_and_patterns_find_a_program(self, programs: list[ExecutorchProgram], word: str) -> None:
        assert [program.soc for program in choose(programs, words=[word])] == ["SM8750"]

    @pytest.mark.parametrize("wrong", [{"tags": ["pr", "nigthly"]}, {"words": ["mine", "typo"]}])
    def test_a_value_that_matches_nothing_is_an_error_beside_one_that_does(
        self, programs: list[ExecutorchProgram], wrong: dict[str, list[str]]
    ) -> None:
        ((_, (_, value)),) = wrong.items()
        with pytest.raises(UsageError, match=value):
            choose(programs, **wrong)


class TestShipped:
    programs = all_programs([])
    pr = choose(programs, tags=["pr"])

    def test_a_pull_request_meets_every_scheme(self) -> None:
        assert {program.run.precision for program in self.pr} == set(SCHEMES) - {"qdq"}

    @pytest.mark.parametrize(
        ("suite", "lane", "programs", "costs"),
        [
            (SHIPPED, "executorch", programs, ("pte_bytes",)),
            (ONNX, "onnx", programs_of_onnx(ONNX), ("context_bytes", "ddr_read")),
            (NIGHTLY, "executorch", programs_of(NIGHTLY), ("pte_bytes",)),
            (NIGHTLY, "onnx", programs_of_onnx(NIGHTLY), ("context_bytes", "ddr_read")),
        ],
    )
    def test_every_program_has_a_baseline_and_thresholds_are_it_less_the_margin(
        self, suite: Path, lane: str, programs: Sequence[Any], costs: tuple[str, ...]
    ) -> None:
        recorded, margin = (
            load_baseline(suite, "wheels", lane).programs,
            load_tolerances().sqnr_margin_db,
        )
        assert {program.name for program in programs} == set(recorded)
        for program in programs:
            run, own = program.run, recorded[program.name]
            assert all(getattr(own, cost) for cost in costs)
            assert own.accuracy
            if accepted := program.accepted.model_dump(exclude_none=True):
                measured = [recorded[other.name].accuracy for other in programs if other.run is run]
                wanted = derive_thresholds(accepted_figures(program, measured), measured, margin)
                assert accepted == wanted and not program.demanded, program.name

    @pytest.mark.parametrize(
        ("schemes", "least"),
        [
            ({"fp16"}, 38.0),
            ({"16a16w", "16a8w", "fp16a8w"}, 16.0),
            ({"8a8w"}, 14.0),
            ({"8a4w", "16a4w", "16a4w_block"}, 13.0),
        ],
    )
    def test_a_threshold_means_that_the_model_still_works(self, schemes: set[str], least: float) -> None:
        thresholds = [program.thresholds for program in self.programs if program.run.precision in schemes]
        assert thresholds and min(threshold.sqnr_db or 0 for threshold in thresholds if threshold) >= least

    def test_every_fix_of_an_operator_on_the_cpu_has_a_case_without_anything_there_or_a_net_to_rewrite(
        self,
    ) -> None:
        files = ("support/repaired_nets.py", "integration/test_rewrites.py")
        nets = "".join((ROOT / "tests" / name).read_text(encoding="utf-8") for name in files)
        programs = [*self.programs, *programs_of(NIGHTLY)]
        for fix in load_fixes():
            case = CASES_OF_FIXES.get(fix.rule)
            by_rewrite = fix.rewrite and f'"{fix.rewrite}"' in nets and not case
            if not fix.operators or fix.where == "builder" or by_rewrite:
                continue
            proofs = [program for program in programs if program.case_name == case]
            assert proofs and all(program.cpu_budget == 0 for program in proofs)
