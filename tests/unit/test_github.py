"""What the parts of `github` do, without GitHub: plan, setup and stage."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci import github as verb
from ci.gate import verb as gate_verb
from ci.gate.table import CiJob, GateTable, IgnoredChanges, gate_table
from ci.github import plan, setup
from ci.github.run_stage import stage
from ci.github.verdict import unpack_plan
from ci.work.jobs import Job
from provisioning.base.commands import SPELLED_INSTALLED, session
from provisioning.base.errors import UsageError
from provisioning.base.findings import Outcome, Report
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun
from provisioning.stage_variables import HOST_LIBRARIES
from tests.support.environments import NDK, PIN, PROFILE, write_ndk, write_sdk
from tests.support.examples import example
from tests.support.scripts import script
from tests.support.typed import parsed, run_here
from tests.support.workflows import OUTPUTS_OF_PARTS, STEPS, call_of, filled_in, pairs

ROWS = {
    "always": CiJob(stage="lint", minutes=5),
    "some": CiJob(stage="tests", minutes=5, ignores=("pages",)),
    "late": CiJob(stage="bench", minutes=5, when="nightly"),
    "locks": CiJob(stage="lock", minutes=5, when="nightly", sooner=("manifests/locks/**",)),
    "source": CiJob(stage="buck_parity", minutes=5, executorch=True, profiles=("qnn-2.37",)),
}
TABLE = GateTable(
    ignored_changes={"pages": IgnoredChanges(paths=("docs/**",), reason="for people")}, row=ROWS
)
OWN = plan.Caller("wheels")


@pytest.mark.parametrize(
    ("occasion", "changed", "stages", "caller", "expected"),
    [
        ("gate", ["docs/x.md"], "", OWN, ["always"]),
        ("gate", ["docs/x.md", "ci/a/b.py"], "", OWN, ["always", "some"]),
        ("gate", ["no one knows"], "", OWN, ["always", "some"]),
        ("gate", None, "", OWN, ["always", "some", "locks"]),
        ("gate", [], "", OWN, ["always"]),
        ("gate", ["docs/x.md", "manifests/locks/nox.txt"], "", OWN, ["always", "some", "locks"]),
        ("nightly", None, "", OWN, ["always", "some", "late", "locks"]),
        ("gate", ["ci/a/b.py"], "tests, always, bench", OWN, ["always", "some", "late"]),
        ("gate", [], "", plan.Caller("wheels", executorch=True), ["always"]),
        ("gate", [], "", plan.Caller("qnn-2.37", executorch=True), ["always", "source"]),
    ],
)
def test_a_change_decides_which_rows_run(
    occasion: str, changed: list[str] | None, stages: str, caller: plan.Caller, expected: list[str]
) -> None:
    rows = plan.named_only(ROWS, stages)
    chosen, reasons = plan.choose(TABLE, rows, occasion, changed, caller, explicit=bool(stages))
    assert list(chosen) == expected and list(reasons) == list(rows)


# Plan

MODELS, ONNX, BOTH = "ci/my models.toml", "ci/onnx.toml", "ci/both.toml"
PT_RUN = '[[case.{}.run]]\nlane = "executorch"\nprecision = "{}"\nsocs = ["SM8650"]\ntags = ["{}"]\n'
ONNX_RUN = '[[case.net.run]]\nlane = "onnx"\nprecision = "8a8w"\nsocs = ["SM8650"]\n'
SUITES = {
    MODELS: f'[case.one]\nfactory = "m:f"\n{PT_RUN.format("one", "fp16", "pr")}'
    f'[case.two]\nfactory = "m:f"\n{PT_RUN.format("two", "8a8w", "nightly")}',
    ONNX: f'[case.net]\nmodel = "net.onnx"\n{ONNX_RUN}',
    BOTH: f'[case.net]\nfactory = "m:f"\n{PT_RUN.format("net", "8a8w", "pr")}{ONNX_RUN}',
}


@pytest.fixture
def adopter(tmp_path: Path) -> dict[str, str]:
    """What gate.yml gives `plan` for a repository with models of its own."""
    (tmp_path / "source/ci").mkdir(parents=True)
    for name, text in SUITES.items():
        (tmp_path / "source" / name).write_text(f"schema = 2\n{text}")
    (tmp_path / "outside.toml").write_text(f"schema = 2\n{SUITES[MODELS]}")
    (tmp_path / "source/link.toml").symlink_to(tmp_path / "outside.toml")
    files = {"GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "summary")}
    own = {"QNN_CI_SOURCE": "source", "QNN_CI_SUITE": MODELS, "QNN_CI_OWN": "false"}
    return {"GITHUB_WORKSPACE": str(tmp_path), **files, **own}


def long(lane: str, suites: Sequence[Path], tags: Sequence[str], caller: plan.Caller) -> list[Job]:
    """Work that pays for any number of machines."""
    return [Job(f"{lane} {number}", 36_000.0) for number in range(200)]


def planned(environ: Mapping[str, str], lengths: plan.Lengths = plan.lengths_of) -> list[dict[str, Any]]:
    assert plan.plan(environ, lengths) == 0
    outputs = pairs(Path(environ["GITHUB_OUTPUT"]))
    jobs: list[dict[str, Any]] = json.loads(outputs.pop("jobs"))
    assert {*outputs, "jobs"} == OUTPUTS_OF_PARTS["plan"]
    assert all(job["artifact"].startswith(outputs["artifacts"]) for job in jobs)
    return jobs


TARGET, SUITE = "--target x86_64-linux", "--suite 'ci/my models.toml'"


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        ({}, {"programs": f"{TARGET} {SUITE}"}),
        ({"OCCASION": "nightly", "TAGS": "pr"}, {"programs": f"{TARGET} {SUITE} --tag pr"}),
        ({"SUITE": BOTH}, {"programs": f"{TARGET} --suite {BOTH}"}),
        ({"SUITE": f"{ONNX},{MODELS}"}, {"programs": f"{TARGET} --suite {ONNX} {SUITE}"}),
        ({"SUITE": ONNX, "OCCASION": "nightly"}, {
            "programs": f"{TARGET} --suite {ONNX} --skip build_runner"
        }),
        ({"SUITE": ""}, {"validate": ""}),
        ({"STAGES": "lowering"}, {"lowering": SUITE}),
        ({"SUITE": ONNX, "STAGES": "onnx", "SHARDS": "2"}, {"onnx": f"--suite {ONNX}"}),
    ],
)  # fmt: skip
def test_another_repository_gets_its_own_few_models_in_one_job_and_nothing_about_the_toolkit(
    adopter: dict[str, str], inputs: dict[str, str], expected: dict[str, str]
) -> None:
    jobs = planned({**adopter, **{f"QNN_CI_{name}": value for name, value in inputs.items()}})
    assert {job["name"]: job["arguments"] for job in jobs} == expected
    summary = Path(adopter["GITHUB_STEP_SUMMARY"]).read_text()
    rows = {line.split(" | ")[0].strip("| ") for line in summary.splitlines()[4:] if line}
    assert rows <= {"validate", "lowering", "programs", "onnx"}


@pytest.mark.parametrize(
    ("inputs", "programs"),
    [
        ({"SUITE": BOTH}, {
            "test_lowering": ["net/8a8w/SM8650"], "test_emulator": ["net/8a8w/SM8650"],
            "test_onnx": ["net/8a8w/SM8650"],
        }),
        ({"SUITE": ONNX, "SOC": "SM8550,8-elite", "STAGES": "onnx"}, {
            "test_onnx": ["net/8a8w/SM8550", "net/8a8w/SM8750"],
        }),
        ({"TAGS": "pr", "STAGES": "lowering"}, {"test_lowering": ["one/fp16/SM8650"]}),
        ({"SUITE": ""}, {}),
    ],
)  # fmt: skip
def test_the_plan_names_each_program_that_the_verdict_waits_for(
    adopter: dict[str, str], inputs: dict[str, str], programs: dict[str, list[str]]
) -> None:
    environ = {**adopter, "QNN_CI_RUN": "7.1", **{f"QNN_CI_{name}": value for name, value in inputs.items()}}
    jobs = planned(environ)
    result = unpack_plan(pairs(Path(environ["GITHUB_OUTPUT"]))["planned"])
    assert result.programs == programs and result.run == "7.1"
    assert {name: job.artifact for name, job in result.jobs.items()} == {
        job["name"]: job["artifact"] for job in jobs
    }


@pytest.mark.parametrize("suite", [MODELS, BOTH])
def test_a_large_suite_gets_the_shards_and_minutes_that_its_owner_says(
    adopter: dict[str, str], suite: str
) -> None:
    """Each does all of the work on its programs, in every lane."""
    jobs = planned({**adopter, "QNN_CI_SUITE": suite}, long)
    assert [job["name"] for job in jobs] == [f"programs {shard}/4" for shard in range(1, 5)]
    assert {job["stage"] for job in jobs} == {"gate"}
    large = {"QNN_CI_SHARDS": "100", "QNN_CI_MINUTES": "360", "QNN_CI_STAGES": "programs,lint"}
    minutes = {job["name"]: job["minutes"] for job in planned({**adopter, **large}, long)}
    assert minutes.pop("lint") == gate_table().row["lint"].minutes, "it is not about the suite"
    assert minutes == {f"programs {n}/100": 360 for n in range(1, 101)}, "GitHub ends any after six hours"


@pytest.mark.parametrize(
    ("seconds", "count", "expected"),
    [(12.0, 10, 1), (12.0, 12, 1), (12.0, 40, 1), (12.0, 101, 2), (12.0, 1000, 4), (36_000.0, 2, 2)],
)
def test_there_are_as_many_jobs_as_the_work_is_worth(
    adopter: dict[str, str], seconds: float, count: int, expected: int
) -> None:
    """Of five models for two chips, six and twenty there is one."""
    jobs = planned(adopter, lambda *_: [Job(str(number), seconds) for number in range(count)])
    assert len(jobs) == expected


@pytest.mark.parametrize(
    ("changed", "patterns", "event", "runs"),
    [
        (["docs/x.md", "README.md"], "docs/**, *.md", "pull_request", False),
        (["docs/x.md", "README.md"], "docs/**, *.md", "push", True),
        (["docs/x.md", "ci/net.py"], "docs/**, *.md", "pull_request", True),
        (["docs/x.md"], "docs/*", "merge_group", False),
        (["docs/a/x.md"], "docs/*", "pull_request", True),
        (["docs/x.md"], "", "pull_request", True),
        ([], "**", "pull_request", True),
    ],
)
def test_a_change_of_unrelated_files_alone_starts_no_job(
    adopter: dict[str, str], changed: list[str], patterns: str, event: str, runs: bool
) -> None:
    source = Path(adopter["GITHUB_WORKSPACE"], "source")
    git = ["git", "-C", str(source), "-c", "user.name=n", "-c", "user.email=e@example"]
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    for message in ("before", "change"):
        for command in (["add", "-A"], ["commit", "-qm", message, "--allow-empty"]):
            subprocess.run([*git, *command], check=True)
        for name in changed if message == "before" else ():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_text("changed")
    environ = {**adopter, "QNN_CI_BASE": "HEAD~1", "QNN_CI_UNRELATED": patterns, "GITHUB_EVENT_NAME": event}
    assert plan.plan(environ) == 0
    outputs = pairs(Path(environ["GITHUB_OUTPUT"]))
    assert (json.loads(outputs["jobs"]) != []) == runs
    assert unpack_plan(outputs["planned"]).unrelated == (() if runs else tuple(sorted(changed)))


def test_calls_of_the_gate_that_differ_in_any_input_have_artifacts_of_their_own(
    adopter: dict[str, str],
) -> None:
    source = Path(adopter["GITHUB_WORKSPACE"], "source")
    many = [f"{'long' * 20}-{number}.toml" for number in range(6)]
    for name in ("a/models.toml", "b/models.toml", *many):
        (source / name).parent.mkdir(exist_ok=True)
        # No two suites of a call may have a program of one name.
        text = (source / MODELS).read_text().replace("case.", f"case.{Path(name).stem}-")
        (source / name).write_text(text)
    calls = [
        ("TAGS", ""), ("SOC", "SM8650"), ("SOC", "SM8750"), ("TAGS", "pr"), ("STAGES", "lowering"),
        ("GATE_REQUIREMENTS", "r.txt"), ("RUNS_ON", '["self-hosted"]'), ("PREPARE", "make"),
        ("VARIABLES", "SIZE=small"), ("OCCASION", "nightly"), ("SUITE", "a/models.toml"),
        ("SUITE", "b/models.toml"), ("SUITE", ",".join(many)), ("SOC", "SM8750"),
    ]  # fmt: skip
    names = [
        sorted(job["artifact"] for job in planned({**adopter, f"QNN_CI_{name}": value}, long))
        for name, value in calls
    ]
    assert names.pop() == names[2], "the same call again"
    artifacts = [artifact for group in names for artifact in group]
    assert len(set(artifacts)) == len(artifacts) and max(map(len, artifacts)) < 120


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        *(("SUITE", file, "calling repository") for file in ("none.toml", "../outside.toml", "link.toml")),
        ("SUITE", "/etc/hostname", "calling repository"),
        ("STAGES", "buck_parity", "executorch"),
        ("STAGES", "validate, build_x86", "executorch"),
        ("STAGES", "nonsense", "nonsense"),
        ("OCCASION", "monthly", "monthly"),
        *(
            (name, value, value)
            for name in ("SHARDS", "MINUTES", "JOBS", "TIMEOUT")
            for value in ("many", "-1", "0", "1000000", "1.5")
        ),
        *(("SHARDS", "101", "101"), ("MINUTES", "361", "361"), ("MINUTES", "9", "10 to 360")),
        *(
            ("RUNS_ON", json.dumps(labels), "x86-64 Linux")
            for labels in (
                "windows-latest",
                "macos-15",
                "ubuntu-24.04-arm",
                ["self-hosted", "linux", "ARM64"],
                ["self-hosted", "Windows"],
            )
        ),
        *(("VARIABLES", text, "SIZE|A-B") for text in ("SIZE", "SIZE=small other", "A-B=1", "SIZE='small")),
    ],
)
def test_an_input_that_no_job_could_follow_is_an_error(
    adopter: dict[str, str], name: str, value: str, says: str
) -> None:
    with pytest.raises(UsageError) as caught:
        plan.plan({**adopter, f"QNN_CI_{name}": value})
    said = f"{caught.value.message} {caught.value.fix}"
    assert re.search(says, said) and "\n" not in said


@pytest.mark.parametrize("labels", ["ubuntu-22.04", ["self-hosted", "linux", "x64", "arm-team-models"]])
def test_runners_with_linux_on_x86_64_are_taken(adopter: dict[str, str], labels: object) -> None:
    assert planned({**adopter, "QNN_CI_RUNS_ON": json.dumps(labels)})


def test_a_suite_in_a_submodule_that_is_not_there_says_what_to_set(adopter: dict[str, str]) -> None:
    source = Path(adopter["GITHUB_WORKSPACE"], "source")
    (source / ".gitmodules").write_text('[submodule "models"]\n\tpath = ext/models\n\turl = ../models\n')
    with pytest.raises(UsageError, match="submodule ext/models") as caught:
        plan.plan({**adopter, "QNN_CI_SUITE": "ext/models/suite.toml"})
    assert "submodules: true" in caught.value.fix


def test_the_programs_of_a_suite_get_the_time_and_the_number_at_once_that_its_owner_says(
    adopter: dict[str, str],
) -> None:
    how = {"QNN_CI_JOBS": "3", "QNN_CI_TIMEOUT": "1200"}
    jobs = {job["name"]: job for job in planned({**adopter, **how, "QNN_CI_SUITE": BOTH})}
    args = parsed(gate_verb, *shlex.split(jobs["programs"]["arguments"]))
    assert jobs.keys() == {"programs"} and (args.jobs, args.timeout) == (3, 1200)


def test_the_readmes_ten_lines_hand_the_suite_to_a_gate_that_takes_it(
    adopter: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    suite = Path(adopter["GITHUB_WORKSPACE"], "source", MODELS)
    suite.rename(suite.with_name("models.toml"))
    (caller,) = yaml.safe_load(example(ROOT / "README.md", "name: QNN\n"))["jobs"].values()
    inputs = {name: row["default"] for name, row in call_of("gate.yml")["inputs"].items()} | caller["with"]
    (step,) = [step for step in STEPS["gate.yml: plan"] if step.get("id") == "plan"]
    env = {
        name: filled_in(value, inputs=inputs, env={"SOURCE": "source"}) for name, value in step["env"].items()
    }
    (job,) = planned({**adopter, **env})
    (run,) = [
        step
        for step in STEPS["gate.yml: stage"]
        if step.get("with", {}).get("stage") == "${{ matrix.stage }}"
    ]
    passed = {name: filled_in(value, matrix=job) for name, value in run["with"].items()}
    typed = {"QNN_CI_STAGE": passed["stage"], "QNN_CI_ARGUMENTS": passed["arguments"]}
    assert run_stage(tmp_path, monkeypatch, report_of(tmp_path, Outcome.PASS, "gate"), **typed) == 0
    args = parsed(gate_verb, *(tmp_path / "argv").read_text().splitlines()[5:])
    assert [file.name for file in args.suites] == ["models.toml"]


@pytest.mark.parametrize(
    ("wrong", "fix"), [('precison = "8a8w"', "precision?"), ('precision = "8a8w', "models.toml:")]
)
def test_a_mistake_in_a_suite_is_annotated_at_its_line(
    adopter: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    wrong: str,
    fix: str,
) -> None:
    """A key that is misspelt, and what is no TOML."""
    suite = Path(adopter["GITHUB_WORKSPACE"], "source/ci/models.toml")
    suite.write_text(f"schema = 2\n{SUITES[MODELS]}".replace('precision = "8a8w"', wrong))
    for name, value in {**adopter, "QNN_CI_SUITE": "ci/models.toml", "GITHUB_ACTIONS": "true"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        run_here(verb, "plan")
    assert fix in caught.value.fix
    line = suite.read_text().splitlines().index(wrong) + 1
    said = capsys.readouterr().out
    assert f"::error file=ci/models.toml,line={line},title=plan%3A " in said
    assert str(suite.parents[1]) not in said, "a path of the runner says nothing to the reader"


# Setup


@pytest.mark.parametrize(("chosen", "exported"), [("", ""), ("SM8750, SM8650", "SM8750,SM8650")])
def test_later_steps_have_the_chips_that_were_chosen_and_no_other(
    tmp_path: Path, chosen: str, exported: str
) -> None:
    """Not the one of the exported environment, which would be the only one that the stages then take."""
    programs = write_sdk(tmp_path / "sdk") / "bin" / HOST_LIBRARIES
    programs.mkdir(parents=True, exist_ok=True)
    files = {"GITHUB_ENV": "env", "GITHUB_PATH": "path", "GITHUB_OUTPUT": "output", "QNN_CI_REPORTS": "store"}
    paths = {**files, "QNN_SDK_ROOT": "sdk", "QNN_CI_STORE": "store"}
    places = {name: str(tmp_path / path) for name, path in paths.items()}
    assert setup.setup({**os.environ, **places, "QNN_CI_SOC": chosen}) == 0
    variables, outputs = pairs(tmp_path / "env"), pairs(tmp_path / "output")
    assert outputs.keys() == OUTPUTS_OF_PARTS["setup"] and outputs["sdk-root"] == places["QNN_SDK_ROOT"]
    assert (variables["QNN_CI_SOC"], variables["QNN_SDK_ROOT"]) == (exported, places["QNN_SDK_ROOT"])
    assert "PATH" not in variables and (tmp_path / "path").read_text() == f"{programs}\n"


@pytest.mark.parametrize("components", ["qnn-sdk, android-ndk", "android-ndk"])
def test_later_steps_know_where_the_ndk_is(tmp_path: Path, components: str) -> None:
    roots = {
        "QNN_SDK_ROOT": str(write_sdk(tmp_path / "sdk")),
        "ANDROID_NDK_ROOT": str(write_ndk(tmp_path / "ndk")),
    }
    files = {"GITHUB_ENV": "env", "GITHUB_PATH": "path", "GITHUB_OUTPUT": "output", "QNN_CI_REPORTS": "store"}
    places = {name: str(tmp_path / path) for name, path in {**files, "QNN_CI_STORE": "store"}.items()}
    inputs = {"QNN_CI_PROFILE": PROFILE, "QNN_CI_TARGETS": "aarch64-android", "QNN_CI_COMPONENTS": components}
    assert setup.setup({**os.environ, **places, **roots, **inputs}) == 0
    variables, outputs = pairs(tmp_path / "env"), pairs(tmp_path / "output")
    assert outputs["ndk-root"] == variables["ANDROID_NDK_ROOT"] == roots["ANDROID_NDK_ROOT"]
    assert outputs["version"] == (PIN.version if "qnn-sdk" in components else NDK)


def test_a_selection_that_cannot_be_provisioned_fails_with_its_annotations(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {"QNN_CI_STORE": str(tmp_path / "store"), "QNN_CI_REPORTS": str(tmp_path / "reports")}
    assert setup.setup({**os.environ, **places, "QNN_SDK_ROOT": str(tmp_path)}) == 3
    assert "::error title=provision" in capfd.readouterr().out


# Stage


def run_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, **more: str) -> int:
    """With a stand-in for nox that writes down how it was called, and then does what the test says."""
    kept = f'printf "%s\\n" "$@" > {tmp_path}/argv; env > {tmp_path}/env'
    nox = script(tmp_path / "bin" / "nox", f"{kept}\n{text}")
    monkeypatch.setenv("PATH", f"{nox.parent}{os.pathsep}{os.environ['PATH']}")
    environ = {
        "PATH": os.environ["PATH"],
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "of stage"),
        "QNN_CI_STAGE": "validate",
        **more,
    }
    code = stage(environ)
    assert pairs(tmp_path / "of stage").keys() == OUTPUTS_OF_PARTS["stage"]
    return code


def variables_of(tmp_path: Path) -> dict[str, str]:
    """What the last session was given."""
    return dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)


def report_of(tmp_path: Path, outcome: Outcome, name: str = "validate") -> str:
    """A command that leaves a stage's report."""
    run = StageRun("validate", "wheels", "x86_64-linux", "nox -s validate")
    report = run.finish(outcome).write(tmp_path / outcome.value)
    return f"mkdir -p {tmp_path}/reports; cp {report} {tmp_path}/reports/{name}.json"


