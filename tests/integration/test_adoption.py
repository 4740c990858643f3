"""Another repository gates its own models with the workflow that the README shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.rehearsals import repository
from tests.support.rehearsed import Rehearsed, example, rehearse

pytestmark = [pytest.mark.heavy, pytest.mark.whole]

SUITE = """
    schema = 1

    [case.sums]
    factory = "sums:net"
    {budget}

    [[case.sums.run]]
    scheme = "fp16"
    socs = ["SM8550"]
    tags = ["pr"]
    thresholds = {{ cosine = 0.99 }}
    """
MODEL = """
    import torch
    import words


    class Sums(torch.nn.Module):
        def forward(self, x):
            return {formula} * words.FACTOR


    def net():
        return Sums().eval(), lambda generator: (torch.rand(1, 32, generator=generator) + 1,)
    """
ATTEST = ("attest / statement", "attest / attest")
WORDS = "FACTOR = 2.0\n"


def adopter(root: Path, formula: str = "(x + x)", attest: str = "") -> Path:
    """A repository with one small model, its suite, and the README's workflow."""
    workflow = example(ROOT / "README.md", "name: QNN\n")
    if attest:
        workflow = f"{workflow}      keep-programs: true\n{attest}"
    return repository(
        root,
        {
            ".github/workflows/qnn.yml": workflow,
            "ci/models.toml": SUITE.format(budget="cpu_budget = 0"),
            "ci/sums.py": MODEL.format(formula=formula),
            "ci/words.py": WORDS,
        },
    )


@pytest.fixture(scope="module")
def green(tmp_path_factory: pytest.TempPathFactory) -> Rehearsed:
    scratch = tmp_path_factory.mktemp("green")
    root = adopter(scratch / "models", attest=example(ROOT / "docs" / "github.md", "  attest:\n"))
    return rehearse(scratch / "reports", "qnn", "--root", str(root), "--event", "push")


def test_the_readmes_ten_lines_gate_another_repositorys_models(green: Rehearsed) -> None:
    jobs = (*(f"qnn / {name}" for name in ("plan", "programs", "remember", "verdict")), *ATTEST)
    expected = dict.fromkeys(jobs, "success")
    assert (green.code, green.results()) == (0, expected), green.output


def test_its_models_are_lowered_for_the_chips_that_it_named(green: Rehearsed) -> None:
    log = green.log("qnn / programs")
    for stage in ("test_lowering", "test_emulator"):
        assert f"{stage}: pass" in log
    assert "sums/fp16/SM8650" in log
    assert "sums/fp16/SM8750" in log
    assert "SM8550" not in log


def test_its_programs_are_attested_by_their_digests(green: Rehearsed) -> None:
    statement, attest = map(green.log, ATTEST)
    assert "would attest sums/fp16/SM8650.pte" in attest
    assert re.search(r"[0-9a-f]{64}  sums/fp16/SM8750\.pte", statement)


def test_nothing_about_the_toolkit_itself_is_run_there(green: Rehearsed) -> None:
    summary = green.jobs["qnn / plan"]["summary"]
    assert "| lint | left out&#58; it is about the toolkit, and not named in stages |" in summary


def test_its_model_that_leaves_the_npu_makes_its_verdict_red(green: Rehearsed, tmp_path: Path) -> None:
    root = adopter(tmp_path / "models", "torch.erf(x)")
    red = rehearse(tmp_path / "reports", "qnn", "--root", str(root))
    assert red.code == 1, red.output
    assert red.results()["qnn / programs"] == "failure"
    assert red.results()["qnn / verdict"] == "failure"
    assert any("lowering-cpu-operator" in one for one in red.jobs["qnn / programs"]["annotations"])
