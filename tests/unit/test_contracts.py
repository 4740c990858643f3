"""Names that two sides must agree on: outputs, inputs and variables of workflows; answers and records with
their schemas; and a smoke test of every verb."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pytest

from ci import github
from ci.__main__ import VERBS as CI
from ci.gate.table import CiJob, gate_table
from ci.github import plan
from lab.__main__ import SESSIONS as OF_LABORATORY
from lab.__main__ import VERBS as LABORATORY
from provisioning.__main__ import VERBS as PROVISIONING
from provisioning.base.answer import Answer
from provisioning.base.command_line import main
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.base.stage_run import StageRun
from qnn_ci.command import VERBS
from tests.support.elves import skel
from tests.support.schemas import check_answer, validator
from tests.support.sources import nodes, our_files, with_any
from tests.support.workflows import (
    ACTIONS,
    GITHUB,
    OUTPUTS_OF_PARTS,
    STEPS,
    WORKFLOWS,
    Yaml,
    call_of,
    called,
    strings,
)

# Workflows

OUTPUTS_OF_OTHERS = {
    "actions/cache/restore": {"cache-hit", "cache-primary-key", "cache-matched-key"},
    "actions/upload-artifact": {"artifact-id", "artifact-url", "artifact-digest"},
}
"""The outputs that others' actions document."""
EXPORTED = {"QNN_CI_STORE"}
"""Variables that setup-qnn exports to later steps."""
REFERENCE = re.compile(
    r"(?<![\w.'-])(steps|needs|jobs|inputs|matrix|env|secrets)\.([\w-]+)(?:\.outputs\.([\w-]+))?"
)


def outputs_set(step: Yaml) -> set[str]:
    uses, run = step.get("uses", ""), step.get("run", "")
    if uses:
        ours = called(uses)
        return set(ours.get("outputs", ())) if ours else OUTPUTS_OF_OTHERS.get(uses.partition("@")[0], set())
    if part := re.search(r" -s github -- (\w+)", run):
        return OUTPUTS_OF_PARTS.get(part[1], set())
    words = {f"${name}": words.split() for name, words in re.findall(r"for (\w+) in ([\w ]+);", run)}
    outputs = set()
    for output in re.findall(r'echo "([$\w-]+)=.*>> "\$GITHUB_OUTPUT"', run):
        loop = next((name for name in words if name in output), "")
        outputs |= {output.replace(loop, word) for word in words.get(loop, [""])}
    return outputs


class Scope:
    """What expressions may name at one place: by context the names, each with its outputs."""

    def __init__(self, where: str, **names: Mapping[str, set[str]] | Iterable[str]) -> None:
        self.where = where
        self.names = {
            context: dict(known) if isinstance(known, Mapping) else {name: set[str]() for name in known}
            for context, known in names.items()
        }
        self.read = set[tuple[str, str, str]]()

    def check(self, part: object) -> None:
        for key, text in strings(part):
            expressions = [text] if key == "if" else re.findall(r"\$\{\{(.*?)\}\}", text, re.DOTALL)
            for context, name, output in REFERENCE.findall(" ".join(expressions)):
                known = self.names.get(context, {})
                assert name in known and (not output or output in known[name]), (self.where, text)
                self.read.add((context, name, output))

    def check_steps(self, steps: Sequence[Yaml]) -> None:
        """Each step names only earlier ones: GitHub takes the outputs of any other for empty."""
        known = self.names["steps"] = {}
        for step in steps:
            self.check(step)
            action = called(step.get("uses", ""))
            if action is not None:
                required = {name for name, row in action["inputs"].items() if row.get("required")}
                assert required <= set(step.get("with", ())) <= set(action["inputs"]), (self.where, step)
            if "id" in step:
                assert step["id"] not in known, (self.where, step["id"])
                known[step["id"]] = outputs_set(step)


def own_outputs(steps: Sequence[Yaml]) -> set[tuple[str, str, str]]:
    """What our own steps set. Those of an action are also for its users."""
    own = [step for step in steps if "run" in step and "id" in step]
    return {("steps", step["id"], output) for step in own for output in outputs_set(step)}


