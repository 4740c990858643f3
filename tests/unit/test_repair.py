"""What `repair` keeps of a model's rewrites, by what the emulator gives."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ci.pipeline import repair
from ci.pipeline.compile_flags import PYTORCH
from ci.pipeline.model_report import ModelReport
from ci.pipeline.options import Compiling, OneModel, WorkOptions
from ci.pipeline.repair import ModelResult
from ci.pipeline.rewriting import RewriteChoice, Rewritten, RewrittenPlace
from provisioning.base.findings import Finding, Severity
from provisioning.base.stage_run import StageRun

HELPS, HARMS = RewrittenPlace("one", ("helps",), "", "node"), RewrittenPlace("other", ("harms",), "", "node")
WRONG = (Finding("compile-accuracy", Severity.ERROR, "net", "too far", ""),)
RED = ModelResult(figures={"sqnr_db": 2.0}, wrong=WRONG)


def green(sqnr_db: float) -> ModelResult:
    return ModelResult(figures={"sqnr_db": sqnr_db})


class Taken:
    """A model of which two rewrites are possible; each set of them is a file of its own."""

    def __init__(self, folder: Path) -> None:
        selection: Any = SimpleNamespace(soc="SM8650", store=folder / "store")
        self.model = OneModel(selection, "net.py:make", PYTORCH, WorkOptions(), "16a8w")
        self.how = Compiling(folder / "out")
        self.folder = folder

    def rewritten(self, asked: RewriteChoice) -> Rewritten:
        made = [change for change in (HELPS, HARMS) if asked.rules is None or change.rules[0] in asked.rules]
        path = self.folder / f"{'-'.join(change.rules[0] for change in made)}.pt2"
        path.write_text("")
        return Rewritten(made, path)


@pytest.mark.parametrize(
    ("figures", "kept", "code"),
    [
        ({"net": RED, "helps-harms": green(40), "helps": RED, "harms": RED}, ["helps", "harms"], 0),
        (
            {
                "net": RED,
                "helps-harms": ModelResult("dies"),
                "helps": green(40),
                "harms": ModelResult("dies"),
            },
            ["helps"],
            0,
        ),
        ({"net": green(30), "helps-harms": green(10), "helps": green(5), "harms": green(6)}, [], 0),
        ({"net": ModelResult("dies"), "helps-harms": RED, "helps": RED, "harms": RED}, ["helps", "harms"], 1),
    ],
)
def test_a_rewrite_that_is_worse_on_the_emulator_is_refused_and_the_others_are_kept(
    figures: dict[str, ModelResult],
    kept: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(repair, "lane_model", lambda model, how: SimpleNamespace(model=model))
    monkeypatch.setattr(repair, "measured", lambda taken: figures[Path(taken.model.typed).stem])
    report = ModelReport("net", StageRun.as_typed("repair", "wheels", "host"))
    taken: Any = Taken(tmp_path)
    assert repair.repair_model(taken, RewriteChoice(), report) == code
    written = tmp_path / "out" / "net-repaired.txt"
    assert [rule for rule in ("helps", "harms") if written.is_file() and rule in written.read_text()] == kept
    refused = {"helps", "harms"}.difference(kept)
    assert ("on the emulator" in capsys.readouterr().out) is bool(refused)
