"""The files under .github/: pinned, minimal, complete, and in agreement with sessions, manifests and docs."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci import github as verb
from ci.__main__ import VERBS as COMMANDS
from ci.gate.table import CiJob, gate_table
from ci.github import plan
from lab.__main__ import SESSIONS as OF_LABORATORY
from lab.__main__ import VERBS as LABORATORY
from provisioning.base.command_line import module_of
from provisioning.base.settings import ROOT
from qnn_ci.command import VERBS
from tests.support.examples import example as filled_example
from tests.support.typed import parsed
from tests.support.workflows import (
    Action,
    Job,
    Step,
    Workflow,
    filled_in,
    read_action,
    read_workflow,
)

GITHUB = ROOT / ".github"
FILES = sorted([ROOT / "action.yml", *GITHUB.glob("workflows/*.yml"), *GITHUB.glob("actions/*/action.yml")])

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)

COMMENT = "comment.yml: comment"
"""Writes after the run of a pull request, which may be a stranger's, and waits for nobody."""

WITHOUT_CACHE = ("comment.yml", "faults.yml", "release.yml", "site.yml", "update-pins.yml")


@cache
def workflows() -> dict[str, Workflow]:
    paths = sorted(GITHUB.glob("workflows/*.yml"))
    return {path.name: read_workflow(ROOT, str(path.relative_to(ROOT))) for path in paths}


@cache
def actions() -> dict[str, Action]:
    folders = sorted(GITHUB.glob("actions/*"))
    return {folder.name: read_action(ROOT, str(folder.relative_to(ROOT))) for folder in folders}


