"""A repository that calls the real gate.yml on the runner of lab/adopter, with a stand-in for nox: the parts
of `github` are real, and `gate` judges a model by its text, or takes its cached result."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ci.work.results import CachedResults
from lab.adopter.runner import Event, Hub, JobResult, WorkflowRunner
from provisioning.base.settings import ROOT
from tests.support.scripts import script

NOX = """\
import os, subprocess, sys
from pathlib import Path
toolkit, session, words = Path(sys.argv[2]).parent, sys.argv[4], sys.argv[6:]
if session == "github" and words == ["setup"]:
    store = f"{os.environ['RUNNER_TEMP']}/store"
    Path(os.environ["GITHUB_ENV"]).open("a").write(f"QNN_CI_STORE={store}\\n")
    sys.exit(0)
if session == "gate":
    sys.path[:0] = [str(toolkit)]
    os.environ["PYTHONPATH"] = str(toolkit)
    from tests.support.adopter import gate
    sys.exit(gate())
# As nox does: it goes to the folder of its file, and says where it was started.
environ = {"QNN_CI_STARTED_IN": os.getcwd(), **os.environ}
sys.exit(subprocess.run([sys.executable, "-m", "ci", session, *words], cwd=toolkit, env=environ).returncode)
"""

SUITE = "schema = 2\n" + "".join(
    f'[case.{name}]\nfactory = "net:make"\n[[case.{name}.run]]\nlane = "executorch"\nprecision = "8a8w"\n'
    'socs = ["SM8650"]\n'
    for name in ("one", "two")
)
GOOD, BROKEN = "good\n", "broken\n"
CALLER = (ROOT / "manifests/workflow.yml").read_text(encoding="utf-8")


def key_of(model: str) -> dict[str, str]:
    return {"model": model}


def gate() -> int:
    """What a job does in place of `gate`: one program of the suite for each shard, or all."""
    from provisioning.base.findings import Outcome
    from provisioning.base.stage_run import StageRun
    from tests.support.program_reports import row

    reports = Path(os.environ["QNN_CI_REPORTS"])
    model = (Path(os.environ["QNN_CI_STARTED_IN"]) / "ci/net.py").read_text(encoding="utf-8")
    cached = CachedResults(Path(os.environ["QNN_CI_STORE"]), "lowering")
    found = cached.find(key_of(model))
    passes = bool(found.facts["passes"]) if found else model == GOOD
    if passes and not found:
        cached.keep("net", key_of(model), {"passes": True})
    outcome = Outcome.PASS if passes else Outcome.FAIL
    if "nothing" in model:
        return 0
    for stage in ("test_lowering", "test_emulator", "gate"):
        report = StageRun(stage, "wheels", "x86_64-linux", f"nox -s {stage}")
        names = [f"{name}/8a8w/SM8650" for name in ("one", "two")]
        if stage != "gate":
            word = "pass" if passes else "fail"
            report.metrics["programs"] = {name: row(name, word, stage) for name in names}
        if "another run" in model:
            os.environ["QNN_CI_RUN"] = "6.1"
        report.finish(outcome).write(reports)
    return 0 if passes else 1


@dataclass
class Adopter:
    """A repository on GitHub, as far as this machine shows it."""

    folder: Path
    hub: Hub

    @classmethod
    def at(cls, folder: Path) -> Adopter:
        repository = folder / "models"
        (repository / "ci").mkdir(parents=True)
        (repository / ".github/workflows").mkdir(parents=True)
        subprocess.run(["git", "init", "-q", "-b", "main", str(repository)], check=True)
        (repository / ".github/workflows/qnn.yml").write_text(CALLER)
        (repository / "ci/models.toml").write_text(SUITE)
        adopter = cls(repository, Hub(folder / "hub"))
        adopter.commit(GOOD)
        program = script(folder / "programs/nox", f'exec {sys.executable} - "$@" <<"END"\n{NOX}\nEND')
        assert program.is_file()
        return adopter

    def commit(self, model: str) -> str:
        (self.folder / "ci/net.py").write_text(model)
        git = ["git", "-C", str(self.folder), "-c", "user.name=n", "-c", "user.email=n@example"]
        for command in (["add", "-A"], ["commit", "-qm", "change", "--allow-empty"]):
            subprocess.run([*git, *command], check=True)
        return subprocess.run(
            [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()

    def pull_request(self, model: str) -> dict[str, JobResult]:
        payload = {"pull_request": {"number": 5, "base": {"sha": ""}, "head": {"repo": {"fork": True}}}}
        return self._run(Event("pull_request", "refs/pull/5/merge", self.commit(model), payload))

    def push(self, model: str) -> dict[str, JobResult]:
        return self._run(Event("push", "refs/heads/main", self.commit(model)))

    def _run(self, event: Event) -> dict[str, JobResult]:
        programs = self.hub.folder.parent / "programs"
        runner = WorkflowRunner(self.folder, ROOT, self.hub, programs, {"PYTHONPATH": ""})
        return runner.run(self.folder / ".github/workflows/qnn.yml", event)
