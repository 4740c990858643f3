"""Another repository gates its own models with the workflow that the README shows."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ci.engine.inputs import key_of
from provisioning.base.settings import ROOT
from tests.support.cache_machines import OURS, pems
from tests.support.examples import example
from tests.support.repositories import IDENTITY, repository
from tests.support.scripts import locked_environment
from tests.support.wheels import SRC_PROJECT
from tests.support.workflows.machine import machine
from tests.support.workflows.run import ANNOTATION, JobResult, failures, results, run_gate

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
KEYS = """\
      public-keys: ${{ vars.QNN_CI_PUBLIC_KEYS }}
    secrets:
      QNN_CI_SIGNING_KEY: ${{ secrets.QNN_CI_SIGNING_KEY }}
"""
SUMS, HALVES = "src/mynet/sums.py", "src/mynet/halves.py"


def adopter(folder: Path, more: str = "") -> Path:
    """A repository with a src/ layout, packages of its own, two small models and the README's workflow, with
    `more` at its end."""
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
    exec "{python}" -m tests.support.gate_stage gate {stages} --reports "$QNN_CI_REPORTS" "$@" ;;
esac
exec "{python}" "$@"
"""
"""This Python for all sessions of the jobs; the session `gate` has stages that take no time."""


def stand_ins(tmp_path: Path, *stages: str) -> dict[str, str]:
    """The environment of jobs whose gate has these stages."""
    environments, sdk = tmp_path / "environments", tmp_path / "hollow"
    program = STAND_IN.format(python=sys.executable, stages=" ".join(stages))
    for lock in (ROOT / "manifests" / "locks").glob("*.txt"):
        locked_environment(environments, lock.stem, program)
    (sdk / "include" / "QNN").mkdir(parents=True)
    (sdk / "include" / "QNN" / "QnnCommon.h").write_text("#define QNN_API_VERSION_MAJOR 2\n")
    return {"QNN_CI_ENVIRONMENTS": str(environments), "QNN_SDK_ROOT": str(sdk)}


def test_the_readmes_ten_lines_hand_the_suite_to_a_gate_that_decides_the_pull_request(tmp_path: Path) -> None:
    env = stand_ins(tmp_path, "passes-one", "fails-one")
    models = adopter(tmp_path / "models", "      comment: true\n")
    with machine(tmp_path / "run", models, env=env) as github:
        jobs = run_gate(github)
    assert results(jobs) == {
        "plan": "success",
        "programs": "failure",
        "changes": "success",
        "verdict": "failure",
    }, failures(jobs)
    assert "uploaded 1 files as qnn-ci-comment" in jobs["changes"].log
    log = jobs["programs"].log
    assert "the gate of SM8650,SM8750: --target x86_64-linux --suite ../source/ci/models.toml" in log
    (error,) = [line for line in ANNOTATION.findall(log) if line.startswith("::error")]
    assert "fails-one" in error and "subject" in error
    assert re.search(r"files as reports-wheels-models-\w{8}-programs", log)


@dataclass
class GitHub:
    """A repository whose default branch signs what is remembered, and GitHub's cache."""

    folder: Path
    root: Path
    count: int = 0

    def run(self, event: str) -> dict[str, JobResult]:
        public, secret = pems(OURS)
        self.count += 1
        with machine(
            self.folder / str(self.count),
            self.root,
            event=event,
            cache=self.folder / "cache",
            variables={"QNN_CI_PUBLIC_KEYS": public},
            # Without a cache of this machine's, as on a runner of GitHub's.
            env={"UV_CACHE_DIR": None},
        ) as github:
            return run_gate(github, secrets={"QNN_CI_SIGNING_KEY": secret})

    def commit(self, file: str, true: str, other: str) -> None:
        path = self.root / file
        assert true in path.read_text()
        path.write_text(path.read_text().replace(true, other))
        subprocess.run(["git", *IDENTITY, "commit", "--quiet", "--all", "-m", "x"], cwd=self.root, check=True)

    def change(self, kind: str, change: Callable[[Path], None]) -> None:
        """Change the newest cache of a kind, as whoever may write it can."""
        caches = (self.folder / "cache").glob(f"*/*/qnn-ci-{kind}-*")
        newest = max(caches, key=lambda file: file.stat().st_mtime_ns)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            subprocess.run(["tar", "-xpf", newest], cwd=folder, check=True)
            change(Path(folder))
            subprocess.run(["tar", "-cf", newest, "."], cwd=folder, check=True)