def test_a_stages_arguments_are_split_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = report_of(tmp_path, Outcome.PASS)
    assert run_stage(tmp_path, monkeypatch, text, QNN_CI_ARGUMENTS="-k 'a b' $(touch x); ls") == 0
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[2:] == ["-s", "validate", "--", "-k", "a b", "$(touch", "x);", "ls"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("exit 0", 1, "wrote no report"),
        ("exit 7", 7, "ended with exit code 7, and wrote no report"),
        ("PASS; exit 1", 1, "its report says pass"),
        ("FAIL; exit 0", 1, "its report says fail"),
        (
            "echo 'error: SUITE:3: case.net.factroy: expected no such key'; exit 2",
            2,
            "file=models.toml,line=3,",
        ),
    ],
)
def test_a_stage_whose_report_is_missing_or_belied_is_no_pass(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    text: str,
    code: int,
    says: str,
) -> None:
    (tmp_path / "models.toml").write_text("schema = 2\n[case.net]\nfactroy = 3\n")
    monkeypatch.chdir(tmp_path)
    for outcome in (Outcome.PASS, Outcome.FAIL):
        text = text.replace(outcome.name, report_of(tmp_path, outcome))
    assert run_stage(tmp_path, monkeypatch, report_of(tmp_path, Outcome.PASS)) == 0
    assert run_stage(tmp_path, monkeypatch, text.replace("SUITE", f"{tmp_path}/models.toml")) == code
    assert says in capfd.readouterr().out


