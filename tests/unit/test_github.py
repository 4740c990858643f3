"""What the workflows do, without GitHub: plan, place, setup, stage, verdict and release."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from ci import github as verb
from ci.gate import verb as gate_verb
from ci.gate.table import CiJob, GateTable, IgnoredChanges, gate_table
from ci.github import plan, setup
from ci.github.run_stage import stage
from provisioning.base.commands import SPELLED_INSTALLED, session
from provisioning.base.errors import UsageError
from provisioning.base.findings import Outcome
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.base.stage_run import StageRun
from provisioning.environment import HOST_LIBRARIES
from tests.support import engine, needs
from tests.support.environments import write_sdk
from tests.support.examples import example
from tests.support.scripts import script
from tests.support.typed import parsed, run_here
from tests.support.workflows import filled_in, pairs, read_action, read_workflow

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


@pytest.mark.parametrize(
    ("occasion", "changed", "expected"),
    [
        ("gate", ["docs/x.md"], ["always"]),
        ("gate", ["docs/x.md", "ci/a/b.py"], ["always", "some"]),
        ("gate", ["no one knows"], ["always", "some"]),
        ("gate", None, ["always", "some", "locks"]),
        ("gate", [], ["always"]),
        ("gate", ["docs/x.md", "manifests/locks/nox.txt"], ["always", "some", "locks"]),
        ("nightly", None, ["always", "some", "late", "locks"]),
    ],
)
def test_a_change_decides_which_rows_run(
    occasion: str, changed: list[str] | None, expected: list[str]
) -> None:
    chosen, reasons = plan.choose(TABLE, ROWS, occasion, changed, plan.Caller("wheels"))
    assert list(chosen) == expected
    assert list(reasons) == list(ROWS)


@pytest.fixture
def adopter(tmp_path: Path) -> dict[str, str]:
    """What gate.yml gives `plan` for a repository with two models of its own."""
    suite = tmp_path / "source" / "ci" / "my models.toml"
    suite.parent.mkdir(parents=True)
    runs = (
        '[[case.{0}.run]]\nlane = "executorch"\nprecision = "{1}"\n'
        'socs = ["SM8650"]\ntags = ["{2}"]\nthresholds.top1 = 0.9\n'
    )
    suite.write_text(
        "schema = 2\n"
        + "".join(
            f'[case.{name}]\nfactory = "m:f"\n{runs.format(name, scheme, tag)}'
            for name, scheme, tag in (("one", "fp16", "pr"), ("two", "8a8w", "nightly"))
        )
    )
    return {
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "QNN_CI_SOURCE": "source",
        "QNN_CI_SUITE": "ci/my models.toml",
        "QNN_CI_OWN": "false",
    }


def in_one(most: int, flags: Sequence[str], caller: plan.Caller) -> list[dict[str, Any]]:
    """What `matrix` says of a small suite; it takes a process."""
    return [{"shard": "1/1", "arguments": "--shard 1/1"}]


def planned(environ: dict[str, str], matrix: plan.Matrix = in_one) -> list[dict[str, str]]:
    assert plan.plan(environ, matrix=matrix) == 0
    outputs = pairs(Path(environ["GITHUB_OUTPUT"]))
    assert outputs_read("plan") <= outputs.keys()
    jobs: list[dict[str, str]] = json.loads(outputs["jobs"])
    return jobs


@cache
def outputs_read(part: str) -> set[str]:
    """What workflows and actions read of the steps that run this part of `github`. GitHub takes the outputs
    that a step does not set for empty."""
    names = set[str]()
    for file in (*ROOT.glob(".github/workflows/*.yml"), *ROOT.glob(".github/actions/*/action.yml")):
        place = file.relative_to(ROOT)
        if file.name == "action.yml":
            steps = list(read_action(ROOT, str(place.parent)).steps)
        else:
            steps = [step for job in read_workflow(ROOT, str(place)).jobs.values() for step in job.steps]
        text = file.read_text(encoding="utf-8")
        for step in steps:
            if step.id and step.run.endswith(f" github -- {part}"):
                names.update(re.findall(rf"\bsteps\.{step.id}\.outputs\.([\w-]+)", text))
    assert names
    return names


def test_another_repository_gets_its_own_few_models_in_one_job_and_nothing_about_the_toolkit(
    adopter: dict[str, str],
) -> None:
    (job,) = planned(adopter, plan.matrix_entries)
    assert (job["name"], job["stage"]) == ("programs", "gate")
    assert shlex.split(job["arguments"]) == [
        *("--target", "x86_64-linux"),
        *("--suite", "ci/my models.toml"),
    ]


@pytest.mark.parametrize("occasion", ["gate", "nightly"])
@pytest.mark.parametrize("suite", ["ci/my models.toml", "ci/onnx.toml", ""])
def test_the_plan_of_another_repository_names_no_job_about_the_toolkit(
    adopter: dict[str, str], tmp_path: Path, occasion: str, suite: str
) -> None:
    file = Path(adopter["GITHUB_WORKSPACE"], "source/ci/onnx.toml")
    file.write_text('schema = 2\n[case.net]\nmodel = "net.onnx"\n[[case.net.run]]\nlane = "onnx"\n')
    summary = tmp_path / "summary"
    about = {"GITHUB_STEP_SUMMARY": str(summary), "QNN_CI_OCCASION": occasion, "QNN_CI_SUITE": suite}
    jobs = planned({**adopter, **about})
    rows = {line.split(" | ")[0].strip("| ") for line in summary.read_text().splitlines()[4:] if line}
    known = {"validate"} | ({"lowering", "emulator", "programs"} if "my" in suite else set())
    known |= {"onnx"} if "onnx" in suite else set()
    assert rows == known and jobs and {job["name"] for job in jobs} <= known


def test_the_readmes_ten_lines_hand_the_suite_to_a_gate_that_takes_it(
    adopter: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    suite = Path(adopter["GITHUB_WORKSPACE"], "source/ci/my models.toml")
    suite.rename(suite.with_name("models.toml"))
    (caller,) = yaml.safe_load(example(ROOT / "README.md", "name: QNN\n"))["jobs"].values()
    gate = read_workflow(ROOT, caller["uses"].partition("@")[0].removeprefix("somebody/qnn-ci/"))
    inputs = {**{name: row.default for name, row in gate.call.inputs.items()}, **caller["with"]}
    (step,) = [step for step in gate.jobs["plan"].steps if step.id == "plan"]
    beside = {"SOURCE": "source"}
    env = {name: filled_in(value, inputs=inputs, env=beside) for name, value in step.env.items()}
    (job,) = planned({**adopter, **env}, plan.matrix_entries)
    (run,) = [step for step in gate.jobs["stage"].steps if step.inputs.get("stage") == "${{ matrix.stage }}"]
    passed = {name: filled_in(value, matrix=job) for name, value in run.inputs.items()}
    report = report_of(tmp_path, Outcome.PASS).replace("reports/validate.json", "reports/gate.json")
    typed = {"QNN_CI_STAGE": passed["stage"], "QNN_CI_ARGUMENTS": passed["arguments"]}
    assert run_stage(tmp_path, monkeypatch, report, **typed) == 0
    args = parsed(gate_verb, *(tmp_path / "argv").read_text().splitlines()[5:])
    assert [file.name for file in args.suite] == ["models.toml"]


def test_a_suite_of_two_lanes_goes_to_the_jobs_of_both_and_each_runs_its_lane(
    adopter: dict[str, str],
) -> None:
    suite = Path(adopter["GITHUB_WORKSPACE"], "source/ci/my models.toml")
    lanes = "".join(
        f'[[case.net.run]]\nlane = "{lane}"\nprecision = "8a8w"\nsocs = ["SM8650"]\n'
        for lane in ("executorch", "onnx")
    )
    suite.write_text(f'schema = 2\n[case.net]\nfactory = "m:f"\n{lanes}')
    programs, onnx = planned(adopter)
    assert (programs["name"], onnx["name"]) == ("programs", "onnx")
    assert programs["arguments"].endswith("--skip test_onnx")
    assert shlex.split(onnx["arguments"]) == ["--suite", "ci/my models.toml"]


def test_calls_of_the_gate_that_differ_in_any_input_have_artifacts_and_groups_of_their_own(
    adopter: dict[str, str],
) -> None:
    source = Path(adopter["GITHUB_WORKSPACE"], "source")
    for folder in "ab":
        (source / folder).mkdir()
        shutil.copy(source / "ci/my models.toml", source / folder / "models.toml")
    many = [source / f"{'long' * 20}-{number}.toml" for number in range(6)]
    for file in many:
        shutil.copy(source / "ci/my models.toml", file)
    calls: list[dict[str, str]] = [
        {},
        {"QNN_CI_SOC": "SM8650"},
        {"QNN_CI_SOC": "SM8750"},
        {"QNN_CI_TAGS": "pr"},
        {"QNN_CI_STAGES": "lowering"},
        {"QNN_CI_GATE_REQUIREMENTS": "requirements.txt"},
        {"QNN_CI_RUNS_ON": '["self-hosted"]'},
        {"QNN_CI_PREPARE": "make"},
        {"QNN_CI_VARIABLES": "SIZE=small"},
        {"QNN_CI_SUITE": "a/models.toml"},
        {"QNN_CI_SUITE": "b/models.toml"},
        {"QNN_CI_SUITE": ",".join(file.name for file in many)},
    ]
    names = [{job["artifact"] for job in planned({**adopter, **call})} for call in calls]
    every = [name for group in names for name in group]
    assert len(set(every)) == len(every) and max(map(len, every)) < 120
    group = str(read_workflow(ROOT, ".github/workflows/gate.yml").jobs["stage"].concurrency["group"])
    assert "matrix.artifact" in group and "inputs." not in group, "GitHub refuses more than 400 characters"
    assert [{job["artifact"] for job in planned({**adopter, **calls[1]})}] == [names[1]]


def test_a_large_suite_gets_the_shards_and_minutes_that_its_owner_says(adopter: dict[str, str]) -> None:
    def entries(most: int, flags: Sequence[str], caller: plan.Caller) -> list[dict[str, str]]:
        return [{"shard": f"{n}/{most}", "arguments": f"--shard {n}/{most}"} for n in range(1, most + 1)]

    large = {**adopter, "QNN_CI_SHARDS": "20", "QNN_CI_MINUTES": "240"}
    jobs = planned({**large, "QNN_CI_STAGES": "lowering,lint"}, entries)
    minutes: dict[str, Any] = {job["name"]: job["minutes"] for job in jobs}
    assert minutes.pop("lint") == gate_table().row["lint"].minutes, "it is not about the suite"
    assert minutes == {f"lowering {n}/20": 240 for n in range(1, 21)}
    suite = Path(adopter["GITHUB_WORKSPACE"], "source/ci/onnx.toml")
    suite.write_text('schema = 2\n[case.net]\nmodel = "net.onnx"\n[[case.net.run]]\nlane = "onnx"\n')
    onnx = planned({**large, "QNN_CI_SUITE": "ci/onnx.toml", "QNN_CI_STAGES": "onnx"})
    assert [job["arguments"].partition("--shard ")[2] for job in onnx] == [f"{n}/20" for n in range(1, 21)]
    for name in ("QNN_CI_SHARDS", "QNN_CI_MINUTES"):
        for wrong in ("many", "-1", "1000", "1.5"):
            with pytest.raises(UsageError):
                planned({**adopter, name: wrong})


def test_jobs_run_on_the_runners_that_the_caller_names() -> None:
    jobs = read_workflow(ROOT, ".github/workflows/gate.yml").jobs.values()
    assert all("fromJSON(inputs.runs-on" in job.runs_on for job in jobs)


def test_what_pays_for_more_machines_or_is_named_is_split(adopter: dict[str, str]) -> None:
    jobs = planned({**adopter, "QNN_CI_STAGES": "lowering"})
    assert [job["name"] for job in jobs] == ["lowering 1/1"]
    shards = [{"shard": f"{index}/2", "arguments": f"--shard {index}/2"} for index in (1, 2)]
    jobs = planned(adopter, lambda *_: shards)
    names = ["lowering 1/2", "lowering 2/2", "emulator 1/2", "emulator 2/2"]
    assert [job["name"] for job in jobs] == ["validate", *names]


@pytest.mark.parametrize("name", ["none.toml", "../outside.toml", "link.toml", "/etc/hostname"])
def test_a_suite_that_is_not_in_the_calling_repository_is_an_error(
    adopter: dict[str, str], tmp_path: Path, name: str
) -> None:
    source = tmp_path / "source"
    (tmp_path / "outside.toml").write_bytes((source / "ci/my models.toml").read_bytes())
    (source / "link.toml").symlink_to(tmp_path / "outside.toml")
    with pytest.raises(UsageError, match=f"{name}: there is no such file in the calling repository"):
        plan.plan({**adopter, "QNN_CI_SUITE": name})


def test_a_misspelt_key_of_a_suite_is_annotated_at_its_line_with_the_right_one(
    adopter: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = Path(adopter["GITHUB_WORKSPACE"], "source/ci/my models.toml")
    suite = suite.rename(suite.with_name("models.toml"))
    suite.write_text(suite.read_text().replace('precision = "8a8w"', 'precison = "8a8w"'))
    for name, value in {**adopter, "QNN_CI_SUITE": "ci/models.toml", "GITHUB_ACTIONS": "true"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as caught:
        run_here(verb, "plan")
    assert "precision?" in caught.value.fix
    line = suite.read_text().splitlines().index('precison = "8a8w"') + 1
    assert f"::error title=plan,file=ci/models.toml,line={line}::" in capsys.readouterr().out


@pytest.mark.parametrize("stages", ["buck_parity", "validate, build_x86"])
def test_a_named_job_that_cannot_run_is_an_error_and_no_job_less(
    adopter: dict[str, str], stages: str
) -> None:
    with pytest.raises(UsageError, match="executorch"):
        plan.plan({**adopter, "QNN_CI_STAGES": stages})


WANTED = setup.SetupInputs("wheels", (), ("x86_64-linux",), ("SM8650",))


def test_the_caches_key_follows_the_manifests(tmp_path: Path) -> None:
    profile = tmp_path / "profiles/wheels.toml"
    profile.parent.mkdir()
    profile.write_bytes((MANIFESTS / "profiles/wheels.toml").read_bytes())
    assert setup.cache_key(WANTED, tmp_path) == setup.cache_key(WANTED)
    profile.write_text(f"{profile.read_text()}# changed\n")
    assert setup.cache_key(WANTED, tmp_path) != setup.cache_key(WANTED)


@pytest.mark.parametrize(
    ("profile", "components", "cached"),
    [
        ("wheels", "", "true"),
        ("qnn-2.37", "", "false"),
        ("qnn-2.37", "executorch-source", "true"),
    ],
)
def test_what_a_licence_was_accepted_for_is_never_cached(
    tmp_path: Path, profile: str, components: str, cached: str
) -> None:
    environ = {"QNN_CI_PROFILE": profile, "QNN_CI_COMPONENTS": components, "RUNNER_TEMP": str(tmp_path)}
    assert setup.place({**environ, "GITHUB_OUTPUT": str(tmp_path / "output")}) == 0
    outputs = pairs(tmp_path / "output")
    assert outputs_read("place") <= outputs.keys() and outputs["cacheable"] == cached
    assert outputs["key"] == setup.cache_key(setup.SetupInputs.of(environ))


@pytest.mark.parametrize(("chosen", "exported"), [("", ""), ("SM8750, SM8650", "SM8750,SM8650")])
def test_later_steps_have_the_chips_that_were_chosen_and_no_other(
    tmp_path: Path, chosen: str, exported: str
) -> None:
    """Not the one of the exported environment, which would be the only one that the stages then take."""
    programs = write_sdk(tmp_path / "sdk") / "bin" / HOST_LIBRARIES
    programs.mkdir(parents=True, exist_ok=True)
    files = {"GITHUB_ENV": "env", "GITHUB_PATH": "path", "GITHUB_OUTPUT": "output"}
    paths = {**files, "QNN_SDK_ROOT": "sdk", "QNN_CI_STORE": "store"}
    places = {name: str(tmp_path / path) for name, path in paths.items()}
    assert (
        setup.setup({**os.environ, **places, "QNN_CI_SOC": chosen, "QNN_CI_REPORTS": places["QNN_CI_STORE"]})
        == 0
    )
    variables, outputs = pairs(tmp_path / "env"), pairs(tmp_path / "output")
    assert outputs_read("setup") <= outputs.keys() and outputs["sdk-root"] == places["QNN_SDK_ROOT"]
    assert (variables["QNN_CI_SOC"], variables["QNN_SDK_ROOT"]) == (exported, places["QNN_SDK_ROOT"])
    assert "PATH" not in variables and (tmp_path / "path").read_text() == f"{programs}\n"


@pytest.mark.parametrize("restored", ["true", ""])
def test_no_verdict_comes_with_a_restored_store(tmp_path: Path, restored: str) -> None:
    entry = tmp_path / "qnn-ci-store" / "cache" / "memo" / "entry.json"
    entry.parent.mkdir(parents=True)
    entry.touch()
    environ = {"RUNNER_TEMP": str(tmp_path), "QNN_CI_PROFILE": "none", "QNN_CI_RESTORED": restored}
    assert setup.setup({**os.environ, **environ, "QNN_CI_STORE": ""}) == 2
    assert entry.exists() == (not restored)


def run_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, **more: str) -> int:
    """With a stand-in for nox that writes down how it was called, and then does what the test says."""
    nox = script(tmp_path / "bin" / "nox", f'printf "%s\\n" "$@" > {tmp_path}/argv\n{text}')
    monkeypatch.setenv("PATH", f"{nox.parent}{os.pathsep}{os.environ['PATH']}")
    environ = {
        "PATH": os.environ["PATH"],
        "GITHUB_WORKSPACE": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "QNN_CI_STAGE": "validate",
        **more,
    }
    return stage(environ)


def report_of(tmp_path: Path, outcome: Outcome) -> str:
    """A command that leaves a stage's report."""
    run = StageRun("validate", "wheels", "x86_64-linux", "nox -s validate")
    report = run.finish(outcome).write(tmp_path)
    return f"mkdir -p {tmp_path}/reports; cp {report} {tmp_path}/reports/validate.json"