def forge_figures(memo: Path) -> None:
    """999 dB for all, with each entry's digest right."""
    forged = 0
    for path in memo.glob("*/??/*/*.json"):
        whole = json.loads(path.read_text())
        text, count = re.subn(r'("sqnr_db": )[-\d.e]+', r"\g<1>999", json.dumps(whole.get("document")))
        if count:
            document = json.loads(text)
            path.write_text(json.dumps({"digest": key_of(document), "document": document}))
            forged += count
    assert forged


def forge_a_library(store: Path) -> None:
    """One byte of a library, and the inventory that vouches for it."""
    (library, *_) = store.glob("trees/*/**/libQnnHtp.so")
    content = bytearray(library.read_bytes())
    content[-1] ^= 1
    library.chmod(0o644)
    library.write_bytes(content)
    tree = store / "trees" / library.relative_to(store / "trees").parts[0]
    inventory = tree.with_name(f"{tree.name}.json")
    items = json.loads(inventory.read_text())
    (item,) = [item for item in items["items"] if library == tree / item["path"]]
    item["sha256"] = hashlib.sha256(content).hexdigest()
    inventory.write_text(json.dumps(items))


def forge_a_wheel(wheels: Path) -> None:
    (wheel,) = wheels.glob("executorch/executorch-*.whl")
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("forged.py", "figure = 999")


@pytest.mark.whole
def test_the_readmes_ten_lines_gate_another_repositorys_models_and_no_forged_cache_makes_them_pass(
    tmp_path: Path,
) -> None:
    more = "      requirements: requirements.txt\n" + KEYS
    github = GitHub(tmp_path, adopter(tmp_path / "models", more))
    # A push to main fills the cache.
    green = github.run("push")
    expected = dict.fromkeys(("plan", "programs", "remember", "verdict"), "success")
    assert results(green) == expected, failures(green)
    log = green["programs"].log
    assert "test_lowering: pass" in log and "test_emulator: pass" in log
    assert "sums/fp16/SM8650" in log and "sums/fp16/SM8750" in log and "SM8550" not in log
    assert re.search(r"signed \d+ files", green["remember"].log)
    assert "| lint | left out&#58; it is about the toolkit, and not named in stages |" in green["plan"].log

    # A pull request changes one of the models, which leaves the NPU by that.
    github.commit(SUMS, "x + x", "torch.erf(x)")
    red = github.run("pull_request")
    refused = {"plan": "success", "programs": "failure", "verdict": "failure"}
    assert results(red) == refused, failures(red)
    log = red["programs"].log
    errors = [line for line in ANNOTATION.findall(log) if "lowering-cpu-operator" in line]
    assert errors and all("sums/" in line for line in errors)
    # The model that did not change is taken from the cache.
    assert re.search(r": 2 cached \(2 from GitHub's cache of \w+\), 2 to do", log)
    assert f"2 because {SUMS} changed" in log and "are refused" not in log

    # Another one demands what no program reaches, and every cache says that it is reached.
    github.commit(SUMS, "torch.erf(x)", "x + x")
    github.commit("ci/models.toml", "cosine = 0.99", "sqnr_db = 200.0")
    github.change("memo", forge_figures)
    github.change("store", forge_a_library)
    github.change("wheels", forge_a_wheel)
    forged = github.run("pull_request")
    assert results(forged) == refused, failures(forged)
    log = forged["programs"].log
    errors = [line for line in ANNOTATION.findall(log) if "emulator-accuracy" in line]
    assert errors and not any("999" in error for error in errors)
    assert "runs on the emulator: 0 cached, 4 to do" in log and "no signature by one of public-keys" in log
    assert "Hash mismatch for `executorch==" in log and "are refused" in log
    assert any("libQnnHtp.so" in line for line in ANNOTATION.findall(log))