@pytest.mark.parametrize(("folder", "installed"), [("source", True), ("", False)])
def test_another_repository_is_told_what_to_type_where_only_qnn_ci_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, installed: bool
) -> None:
    secrets = {"HF_TOKEN": "", "PIP_INDEX_URL": "https://somebody@index.example"}
    run_stage(tmp_path, monkeypatch, "", QNN_CI_FOLDER=folder or str(ROOT), **secrets)
    seen = variables_of(tmp_path)
    assert seen["QNN_CI_STARTED_IN"] == (str(tmp_path / folder) if folder else str(ROOT))
    assert "HF_TOKEN" not in seen and seen["PIP_INDEX_URL"]
    monkeypatch.delenv(SPELLED_INSTALLED, raising=False)
    if spelled := seen.get(SPELLED_INSTALLED):
        monkeypatch.setenv(SPELLED_INSTALLED, spelled)
    assert session("validate").startswith("qnn-ci ") == installed


def test_a_stage_that_the_job_s_end_kills_has_a_report_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GitHub kills all processes of a job whose time is up: what is on the disk then is what it uploads."""
    file = tmp_path / "reports/validate.json"
    assert run_stage(tmp_path, monkeypatch, f"cp {file} {tmp_path}/then.json; exit 1") == 1
    then, after = Report.read(tmp_path / "then.json"), Report.read(file)
    assert then.outcome is Outcome.ERROR and "time" in then.findings[0].message
    assert after.findings != then.findings, "it ended by itself"


@pytest.mark.parametrize(("text", "outcome"), [("", Outcome.PASS), ("exit 1", Outcome.ERROR)])
def test_a_session_without_a_report_gets_one_for_the_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, outcome: Outcome
) -> None:
    run_stage(tmp_path, monkeypatch, text, QNN_CI_STAGE="tests")
    assert Report.read(tmp_path / "reports/tests.json").outcome is outcome


def test_a_verb_of_the_laboratory_passes_by_its_own_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = {"QNN_CI_STAGE": "lab", "QNN_CI_ARGUMENTS": "golden --lane onnx"}
    assert run_stage(tmp_path, monkeypatch, report_of(tmp_path, Outcome.PASS, "golden"), **typed) == 0
    assert run_stage(tmp_path, monkeypatch, report_of(tmp_path, Outcome.PASS), **typed) == 1


def test_the_tests_get_their_variables_and_root_and_see_nothing_of_the_job_that_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    check = f'[ "$1" = --non-interactive ] && shift && touch {tmp_path}/root && exec "$@"'
    sudo = script(tmp_path / "sudo" / "sudo", check)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    more = {"QNN_CI_STAGE": "tests", "QNN_CI_VARIABLES": "SWITCH=required 'OTHER=a b'", "CI": "true"}
    assert run_stage(tmp_path, monkeypatch, "exit 1", **more) == 1
    assert "::error title=tests" in capfd.readouterr().out and not (tmp_path / "root").exists()
    assert run_stage(tmp_path, monkeypatch, "", **more, QNN_CI_AS_ROOT="true") == 0
    seen = variables_of(tmp_path)
    assert (seen["SWITCH"], seen["OTHER"], seen["CI"]) == ("required", "a b", "true")
    assert (tmp_path / "root").exists()
    assert not any(name.startswith(("GITHUB_", "RUNNER_")) for name in seen)