def test_a_stages_arguments_are_split_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = report_of(tmp_path, Outcome.PASS)
    code = run_stage(tmp_path, monkeypatch, text, QNN_CI_ARGUMENTS="-k 'a b' $(touch x); ls")
    assert code == 0 and outputs_read("stage") <= pairs(tmp_path / "output").keys()
    argv = (tmp_path / "argv").read_text().splitlines()
    assert argv[2:] == ["-s", "validate", "--", "-k", "a b", "$(touch", "x);", "ls"]


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("exit 0", 1, "wrote no report"),
        ("exit 7", 7, "ended with exit code 7, and wrote no report"),
        ("PASS; exit 1", 1, "its report says pass"),
        ("FAIL; exit 0", 1, "its report says fail"),
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
    for outcome in (Outcome.PASS, Outcome.FAIL):
        if outcome.name in text:
            text = text.replace(outcome.name, report_of(tmp_path, outcome))
    assert run_stage(tmp_path, monkeypatch, text) == code
    assert says in capfd.readouterr().out


@pytest.mark.parametrize(("folder", "installed"), [("source", True), ("", False)])
def test_another_repository_is_told_what_to_type_where_only_qnn_ci_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str, installed: bool
) -> None:
    run_stage(
        tmp_path,
        monkeypatch,
        f"env > {tmp_path}/env",
        QNN_CI_FOLDER=folder or str(ROOT),
        HF_TOKEN="",
        PIP_INDEX_URL="https://somebody@index.example",
    )
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert seen["QNN_CI_STARTED_IN"] == (str(tmp_path / folder) if folder else str(ROOT))
    assert "HF_TOKEN" not in seen and seen["PIP_INDEX_URL"]
    monkeypatch.delenv(SPELLED_INSTALLED, raising=False)
    if spelled := seen.get(SPELLED_INSTALLED):
        monkeypatch.setenv(SPELLED_INSTALLED, spelled)
    assert session("validate").startswith("qnn-ci ") == installed


