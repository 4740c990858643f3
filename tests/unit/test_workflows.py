"""What the files under .github/ may do, and what they promise: rights, secrets, caches, verdict and pages.
That their names agree is in test_contracts.py."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from ci.__main__ import VERBS as COMMANDS
from ci.gate.table import gate_table
from ci.github import plan
from ci.lanes.registry import stages
from ci.suite.lane_head import DEVICE_STAGE
from ci.work.jobs import Job
from lab.__main__ import VERBS as LABORATORY
from provisioning.base.command_line import module_of
from provisioning.base.settings import ROOT
from tests.support import engine, needs
from tests.support.examples import example
from tests.support.typed import parsed
from tests.support.workflows import (
    ACTIONS,
    GITHUB,
    JOBS,
    STEPS,
    WORKFLOWS,
    Yaml,
    call_of,
    filled_in,
    flattening,
    strings,
)

GATE = WORKFLOWS["gate.yml"]
COMMENT = "comment.yml: comment"
"""Writes after the run of a pull request, which may be a stranger's, and waits for nobody."""
WRITING = {
    COMMENT: {"pull-requests"},
    "faults.yml: propose": {"contents", "pull-requests"},
    "release.yml: attest": {"attestations", "id-token"},
    "release.yml: publish": {"contents"},
    "release.yml: push": {"artifact-metadata", "attestations", "id-token", "packages"},
    "release.yml: propose": {"contents", "pull-requests"},
    "site.yml: deploy": {"id-token", "pages"},
    "update-pins.yml: propose": {"contents", "pull-requests"},
}
LEVELS = ("none", "read", "write")
ALL_STEPS = [(name, step) for name, steps in STEPS.items() for step in steps]
ALL_STRINGS = [(name, *row) for name, file in {**WORKFLOWS, **ACTIONS}.items() for row in strings(file)]


def test_every_file_is_seen_by_lint_and_by_these_tests() -> None:
    known = {*GITHUB.glob("workflows/*.yml"), *GITHUB.glob("actions/*/action.yml")}
    known |= {GITHUB / "dependabot.yml", *GITHUB.glob("ISSUE_TEMPLATE/*.yml")}
    assert {path for path in GITHUB.rglob("*") if path.suffix in (".yml", ".yaml")} == known


@pytest.mark.parametrize("name", JOBS)
def test_only_the_jobs_that_must_write_may_and_they_wait_for_a_protected_environment(name: str) -> None:
    job = JOBS[name]
    assert {scope for scope, level in job["permissions"].items() if level == "write"} == WRITING.get(
        name, set()
    )
    assert ("environment" in job) == (name in WRITING and name != COMMENT)


def exceeded(allowed: Mapping[str, str], workflow: str) -> list[str]:
    """What jobs of a called workflow ask for beyond their caller's rights; GitHub refuses them all then."""
    return [
        f"{job}: {scope}: {level}"
        for job, asking in WORKFLOWS[workflow]["jobs"].items()
        for scope, level in asking["permissions"].items()
        if LEVELS.index(level) > LEVELS.index(allowed.get(scope, "none"))
    ]


CALLERS = {
    **{name: job for name, job in JOBS.items() if "uses" in job},
    **{
        f"{page}: {begins}": job
        for page in ("README.md", "docs/github.md")
        for begins in ("name: QNN\n", "name: QNN comment\n")
        if f"```yaml\n{begins}" in (ROOT / page).read_text(encoding="utf-8")
        for job in yaml.safe_load(example(ROOT / page, begins))["jobs"].values()
    },
}
"""Jobs that call a workflow of ours: here, and on our pages."""


@pytest.mark.parametrize("name", CALLERS)
def test_a_caller_gives_the_rights_that_the_called_jobs_ask_for_and_only_inputs_that_it_has(
    name: str,
) -> None:
    job = CALLERS[name]
    workflow = job["uses"].partition("@")[0].rpartition("/")[2]
    assert exceeded(job["permissions"], workflow) == []
    assert not name.endswith("QNN comment\n") or job["permissions"] == JOBS[COMMENT]["permissions"]
    assert set(job.get("with", ())) <= set(call_of(workflow)["inputs"]) and "secrets" not in job