@pytest.mark.parametrize("name", ACTIONS)
def test_an_action_names_what_is_there_and_what_it_sets_is_read(name: str) -> None:
    action, steps = ACTIONS[name], STEPS[name]
    scope = Scope(name, inputs=action["inputs"])
    scope.check_steps(steps)
    scope.check(action.get("outputs"))
    assert own_outputs(steps) <= scope.read


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_names_what_is_there_and_what_it_sets_is_read(name: str) -> None:
    workflow, call = WORKFLOWS[name], call_of(name)
    jobs = {job: set(content.get("outputs", ())) for job, content in workflow["jobs"].items()}
    inputs = {*call["inputs"], *(workflow["on"].get("workflow_dispatch") or {}).get("inputs", ())}
    top = Scope(name, jobs=jobs, inputs=inputs)
    top.check({**workflow, "jobs": None})
    read = {(job, output) for _, job, output in top.read}
    (row,) = plan.jobs_of("x", CiJob(stage="lint", minutes=1), plan.Caller("wheels"), "gate", plan.lengths_of)
    for job_name, job in workflow["jobs"].items():
        where = f"{name}: {job_name}"
        matrix = row if "strategy" in job else ()
        needs = {other: jobs[other] for other in re.findall(r"[\w-]+", str(job.get("needs", "")))}
        env = {*workflow.get("env", ()), *job.get("env", ()), *EXPORTED}
        scope = Scope(where, inputs=inputs, needs=needs, env=env, matrix=matrix, secrets=call["secrets"])
        scope.check_steps(STEPS[where])
        scope.check({**job, "steps": None})
        assert own_outputs(STEPS[where]) | {("matrix", field, "") for field in matrix} <= scope.read
        read |= {(other, output) for context, other, output in scope.read if context == "needs"}
    assert {(job, output) for job, outputs in jobs.items() for output in outputs} <= read


def test_a_session_that_is_run_exists() -> None:
    sessions = {*VERBS, *OF_LABORATORY, "lab", "tests"}
    texts = [text for steps in STEPS.values() for key, text in strings(steps) if key == "run"]
    typed = re.findall(r"\bnox (?:-f \S+ )?-s (\w+)(?: -- (\w+))?", " ".join(texts))
    rows = [(row.stage, row.arguments.partition(" ")[0]) for row in gate_table().row.values()]
    for session, part in [*typed, *rows]:
        assert session in sessions, session
        assert session != "github" or part in github.PARTS, part
        assert session != "lab" or part in LABORATORY, part


def variables_in(files: Iterable[Path]) -> set[str]:
    """Those that the code names; comments do not count."""
    return {
        name
        for file in with_any(files, "QNN_CI_")
        for node in nodes(file)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in re.findall(r"QNN_CI_[A-Z_]+", node.value)
    }


def test_a_variable_that_a_workflow_sets_is_read_and_what_the_parts_read_is_set() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in GITHUB.glob("*/**/*.yml"))
    written = set(re.findall(r"^ *(QNN_CI_\w+):", text, re.MULTILINE))
    by_shells = set(re.findall(r"\$\{(QNN_CI_\w+)", text))
    by_plan = {f"QNN_CI_{name}" for name in plan.INPUTS}
    assert len(written) > 25 and written <= by_shells | by_plan | variables_in(our_files())
    assert (variables_in(our_files("ci/github")) | by_plan) - written == EXPORTED


# Verbs