def test_what_a_stage_says_of_a_line_of_the_suite_is_annotated_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "models.toml"
    suite.write_text("schema = 2\n[case.net]\nfactroy = 3\n")
    monkeypatch.chdir(tmp_path)
    text = f"echo 'error: {suite}:3: case.net.factroy: expected no such key'; exit 2"
    typed = {"QNN_CI_STAGE": "test_lowering", "QNN_CI_ARGUMENTS": "--suite models.toml"}
    assert run_stage(tmp_path, monkeypatch, text, **typed) == 2
    assert "::error file=models.toml,line=3," in capfd.readouterr().out


def test_a_verb_of_the_laboratory_passes_by_its_own_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = report_of(tmp_path, Outcome.PASS).replace("reports/validate.json", "reports/golden.json")
    typed = {"QNN_CI_STAGE": "lab", "QNN_CI_ARGUMENTS": "golden --lane onnx"}
    assert run_stage(tmp_path, monkeypatch, text, **typed) == 0
    assert run_stage(tmp_path, monkeypatch, report_of(tmp_path, Outcome.PASS), **typed) == 1


def test_the_tests_see_nothing_of_the_job_that_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_stage(tmp_path, monkeypatch, f"env > {tmp_path}/env", QNN_CI_STAGE="tests", CI="true")
    seen = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert "CI" in seen
    assert not any(name.startswith(("GITHUB_", "RUNNER_")) for name in seen)