def test_the_page_s_comment_workflow_runs_after_the_page_s_gate_and_the_example_is_ten_lines() -> None:
    page = ROOT / "docs/github.md"
    caller, gate = (
        yaml.safe_load(example(page, begins)) for begins in ("name: QNN comment\n", "name: QNN\n")
    )
    assert caller[True] == {"workflow_run": {"workflows": [gate["name"]], "types": ["completed"]}}
    assert caller["permissions"] == {} and len(example(page, "name: QNN\n").strip().splitlines()) <= 10


SECRET = re.compile(r"\bsecrets\b")


def test_nothing_runs_with_a_strangers_code_and_our_rights_or_secrets() -> None:
    risky = re.compile(r"pull_request_target|workflow_run\b|GITHUB_TOKEN")
    texts = {path: path.read_text(encoding="utf-8") for path in GITHUB.rglob("*.yml")}
    assert [path.name for path, text in texts.items() if risky.search(text)] == ["comment.yml"]
    assert [path.name for path, text in texts.items() if SECRET.search(text)] == ["gate.yml"]
    for name, step in ALL_STEPS:
        secrets = {key: value for key, value in step.get("env", {}).items() if SECRET.search(str(value))}
        assert not secrets or name == "gate.yml: stage"
        assert secrets == {key: f"${{{{ secrets.{key} }}}}" for key in secrets}
        assert not SECRET.search(str({**step, "env": ""}))


def test_the_job_that_comments_has_nothing_of_the_pull_request() -> None:
    """No files but the toolkit's, at the commit that was called, no action that brings any, and no text of
    the event in a shell or in the environment."""
    workflow = WORKFLOWS["comment.yml"]
    assert list(workflow["on"]) == ["workflow_call"] and list(workflow["jobs"]) == ["comment"]
    checkout, nox, last = STEPS[COMMENT]
    toolkit = {"repository": "${{ job.workflow_repository }}", "ref": "${{ job.workflow_sha }}"}
    assert checkout["with"] == {**toolkit, "path": "toolkit", "persist-credentials": False}
    assert nox["uses"] == "$/.github/actions/setup-nox" and "with" not in nox
    assert last["run"] == "nox -f toolkit/noxfile.py -s github -- comment"
    assert last["env"] == {"GH_TOKEN": "${{ github.token }}"}
    workflow = {**workflow, "concurrency": ""}
    assert not [text for _, text in strings(workflow) if "github.event" in text]


def test_no_shell_reads_what_an_expression_says() -> None:
    """Values go through the environment."""
    assert [name for name, step in ALL_STEPS if "${{" in step.get("run", "")] == []


def test_a_change_is_gated_in_the_merge_queue_as_well() -> None:
    assert {"pull_request", "merge_group", "push"} <= set(WORKFLOWS["pr.yml"]["on"])


def test_the_verdict_is_given_whatever_happened_and_sees_the_plan_all_jobs_and_their_reports() -> None:
    """What it says of them is in test_github_verdict.py."""
    verdict = GATE["jobs"]["verdict"]
    assert verdict["if"] == "always()" and set(verdict["needs"]) == {"plan", "stage"}
    assert {*GATE["jobs"]} == {"verdict", "report", "save", "plan", "stage"}
    *_, download, last = verdict["steps"]
    assert last["env"] == {
        "QNN_CI_PLAN": "${{ needs.plan.result }}",
        "QNN_CI_LIGHTS": "${{ needs.stage.result }}",
        "QNN_CI_PLANNED": "${{ needs.plan.outputs.planned }}",
        "QNN_CI_REPORTS": download["with"]["path"],
    }
    assert GATE["env"]["QNN_CI_RUN"] == "${{ github.run_id }}.${{ github.run_attempt }}"


def test_no_job_of_the_gate_can_be_skipped_or_fail_unseen() -> None:
    for name, job in GATE["jobs"].items():
        if name == "stage":
            # The verdict says then which files were unrelated, and is red if none was.
            assert job["if"] == "needs.plan.outputs.jobs != '[]'"
        else:
            assert name in ("report", "save") or job.get("if", "always()") == "always()", name
    assert "continue-on-error" not in str((GATE["jobs"], ACTIONS))