RUN = '[[case.tiny.run]]\nlane = "{}"\nprecision = "{}"\nsocs = ["SM8650"]\n'
FILES = {
    "models.toml": f'schema = 2\n[case.tiny]\nfactory = "net:make"\n{RUN.format("executorch", "8a8w")}',
    "onnx.toml": f'schema = 2\n[case.tiny]\nmodel = "net.onnx"\n{RUN.format("onnx", "8a8w")}',
    "llm.toml": f"schema = 2\n[case.tiny]\nperplexity = 14\n{RUN.format('llm', 'fp16')}",
}
SMOKE: dict[str, tuple[str, int, set[str]]] = {
    "adopt": ("--suite of/models.toml", 0, {"files", "edited"}),
    "build_android": ("", 3, set()),
    "build_linux_arm64": ("", 3, set()),
    "build_x86": ("", 3, set()),
    "buck_parity": ("", 3, set()),
    "chips": ("", 0, {"chips"}),
    "diagnose": ("14001", 0, {"inputs"}),
    "env": ("", 3, set()),
    "example": ("", 0, set()),
    "forecast": ("missing.pte", 2, set()),
    "github": ("find_results", 2, set()),
    "inspect": ("of/skel.so", 0, {"file", "kind", "what", "QNN build", "needs"}),
    "matrix": ("--suite of/models.toml", 0, set()),
    "provision": ("--offline", 3, set()),
    "report": ("", 0, {"reports"}),
    "shell": ("-- true", 2, set()),
    "signing": ("inspect of/skel.so", 0, {"files"}),
    "store": ("list", 0, {"trees"}),
    "test_device": ("--suite of/models.toml --list", 0, set()),
    "test_emulator": ("--suite of/models.toml --list", 0, set()),
    "test_llm": ("--suite of/llm.toml --list", 0, set()),
    "test_lowering": ("--suite of/models.toml --list", 0, set()),
    "test_onnx": ("--suite of/onnx.toml --list", 0, set()),
    "test_onnx_device": ("--suite of/onnx.toml --list", 0, set()),
    "validate": ("", 3, set()),
}
"""By verb: what is typed on a machine that has nothing, its exit code, and the facts of its answer."""
ELSEWHERE = {
    "audit": "unit/test_onnx_commands.py",
    "build_runner": "integration/test_runner_build.py",
    "bundle": "unit/test_bundle.py",
    "check": "integration/test_llm.py",
    "compile": "unit/test_onnx_commands.py",
    "divergence": "integration/test_divergence.py",
    "gate": "integration/test_gate.py",
    "image": "integration/test_image.py",
    "quantize": "integration/test_compile.py",
    "repair": "journeys.toml",
    "run": "unit/test_onnx_commands.py",
    "run_device": "integration/test_device.py",
    "sign_lpai": "integration/test_signing_lpai.py",
    "test_delegate": "integration/test_delegate.py",
    "test_upstream": "integration/test_upstream.py",
    "tune": "integration/test_tune.py",
    "wrap": "integration/test_wrap.py",
}
"""The test that runs a verb to its end, with real components or a stand-in."""


@pytest.mark.parametrize("verb", SMOKE)
def test_a_verb_comes_to_its_end_and_its_answer_has_its_facts_as_the_schema_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    words, code, facts = SMOKE[verb]
    (tmp_path / "of").mkdir()
    for name, text in FILES.items():
        (tmp_path / "of" / name).write_text(text)
    (tmp_path / "of/skel.so").write_bytes(skel(75, "v2.37").encode())
    StageRun("validate", "wheels", "x86_64-linux", "").finish().write(tmp_path / "reports")
    for variable, folder in (("QNN_CI_STORE", "store"), ("QNN_CI_REPORTS", "reports")):
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "answer.json"
    assert main("qnn-ci", "", {**CI, **PROVISIONING}, [verb, "--json", str(file), *words.split()]) == code
    answer = check_answer(file.read_text(encoding="utf-8"))
    assert answer.keys() - {field.name for field in fields(Answer)} == facts
    assert (answer["verb"], answer["exit_code"]) == (verb, code)
    assert code in (0, 1) or answer["findings"]
    for report in (tmp_path / "reports").glob("*.json"):
        validator(MANIFESTS / "schema/report.json").validate(json.loads(report.read_text(encoding="utf-8")))


def test_each_verb_has_a_row_or_a_test_that_runs_it() -> None:
    assert {*SMOKE, *ELSEWHERE} == {*CI, *PROVISIONING} and not SMOKE.keys() & ELSEWHERE.keys()
    for verb, file in ELSEWHERE.items():
        assert re.search(rf"\b{verb}\b", (ROOT / "tests" / file).read_text(encoding="utf-8")), verb