def test_a_stage_gets_its_variables_and_root_if_its_row_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = f'[ "$1" = --non-interactive ] && shift && touch {tmp_path}/root && exec "$@"'
    sudo = script(tmp_path / "sudo" / "sudo", check)
    monkeypatch.setenv("PATH", f"{sudo.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    more = {
        "QNN_CI_STAGE": "tests",
        "QNN_CI_VARIABLES": "SWITCH=required 'OTHER=a b'",
        "QNN_CI_AS_ROOT": "true",
    }
    assert run_stage(tmp_path, monkeypatch, f"env > {tmp_path}/env", **more) == 0
    seen = (tmp_path / "env").read_text().splitlines()
    assert {"SWITCH=required", "OTHER=a b"} <= set(seen) and (tmp_path / "root").exists()


def test_only_named_stages_are_planned_and_an_unknown_one_is_an_error() -> None:
    assert list(plan.named_only(ROWS, "tests, always")) == ["always", "some"]
    with pytest.raises(UsageError, match="nonsense"):
        plan.named_only(ROWS, "nonsense")


@pytest.mark.parametrize("wrong", ["SIZE", "SIZE=small other", "A-B=1", "SIZE='small"])
def test_the_plan_refuses_variables_that_no_job_could_set(adopter: dict[str, str], wrong: str) -> None:
    with pytest.raises(UsageError):
        planned({**adopter, "QNN_CI_VARIABLES": wrong})


def test_a_selection_that_cannot_be_provisioned_fails_with_its_annotations(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {
        **os.environ,
        "QNN_SDK_ROOT": str(tmp_path),
        "QNN_CI_STORE": str(tmp_path / "store"),
        "QNN_CI_REPORTS": str(tmp_path / "reports"),
    }
    assert setup.setup(environ) == 3
    assert "::error title=provision" in capfd.readouterr().out


def test_checks_that_a_row_of_integration_tests_cannot_run_make_it_red() -> None:
    rows = [row for name, row in gate_table().row.items() if name.startswith("integration")]
    assert {row.arguments.split()[0] for row in rows} == {"tests", "tests/integration"}
    for row in rows:
        assert row.root and row.variables == {engine.SWITCH: "required", needs.SWITCH: "required"}
        on_the_runner = {"binutils", "chromium", "docker.io", "openssh-client", "openssl", "shellcheck"}
        assert {*needs.PACKAGES.values(), *engine.PROGRAMS.values()} <= {*row.packages, *on_the_runner}
