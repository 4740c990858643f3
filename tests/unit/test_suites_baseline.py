"""Baselines: what was agreed on, program by program, and with which build."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from ci.pipeline.accuracy import rounded
from ci.pipeline.baseline import Baseline, load_baseline
from provisioning.base.errors import CheckFailed
from provisioning.base.settings import MANIFESTS


class TestAgreeing:
    """To costs and accuracy, each program with the build that it is of."""

    LOST: ClassVar = {"net/8a8w/SM8650": {"sqnr_db": 20.0, "top1": 0.0}}

    def agreed(self, tmp_path: Path, **fields: object) -> Baseline:
        values = {"build_id": "v1", "ddr_read": 100, "accuracy": {"top1": 0.9}, **fields}
        return Baseline(tmp_path / "b.json").with_values({"net/8a8w/SM8650": values})

    @pytest.mark.parametrize("top1", [0.0, 0.85])
    def test_a_lost_top1_needs_a_reason(self, tmp_path: Path, top1: float) -> None:
        figures = {"net/8a8w/SM8650": {"top1": top1}}
        with pytest.raises(CheckFailed, match="net/8a8w/SM8650") as caught:
            self.agreed(tmp_path).with_reasons(figures, "", "nox -s test_emulator -- --accept")
        assert caught.value.fix.endswith("nox -s test_emulator -- --accept --reason TEXT")

    def test_the_reason_is_kept_and_asked_for_once(self, tmp_path: Path) -> None:
        baseline = self.agreed(tmp_path).with_reasons(self.LOST, "two scores are alike", "again")
        for build in ("v1", "v2"):
            values = {"build_id": build, "accuracy": self.LOST["net/8a8w/SM8650"]}
            baseline = baseline.with_values({"net/8a8w/SM8650": values})
            baseline.write()
            baseline = load_baseline(baseline.path).with_reasons(self.LOST, "", "again")
        assert baseline.programs["net/8a8w/SM8650"].reason == "two scores are alike"
        better = baseline.with_reasons({"net/8a8w/SM8650": {"top1": 1.0}}, "", "again")
        assert better.programs["net/8a8w/SM8650"].reason == ""

    def test_the_reason_of_a_share_with_endless_digits_stays(self, tmp_path: Path) -> None:
        program, share = "net/8a8w/SM8650", {"top1": 1 / 3}
        baseline = self.agreed(tmp_path).with_reasons({program: share}, "two scores are alike", "again")
        baseline = baseline.with_values({program: {"build_id": "v1", "accuracy": rounded(share)}})
        baseline.write()
        again = load_baseline(baseline.path).with_reasons({program: share}, "", "again")
        assert again.programs[program].reason == "two scores are alike"

    def test_a_share_that_an_older_baseline_rounded_up_is_not_lost(self, tmp_path: Path) -> None:
        older = self.agreed(tmp_path, accuracy={"top1": 0.666667})
        again = older.with_reasons({"net/8a8w/SM8650": {"top1": 2 / 3}}, "", "again")
        assert again.programs == older.programs

    def low(self, baseline: Baseline, reason: str = "", sqnr_db: float = 7.5) -> Baseline:
        figures = {"net/8a8w/SM8650": {"sqnr_db": sqnr_db, "top1": 0.95}}
        low = {"net/8a8w/SM8650": ["sqnr_db"]}
        return baseline.with_reasons(figures, reason, "again", low)

    def test_a_threshold_below_what_is_required_needs_a_reason(self, tmp_path: Path) -> None:
        with pytest.raises(CheckFailed, match="net/8a8w/SM8650") as caught:
            self.low(self.agreed(tmp_path))
        assert caught.value.fix.endswith("again --reason TEXT")

    def test_its_reason_is_kept_until_it_is_lower_still(self, tmp_path: Path) -> None:
        self.low(self.agreed(tmp_path), "2-bit weights").write()
        baseline = self.low(load_baseline(tmp_path / "b.json"), sqnr_db=6.6)
        assert baseline.programs["net/8a8w/SM8650"].reason == "2-bit weights"
        with pytest.raises(CheckFailed):
            self.low(baseline, sqnr_db=6.4)

    def test_a_low_figure_that_was_accepted_keeps_its_reason(self, tmp_path: Path) -> None:
        given = self.low(self.low(self.agreed(tmp_path), "2-bit weights"))
        assert given.programs["net/8a8w/SM8650"].reason == "2-bit weights"

    def test_what_another_build_gave_does_not_stay_beside_what_this_one_gives(self, tmp_path: Path) -> None:
        baseline = self.agreed(tmp_path, peak_mb=7)
        changed = baseline.with_values({"net/8a8w/SM8650": {"build_id": "v2", "ddr_read": 5}})
        recorded = changed.programs["net/8a8w/SM8650"]
        assert (recorded.ddr_read, recorded.accuracy, recorded.peak_mb) == (5, {}, 7)

    @pytest.mark.parametrize("lane", ["executorch", "onnx"])
    def test_every_lost_top1_and_low_figure_of_ours_has_its_reason(self, lane: str) -> None:
        programs = load_baseline(MANIFESTS / "baselines" / "models-wheels.json", lane).programs
        lost = [
            each
            for each in programs.values()
            if each.accuracy.get("top1") == 0 or each.accuracy.get("sqnr_db", 99) < 10
        ]
        assert lost or lane == "onnx"
        assert all(each.reason for each in lost) and all(each.build_id for each in programs.values())