def test_a_called_gate_has_its_own_files_beside_the_callers() -> None:
    """The workspace's root and `github.sha` are the caller's."""
    for name in GATE["jobs"]:
        steps = STEPS[f"gate.yml: {name}"]
        tool, *others = [
            step["with"] for step in steps if step.get("uses", "").startswith("actions/checkout@")
        ]
        assert tool["repository"] == "${{ job.workflow_repository }}", name
        assert (tool["ref"], tool["path"]) == ("${{ job.workflow_sha }}", "toolkit"), name
        assert all("repository" not in row and row["path"] == "${{ env.SOURCE }}" for row in others), name
    assert all("fromJSON(inputs.runs-on" in job["runs-on"] for job in GATE["jobs"].values())
    wrong = re.compile(r"github\.(?:job_)?workflow_sha")
    assert not [
        text for _, key, text in ALL_STRINGS if wrong.search(text) or (key == "uses" and text[:2] == "./")
    ]


def test_no_two_jobs_of_the_gate_share_a_name_or_an_artifact() -> None:
    caller = plan.Caller("qnn-2.37", executorch=True)
    rows = gate_table().row.items()
    long = [Job(str(number), 3600.0) for number in range(100)]
    all_jobs = [job for name, row in rows for job in plan.jobs_of(name, row, caller, "gate", lambda *_: long)]
    for key in ("name", "artifact"):
        assert len({job[key] for job in all_jobs}) == len(all_jobs)
    assert len(all_jobs) <= 256, "more than a matrix may have"
    group = GATE["jobs"]["stage"]["concurrency"]["group"]
    assert "matrix.artifact" in group and "inputs." not in group, "GitHub refuses more than 400 characters"


ON_THE_DEFAULT_BRANCH = (
    """contains(fromJSON('["push", "schedule", "workflow_dispatch"]'), github.event_name) """
    "&& github.ref == format('refs/heads/{0}', github.event.repository.default_branch)"
)


RESTORES, SAVES = (
    [(name, step) for name, step in ALL_STEPS if f"actions/cache/{action}@" in step.get("uses", "")]
    for action in ("restore", "save")
)


def test_a_cache_is_saved_from_the_default_branch_only_by_the_job_that_runs_no_model() -> None:
    """No pull request, tag or merge queue saves what later runs trust."""
    assert {name for name, _ in SAVES} == {"gate.yml: save"} and len(SAVES) == 2
    assert not [name for name, step in ALL_STEPS if re.search("actions/cache@", step.get("uses", ""))]
    condition = JOBS["gate.yml: save"]["if"]
    assert ON_THE_DEFAULT_BRANCH in condition and "||" not in condition
    assert GATE["env"]["SAVES"] == f"${{{{ {ON_THE_DEFAULT_BRANCH} }}}}"
    # Toolkit, nox and the downloads: nothing of the calling repository, and no stage.
    steps = STEPS["gate.yml: save"]
    assert not [step for step in steps if re.search("run-stage|setup-qnn|env.SOURCE", str(step))]


def test_jobs_that_run_models_have_a_cache_that_they_cannot_write() -> None:
    modes = {name: job.get("cache-mode") for name, job in GATE["jobs"].items()}
    # A caller that gives its call `read` can call it: no job says that it needs more.
    assert modes.pop("save") is None and set(modes.values()) == {"read", "none"}
    assert modes["stage"] == "read" == modes["report"]


@pytest.mark.parametrize(("name", "step"), RESTORES)
def test_a_cache_is_restored_before_anything_else_into_a_folder_of_its_own(name: str, step: Yaml) -> None:
    """What tar does with a hostile archive is in test_github_results.py."""
    # An action of ours is with the toolkit when its job begins, outside of the workspace.
    assert name == "." or STEPS[name][0] == step, "before the toolkit and the models are there"
    folder = step["with"]["path"]
    assert folder in ("results-cache", "before") and step["env"] == {"TAR_OPTIONS": flattening(folder)}
    if folder == "results-cache":
        # By the one name that GitHub says the default branch saved.
        found = "steps.find" if name == "." else "needs.plan"
        assert step["with"]["key"] == f"${{{{ {found}.outputs.results }}}}"
        assert "restore-keys" not in step["with"]


