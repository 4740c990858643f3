"""Another repository gates its own models with the workflow that the README shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from provisioning.base.settings import ROOT
from tests.support.examples import example
from tests.support.repositories import IDENTITY, repository
from tests.support.scripts import locked_environment
from tests.support.wheels import SRC_PROJECT
from tests.support.workflows.run import run_workflow

pytestmark = pytest.mark.heavy

CASE = """\
    [case.{name}]
    factory = "mynet.{name}:net"
    cpu_budget = 0

    [[case.{name}.run]]
    lane = "executorch"
    precision = "fp16"
    socs = ["SM8550"]
    tags = ["pr"]
    thresholds = {{ cosine = 0.99 }}
    """
MODEL = """\
    import torch
    from einops import rearrange


    class Net(torch.nn.Module):
        def forward(self, x):
            return {formula}


    def net():
        return Net().eval(), lambda generator: (torch.rand(1, 4, 2, 4, generator=generator) + 1,)
    """
SUMS, HALVES = "src/mynet/sums.py", "src/mynet/halves.py"
ATTEST = ("attest / statement", "attest / attest")


def adopter(folder: Path, more: str = "") -> Path:
    """A repository with a src/ layout, packages of its own, two small models and the README's workflow."""
    suite = 'schema = 2\nproject = ".."\n' + "".join(CASE.format(name=name) for name in ("sums", "halves"))
    files = {
        ".github/workflows/qnn.yml": example(ROOT / "README.md", "name: QNN\n") + more,
        "ci/models.toml": suite,
        "pyproject.toml": SRC_PROJECT,
        "requirements.txt": "einops==0.8.1\n",
        "src/mynet/__init__.py": "",
        SUMS: MODEL.format(formula="x + x"),
        HALVES: MODEL.format(formula='rearrange(x, "b c h w -> b (c h w)") / 2'),
    }
    return repository(folder, files)


STAND_IN = """\
case "$*" in
  "-m ci gate "*)
    shift 3
    echo "the gate of $QNN_CI_SOC: $*"
    exec "{python}" -m tests.support.gate_stage gate passes-one fails-one --reports "$QNN_CI_REPORTS" "$@" ;;
esac
exec "{python}" "$@"
"""
"""This Python for all sessions of the jobs; the session `gate` has stages that take no time."""


def test_the_readmes_ten_lines_hand_the_suite_to_a_gate_that_decides_the_pull_request(tmp_path: Path) -> None:
    environments, sdk = tmp_path / "environments", tmp_path / "hollow"
    for lock in (ROOT / "manifests" / "locks").glob("*.txt"):
        locked_environment(environments, lock.stem, STAND_IN.format(python=sys.executable))
    (sdk / "include" / "QNN").mkdir(parents=True)
    (sdk / "include" / "QNN" / "QnnCommon.h").write_text("#define QNN_API_VERSION_MAJOR 2\n")
    variables = {"QNN_CI_ENVIRONMENTS": str(environments), "QNN_SDK_ROOT": str(sdk)}
    root = adopter(tmp_path / "models", "      comment: true\n")
    done = run_workflow(tmp_path / "run", "qnn", root, env=variables)
    assert done.results() == {
        "qnn / plan": "success",
        "qnn / programs": "failure",
        "qnn / remember": "skipped",
        "qnn / changes": "success",
        "qnn / verdict": "failure",
    }, done.failures()
    assert "uploaded 1 files as qnn-ci-comment" in done.log("qnn / changes")
    programs = done.jobs["qnn / programs"]
    log = done.log(programs.name)
    assert "the gate of SM8650,SM8750: --target x86_64-linux --suite ../source/ci/models.toml" in log
    (error,) = [one for one in programs.annotations if one.startswith("error: ")]
    assert "fails-one" in error and "subject" in error
    assert re.search(r"files as reports-wheels-models-\w{8}-programs", log)


@pytest.mark.whole
def test_the_readmes_ten_lines_gate_another_repositorys_models(tmp_path: Path) -> None:
    attest = example(ROOT / "docs" / "github.md", "  attest:\n")
    more = "      requirements: requirements.txt\n      keep-programs: true\n"
    root = adopter(tmp_path / "models", more + attest)
    # As a push to main, which fills the cache.
    cache = tmp_path / "cache"
    green = run_workflow(tmp_path / "green", "qnn", root, event="push", cache=cache)
    jobs = (*(f"qnn / {name}" for name in ("plan", "programs", "remember", "verdict")), *ATTEST)
    expected = dict.fromkeys(jobs, "success") | {"qnn / changes": "skipped"}
    assert green.results() == expected, green.failures()
    log = green.log("qnn / programs")
    assert "test_lowering: pass" in log and "test_emulator: pass" in log
    assert "sums/fp16/SM8650" in log and "sums/fp16/SM8750" in log and "SM8550" not in log
    statement, attest = map(green.log, ATTEST)
    assert "would attest sums/fp16/SM8650.pte" in attest
    assert re.search(r"[0-9a-f]{64}  sums/fp16/SM8750\.pte", statement)
    summary = green.jobs["qnn / plan"].summary
    assert "| lint | left out&#58; it is about the toolkit, and not named in stages |" in summary

    # As a pull request that changes one of the models, which leaves the NPU by that.
    file = root / SUMS
    file.write_text(file.read_text().replace("x + x", "torch.erf(x)"))
    subprocess.run(["git", *IDENTITY, "commit", "--quiet", "--all", "-m", "x"], cwd=root, check=True)
    red = run_workflow(tmp_path / "red", "qnn", root, cache=cache)
    assert red.results() == {
        "qnn / plan": "success",
        "qnn / programs": "failure",
        "qnn / remember": "skipped",
        "qnn / changes": "skipped",
        "qnn / verdict": "failure",
        "attest": "skipped",
    }, red.failures()
    errors = [one for one in red.jobs["qnn / programs"].annotations if "lowering-cpu-operator" in one]
    assert errors and all("sums/" in one for one in errors)
    # The model that did not change is taken from the cache.
    log = red.log("qnn / programs")
    assert re.search(r": 2 cached \(2 from GitHub's cache of \w+\), 2 to do", log)
    assert f"2 because {SUMS} changed" in log
