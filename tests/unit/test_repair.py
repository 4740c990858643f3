"""What `repair` keeps of a model's rewrites, by what the emulator gives."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ci.explain import repair
from ci.model_commands.compile import compile_precisions
from ci.one_model.model import OneModel
from ci.one_model.product import Outcome, Product, judge_products
from ci.one_model.report import ModelReport
from provisioning.base.errors import UsageError
from provisioning.base.stage_run import StageRun
from tests.support.stand_in_lane import RED, StandInLane, green


def report_of(model: OneModel) -> ModelReport:
    return ModelReport("net", model, StageRun("repair", "wheels", "host"))


def repair_one(lane: StandInLane) -> int:
    return repair.repair_model(lane.lane, lane.model, None, report_of(lane.model))


def test_samples_replace_those_of_an_earlier_repair_and_no_folder_of_the_users(tmp_path: Path) -> None:
    lane = StandInLane(tmp_path, gives=lambda model: RED if model.typed == "net.py:make" else green(40))
    lane.samples, own = tmp_path / "drawn", tmp_path / "out" / "net-repaired-samples"

    def repaired(name: str) -> int:
        assert lane.samples
        shutil.rmtree(lane.samples, ignore_errors=True)
        lane.samples.mkdir()
        (lane.samples / name).touch()
        return repair_one(lane)

    own.mkdir(parents=True)
    (own / "recorded.pt").touch()
    with pytest.raises(UsageError):
        repaired("0.pt")
    assert [path.name for path in own.iterdir()] == ["recorded.pt"]
    shutil.rmtree(own)
    assert (repaired("0.pt"), repaired("1.pt")) == (0, 0)
    assert [path.name for path in own.iterdir()] == ["1.pt"]


def alike(share: float) -> Outcome:
    return replace(RED, figures={"agreement": share})


@pytest.mark.parametrize(
    ("figures", "kept", "code"),
    [
        ({"net": RED, "helps-harms": green(40), "helps": RED, "harms": RED}, ["helps", "harms"], 0),
        (
            {
                "net": RED,
                "helps-harms": Outcome("dies"),
                "helps": green(40),
                "harms": Outcome("dies"),
            },
            ["helps"],
            0,
        ),
        ({"net": green(30), "helps-harms": green(10), "helps": green(5), "harms": green(6)}, [], 0),
        # Harmless alone, and not together.
        (
            {"net": green(40), "helps-harms": green(30), "helps": green(42), "harms": green(42)},
            ["helps"],
            0,
        ),
        ({"net": Outcome("dies"), "helps-harms": RED, "helps": RED, "harms": RED}, ["helps"], 1),
        # Nothing is worse for it, and nothing better.
        ({"net": green(40), "helps-harms": green(41), "helps": green(41), "harms": green(39)}, [], 0),
        ({"net": green(20), "helps-harms": green(40), "helps": green(40), "harms": green(20)}, ["helps"], 0),
        (
            {"net": Outcome("one"), "helps-harms": Outcome("other"), "helps": Outcome("other")},
            ["helps"],
            1,
        ),
        # Each gains little, and together they gain something.
        (
            {"net": green(40), "helps-harms": green(41.6), "helps": green(40.8), "harms": green(40.8)},
            ["helps"],
            0,
        ),
        # Whole numbers have no dB.
        (
            {"net": alike(0.2), "helps-harms": alike(0.8), "helps": alike(0.8), "harms": alike(0.2)},
            ["helps"],
            1,
        ),
    ],
)
def test_a_rewrite_that_is_no_better_on_the_emulator_is_refused_and_the_others_are_kept(
    figures: dict[str, Outcome],
    kept: list[str],
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lane = StandInLane(tmp_path, gives=lambda model: figures[Path(model.typed).stem])
    report = report_of(lane.model)
    assert repair.repair_model(lane.lane, lane.model, None, report) == code
    assert len(report.stage.findings) == code
    written = tmp_path / "out" / "net-repaired.txt"
    assert [rule for rule in ("helps", "harms") if written.is_file() and rule in written.read_text()] == kept
    refused, printed = {"helps", "harms"}.difference(kept), capsys.readouterr().out
    assert ("on the emulator" in printed) is bool(refused)
    following = "compile" if code == 0 else "audit" if figures["-".join(kept)].error else "tune"
    assert re.findall(r"^next: (?:nox -s|qnn-ci) (\w+)", printed, re.MULTILINE) == [following] * bool(kept)


def test_one_wrong_program_of_several_is_the_exit_code_and_in_the_report(tmp_path: Path) -> None:
    report = report_of(StandInLane(tmp_path).model)
    assert judge_products([Product({}), Product({}, outcome=RED)], report) == 1
    assert [finding.rule for finding in report.stage.findings] == ["model-failed"]
    assert judge_products([Product({})], report_of(StandInLane(tmp_path).model)) == 0


def test_a_precision_that_gives_no_program_is_the_exit_code_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for failing, code in (("16a8w", 1), ("8a8w", 1), ("none", 0)):

        def gives(model: OneModel, failing: str = failing) -> Outcome:
            return Outcome("it dies") if model.precision == failing else green(40)

        lane = StandInLane(tmp_path, gives=gives)
        assert compile_precisions(lane.lane, lane.model, ["16a8w", "8a8w"], None) == code