@pytest.mark.parametrize("name", ["comment.yml", "faults.yml", "release.yml", "site.yml", "update-pins.yml"])
def test_what_signs_or_writes_touches_no_cache(name: str) -> None:
    steps = [step for where, step in ALL_STEPS if where.startswith(name) or where == "setup-nox"]
    assert not [step for step in steps if re.search("cache|setup-qnn", str(step.get("uses")))]
    assert not [step for step in steps if "cache" in step.get("with", {})]


def test_every_stage_that_decides_a_change_has_a_row_that_runs_it_in_full() -> None:
    rows = gate_table().row
    # No runner of ours has a device.
    of_devices = {stage.name for _, stage in stages() if stage.flags == DEVICE_STAGE}
    working = {name for name in COMMANDS if name.startswith(("test_", "build_"))} - of_devices
    assert {"lint", "tests", "validate", "buck_parity", "image"} | working <= {
        row.stage for row in rows.values()
    }
    assert {row.arguments.split()[0] for row in rows.values() if row.stage == "lab"} <= {*LABORATORY}
    # A check that such a row cannot run makes it red.
    integration = [row for name, row in rows.items() if name.startswith("integration")]
    assert {row.arguments.split()[0] for row in integration} == {"tests", "tests/integration"}
    on_the_runner = {"binutils", "chromium", "docker.io", "openssh-client", "openssl", "shellcheck"}
    for row in integration:
        assert row.root and row.variables == {engine.SWITCH: "required", needs.SWITCH: "required"}
        assert {*needs.PACKAGES.values(), *engine.PROGRAMS.values()} <= {*row.packages, *on_the_runner}


@pytest.mark.parametrize("stage", ["", "gate", "test_emulator", "test_lowering", "test_onnx", "test_llm"])
def test_the_action_gives_a_stage_the_suite_and_arguments_that_it_takes(stage: str) -> None:
    """Without one it runs the gate, which also judges what falls to the CPU."""
    (run,) = [step for step in STEPS["."] if step.get("uses") == "$/.github/actions/run-stage"]
    inputs = {name: row.get("default", "") for name, row in ACTIONS["."]["inputs"].items()}
    chosen = {"stage": stage} if stage else {}
    typed = {**inputs, **chosen, "suite": "my models.toml", "arguments": "--soc SM8750"}
    step = {name: filled_in(value, inputs=typed) for name, value in run["with"].items()}
    assert step["stage"] == (stage or "gate")
    args = parsed(module_of(COMMANDS[step["stage"]]), *shlex.split(step["arguments"]))
    assert ([Path(suite).name for suite in args.suites], args.profile) == (["my models.toml"], "wheels")
    assert args.soc and args.target == ["x86_64-linux"] and step["reports"].endswith("my models.toml")


def test_the_action_works_as_a_job_of_the_gate_and_saves_nothing() -> None:
    ours = [str(step.get("uses", "")).rpartition("/")[2] for step in STEPS["."]]
    parts = [re.search(r"github -- (\w+)", step.get("run", "")) for step in STEPS["."]]
    assert [part[1] for part in parts if part] == ["find_results", "take_results"]
    assert [name for name in ours if name in ("setup-qnn", "run-stage")] == ["setup-qnn", "run-stage"]
    (upload,) = [step for step in STEPS["run-stage"] if "upload-artifact" in step.get("uses", "")]
    assert upload["if"] == "always()" and upload["with"]["path"] == "${{ inputs.reports }}/"


def as_documented(input_: Yaml) -> str:
    default = input_.get("default", "")
    return (
        f"`{str(default).lower() if input_.get('type') == 'boolean' else default}`" if default != "" else ""
    )


def test_the_page_has_every_input_of_the_gate_with_its_default() -> None:
    text = (ROOT / "docs" / "github.md").read_text(encoding="utf-8")
    for name, input_ in call_of("gate.yml")["inputs"].items():
        assert f"\n| `{name}` | {input_['description']} | {as_documented(input_)} |\n" in text