@cache
def raw(path: Path) -> dict[Any, Any]:
    data: dict[Any, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return data


@dataclass(frozen=True)
class Placed:
    """A step, and where it is."""

    where: str
    step: Step


def steps() -> list[Placed]:
    of_jobs = [
        Placed(f"{name}: {job.id}: {step.title}", step)
        for name, workflow in workflows().items()
        for job in workflow.jobs.values()
        for step in job.steps
    ]
    return of_jobs + [
        Placed(f"{name}: {step.title}", step) for name, action in actions().items() for step in action.steps
    ]


def jobs() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in sorted(GITHUB.glob("workflows/*.yml")):
        for name, job in raw(path)["jobs"].items():
            yield f"{path.name}: {name}", job


LEVELS = ("none", "read", "write")


def allowed_in(workflow: Workflow, job: Job) -> Mapping[str, str] | None:
    """The rights of a job's token."""
    return workflow.permissions if job.permissions is None else job.permissions


def exceeded(allowed: Mapping[str, str] | None, called: Workflow) -> list[str]:
    """What jobs of a called workflow ask for beyond their caller's rights; GitHub refuses them all then."""
    return [
        f"{job.id}: {scope}: {level}"
        for job in called.jobs.values()
        for scope, level in (allowed_in(called, job) or {}).items()
        if allowed is not None and LEVELS.index(level) > LEVELS.index(allowed.get(scope, "none"))
    ]


SESSIONS = {*VERBS, *OF_LABORATORY, "lab", "tests"}
ALL_STEPS = steps()
ALL_JOBS = dict(jobs())


def test_no_file_is_out_of_the_sight_of_lint_and_of_these_tests() -> None:
    known = {*FILES, GITHUB / "dependabot.yml", *GITHUB.glob("ISSUE_TEMPLATE/*.yml")}
    unseen = {path for path in GITHUB.rglob("*") if path.suffix in (".yml", ".yaml")} - known
    assert unseen == set()


def test_only_the_jobs_that_must_write_may() -> None:
    writing = {
        name: sorted(scope for scope, access in job["permissions"].items() if access == "write")
        for name, job in ALL_JOBS.items()
    }
    assert {name: scopes for name, scopes in writing.items() if scopes} == {
        COMMENT: ["pull-requests"],
        "faults.yml: propose": ["contents", "pull-requests"],
        "release.yml: attest": ["attestations", "id-token"],
        "release.yml: publish": ["contents"],
        "release.yml: push": ["artifact-metadata", "attestations", "id-token", "packages"],
        "release.yml: propose": ["contents", "pull-requests"],
        "site.yml: deploy": ["id-token", "pages"],
        "update-pins.yml: propose": ["contents", "pull-requests"],
    }


SECRETS = re.compile(r"\bsecrets\.(\w+)|\bsecrets\s*[\[)]|secrets: inherit")


def test_jobs_that_may_write_or_sign_wait_for_a_protected_environment() -> None:
    for name, job in ALL_JOBS.items():
        if name != COMMENT:
            assert ("environment" in job) == ("write" in job["permissions"].values()), name


def test_nothing_runs_with_a_strangers_code_and_our_rights() -> None:
    rights = re.compile(r"pull_request_target|workflow_run\b|GITHUB_TOKEN")
    found = [path.name for path in FILES if rights.search(path.read_text(encoding="utf-8"))]
    assert found == ["comment.yml"]


def test_the_job_that_comments_has_nothing_of_the_pull_request() -> None:
    """No files but the toolkit's, at the commit that was called, no action that brings any, and no text of
    the event in a shell or in the environment."""
    workflow = workflows()["comment.yml"]
    assert list(workflow.events) == ["workflow_call"] and list(workflow.jobs) == ["comment"]
    checkout, nox, last = workflow.jobs["comment"].steps
    assert (checkout.inputs["repository"], checkout.inputs["ref"]) == (
        "${{ job.workflow_repository }}",
        "${{ job.workflow_sha }}",
    )
    assert nox.uses == "$/.github/actions/setup-nox" and not nox.inputs
    assert last.run == "nox -f toolkit/noxfile.py -s github -- comment"
    assert last.env == {"GH_TOKEN": "${{ github.token }}"}
    text = (GITHUB / "workflows/comment.yml").read_text(encoding="utf-8")
    events = set(re.findall(r"github\.(event[\w.]*)", text))
    group = raw(GITHUB / "workflows/comment.yml")["concurrency"]["group"]
    assert events and events == set(re.findall(r"github\.(event[\w.]*)", group))


def test_what_is_copied_to_comment_may_do_what_the_called_workflow_does_and_no_more() -> None:
    caller = yaml.safe_load(filled_example(ROOT / "docs/github.md", "name: QNN comment\n"))
    (job,) = caller["jobs"].values()
    assert job["permissions"] == raw(GITHUB / "workflows/comment.yml")["jobs"]["comment"]["permissions"]
    assert caller["permissions"] == {} and caller[True].keys() == {"workflow_run"}
    gate = yaml.safe_load(filled_example(ROOT / "docs/github.md", "name: QNN\n"))
    assert caller[True]["workflow_run"]["workflows"] == [gate["name"]]


def test_only_the_gates_stages_have_secrets_and_only_those_that_a_caller_may_give() -> None:
    named = {path.name for path in FILES if SECRETS.search(path.read_text(encoding="utf-8"))}
    assert named == {"gate.yml"}
    given = {*raw(GITHUB / "workflows/gate.yml")[True]["workflow_call"]["secrets"]}
    for placed in ALL_STEPS:
        secrets = {name: value for name, value in placed.step.env.items() if SECRETS.search(str(value))}
        assert secrets.keys() <= given and (not secrets or placed.where.startswith("gate.yml: stage:"))
        assert secrets == {name: f"${{{{ secrets.{name} }}}}" for name in secrets}


def test_no_shell_reads_what_an_expression_says() -> None:
    """Values go through the environment."""
    assert [placed.where for placed in ALL_STEPS if EXPRESSION.search(placed.step.run)] == []


def test_a_session_that_is_run_exists() -> None:
    sessions = re.compile(r"\bnox (?:-f \S+ )?-s (\w+)(?: -- (\w+))?")
    for placed in ALL_STEPS:
        for session, part in sessions.findall(placed.step.run):
            assert session in SESSIONS, placed.where
            assert session != "github" or part in verb.PARTS, placed.where
            assert session != "lab" or part in LABORATORY, placed.where


STEPS_OF = {
    **{
        f"{name}: {job.id}": (job.steps, job.outputs)
        for name, w in workflows().items()
        for job in w.jobs.values()
    },
    **{name: (action.steps, action.outputs) for name, action in actions().items()},
}


@pytest.mark.parametrize("name", STEPS_OF)
def test_an_expression_names_no_step_but_an_earlier_one(name: str) -> None:
    """GitHub takes the outputs of any other for empty. actionlint does not read our actions."""
    steps, outputs = STEPS_OF[name]
    ids: list[str] = []
    for part in (*steps, outputs):
        assert set(re.findall(r"\bsteps\.([\w-]+)", str(part))) <= set(ids), part
        ids += [part.id] if isinstance(part, Step) and part.id else []
    assert len(set(ids)) == len(ids)


OF_OTHERS = {
    "actions/cache/restore": {"cache-hit", "cache-primary-key", "cache-matched-key"},
    "actions/upload-artifact": {"artifact-id", "artifact-url", "artifact-digest"},
}
"""The outputs that others' actions document."""


def outputs_set(step: Step) -> set[str]:
    """The outputs that a step sets; of `github -- PART`, tests/unit/test_github.py runs the part."""
    if step.uses:
        ours = step.uses.startswith("$/")
        return {*read_action(ROOT, step.uses[2:]).outputs} if ours else OF_OTHERS[step.uses.partition("@")[0]]
    loops = dict(re.findall(r"for (\w+) in ([\w ]+);", step.run))
    names = re.findall(r'echo "([$\w-]+)=.*>> "\$GITHUB_OUTPUT"', step.run)
    return {
        name.replace(f"${variable}", word)
        for name in names
        for variable, words in (loops or {"": ""}).items()
        for word in (words.split() if variable and f"${variable}" in name else [""])
    }


@pytest.mark.parametrize("name", STEPS_OF)
def test_each_output_that_is_read_is_set_by_its_step(name: str) -> None:
    """GitHub takes any other for empty."""
    steps, outputs = STEPS_OF[name]
    by_id = {step.id: step for step in steps if step.id}
    for step, output in set(re.findall(r"\bsteps\.([\w-]+)\.outputs\.([\w-]+)", str((steps, outputs)))):
        assert " github -- " in by_id[step].run or output in outputs_set(by_id[step]), (step, output)


@pytest.mark.parametrize("name", actions())
def test_an_action_uses_inputs_and_contexts_that_it_has(name: str) -> None:
    action = actions()[name]
    expressions = [*EXPRESSION.findall(str(action)), *(step.condition for step in action.steps)]
    used = re.findall(r"(?<![\w.])(\w+)\.([\w-]+)", " ".join(expressions))
    assert {context for context, _ in used} <= {
        "github",
        "inputs",
        "job",
        "runner",
        "env",
        "steps",
        "outputs",
    }
    assert {member for context, member in used if context == "inputs"} <= set(action.inputs)


def test_our_own_actions_are_given_only_inputs_that_they_have() -> None:
    for placed in ALL_STEPS:
        if placed.step.uses.startswith("$/"):
            action = read_action(ROOT, placed.step.uses.removeprefix("$/"))
            required = {name for name, input_ in action.inputs.items() if input_.required}
            assert required <= set(placed.step.inputs) <= set(action.inputs), placed.where


def test_a_change_is_gated_in_the_merge_queue_as_well() -> None:
    assert {"pull_request", "merge_group", "push"} <= set(workflows()["pr.yml"].events)


NO_VERDICT = ("verdict", "report")


def test_the_verdict_needs_every_other_job_of_the_gate_and_always_runs() -> None:
    gate = workflows()["gate.yml"].jobs
    assert set(gate["verdict"].needs) == set(gate) - {*NO_VERDICT}
    assert gate["verdict"].condition == "always()"


@pytest.mark.parametrize("plan", ["success", "failure", "cancelled", "skipped", ""])
@pytest.mark.parametrize("stage", ["success", "failure", "cancelled", "skipped", ""])
def test_only_success_is_success(plan: str, stage: str) -> None:
    (step,) = workflows()["gate.yml"].jobs["verdict"].steps
    results = {"plan.result": plan, "stage.result": stage}
    env = {name: filled_in(value, needs=results) for name, value in step.env.items()}
    done = subprocess.run(["bash", "-e", "-c", step.run], env=env, stdout=subprocess.DEVNULL, check=False)
    assert (done.returncode == 0) == (plan == stage == "success")


def test_no_job_of_the_gate_can_be_skipped_or_fail_unseen() -> None:
    for job in workflows()["gate.yml"].jobs.values():
        assert job.id == "report" or job.condition in ("", "always()"), job.id
        assert job.continue_on_error is False, job.id
        assert all(step.continue_on_error is False for step in job.steps), job.id
    assert all(step.continue_on_error is False for a in actions().values() for step in a.steps)


def test_a_called_gate_has_its_own_files_beside_the_callers() -> None:
    """The workspace's root and `github.sha` are the caller's."""
    gate = workflows()["gate.yml"].jobs
    for job in gate.values():
        if job.id == "verdict":
            continue
        tool, *others = [step.inputs for step in job.steps if step.uses.startswith("actions/checkout@")]
        assert tool["repository"] == "${{ job.workflow_repository }}", job.id
        assert tool["ref"] == "${{ job.workflow_sha }}", job.id
        assert tool["path"] == "toolkit", job.id
        assert all("repository" not in row and row["path"] not in ("", "toolkit") for row in others), job.id
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    assert not any(re.search(r"uses: \./|github\.(?:job_)?workflow_sha", text) for text in texts)


def test_a_called_workflow_may_do_no_more_than_its_caller() -> None:
    for name, workflow in workflows().items():
        for job in workflow.jobs.values():
            if job.uses:
                called = workflows()[job.uses.rpartition("/")[2]]
                assert exceeded(allowed_in(workflow, job), called) == [], f"{name}: {job.id}"


def jobs_of(name: str, row: CiJob) -> list[dict[str, Any]]:
    """Of a row whose suite is not split."""
    return list(plan.jobs_of(name, row, plan.Caller("wheels"), (), lambda _: ()))


def test_no_two_jobs_of_the_gate_share_a_name_or_an_artifact() -> None:
    caller = plan.Caller("qnn-2.37", executorch=True)
    rows = gate_table().row.items()
    shards = functools.cache(lambda most: plan.matrix_entries(most, (), caller))
    all_jobs = [job for name, row in rows for job in plan.jobs_of(name, row, caller, (), shards)]
    for key in ("name", "artifact"):
        values = [job[key] for job in all_jobs]
        assert len(set(values)) == len(values)
    assert len(all_jobs) <= 256, "more than a matrix may have"


def test_what_is_restored_is_verified_before_it_is_used() -> None:
    steps = actions()["setup-qnn"].steps
    titles = [step.id or step.title for step in steps]
    restore, setup = titles.index("restore"), titles.index("setup")
    # Provisioning proves what was restored: tests/unit/test_store_proof.py.
    assert restore < setup and not any("nox" in step.run for step in steps[restore:setup])
    # Whichever run saved it, it is of exactly these manifests: the key that it begins with has their hash.
    assert steps[restore].inputs["restore-keys"] == "${{ steps.place.outputs.key }}"
    assert steps[restore].inputs["key"].startswith("${{ steps.place.outputs.key }}-")


ON_THE_DEFAULT_BRANCH = (
    """contains(fromJSON('["push", "schedule", "workflow_dispatch"]'), github.event_name) """
    "&& github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
)


def test_a_cache_is_saved_from_the_default_branch_only() -> None:
    """No pull request, tag or merge queue saves what later runs trust."""
    gate = workflows()["gate.yml"]
    assert gate.env["SAVES"] == f"${{{{ {ON_THE_DEFAULT_BRANCH} }}}}"
    saving = [row.step for row in ALL_STEPS if "save@" in row.step.uses]
    assert len(saving) == 3
    for step in saving:
        required = re.sub(r"\([^()]*\|\|[^()]*\)", "either", " ".join(step.condition.split()))
        assert "env.SAVES == 'true'" in required or ON_THE_DEFAULT_BRANCH in required, step.title
        assert "||" not in required, step.title


def test_no_installer_s_own_cache_travels_between_runs() -> None:
    travels = {step.step.inputs["path"] for step in ALL_STEPS if "actions/cache" in step.step.uses}
    assert travels == {
        "${{ steps.place.outputs.store }}",
        "${{ env.QNN_CI_STORE }}/cache/results",
        "before",
    }


@pytest.mark.parametrize("name", WITHOUT_CACHE)
def test_what_signs_or_writes_touches_no_cache(name: str) -> None:
    used = {step.uses for job in workflows()[name].jobs.values() for step in job.steps}
    assert not any("cache" in uses or uses in ("$/.github/actions/setup-qnn",) for uses in used)
    nox = actions()["setup-nox"]
    assert not any("cache" in step.uses or "cache" in step.inputs for step in nox.steps)


def test_every_row_of_the_gate_is_an_existing_session() -> None:
    rows = gate_table().row.values()
    assert {row.stage for row in rows} <= SESSIONS
    assert {row.arguments.split()[0] for row in rows if row.stage == "lab"} <= {*LABORATORY}


def test_every_stage_that_decides_a_change_has_a_row() -> None:
    rows = {row.stage for row in gate_table().row.values()}
    working = {name for name in SESSIONS if name.startswith(("test_", "build_"))}
    assert {"lint", "tests", "validate", "buck_parity", "image"} | working <= rows


def test_the_matrix_is_given_what_the_plan_makes() -> None:
    used = set(re.findall(r"matrix\.(\w+)", (GITHUB / "workflows" / "gate.yml").read_text(encoding="utf-8")))
    (job,) = jobs_of("x", CiJob(stage="lint", minutes=1))
    assert used == set(job)


@pytest.mark.parametrize("stage", ["test_emulator", "test_lowering", "test_onnx", "test_llm"])
def test_the_five_line_action_gives_a_stage_the_suite_and_arguments_that_it_takes(stage: str) -> None:
    action = read_action(ROOT, ".")
    (run,) = [step for step in action.steps if step.uses == "$/.github/actions/run-stage"]
    inputs = {name: row.default for name, row in action.inputs.items()}
    typed = {**inputs, "stage": stage, "suite": "my models.toml", "arguments": "--soc SM8750"}
    step = {name: filled_in(value, inputs=typed) for name, value in run.inputs.items()}
    args = parsed(module_of(COMMANDS[step["stage"]]), *shlex.split(step["arguments"]))
    assert ([Path(suite).name for suite in args.suite], args.profile) == (["my models.toml"], "wheels")
    assert args.soc and step["reports"].endswith("my models.toml")


@pytest.mark.parametrize("page", ["README.md", "docs/github.md"])
def test_the_adopters_example_calls_the_gate_with_inputs_that_it_has(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    (example,) = [e for e in re.findall(r"```yaml\n(.*?)```", text, re.S) if "workflows/gate.yml@" in e]
    assert len(example.strip().splitlines()) <= 10
    (job,) = yaml.safe_load(example)["jobs"].values()
    assert set(job["with"]) <= set(workflows()["gate.yml"].call.inputs)
    assert exceeded(job["permissions"], workflows()["gate.yml"]) == []


def test_the_page_has_every_input_of_the_gate_with_its_default() -> None:
    text = (ROOT / "docs" / "github.md").read_text(encoding="utf-8")
    for name, input_ in workflows()["gate.yml"].call.inputs.items():
        default = (
            f"`{str(input_.default).lower() if input_.type == 'boolean' else input_.default}`"
            if input_.default != ""
            else ""
        )
        assert f"\n| `{name}` | {input_.description} | {default} |\n" in text
