"""What the workflows do, without GitHub: plan, place, setup, stage, verdict and release."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ci import github as verb
from ci.gate.table import CiJob, GateTable, IgnoredChanges, gate_table
from ci.github import place, plan, publish, release, setup, stage, verdict
from provisioning.base.errors import CheckFailed, UpstreamError, UsageError
from provisioning.base.findings import Outcome
from provisioning.base.settings import MANIFESTS, ROOT
from provisioning.base.stage_run import StageRun
from provisioning.environment import HOST_LIBRARIES
from tests.support import engine, needs
from tests.support.environments import write_sdk
from tests.support.repositories import repository
from tests.support.scripts import script
from tests.support.typed import run_here
from tests.support.workflows.commands import pairs
from tests.support.workflows.files import read_workflow

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
        'socs = ["SM8650"]\ntags = ["{2}"]\nthresholds.cosine = 0.9\n'
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


def in_one(most: int, flags: tuple[str, ...], socs: str) -> list[dict[str, Any]]:
    """What `matrix` says of a small suite; it takes a process."""
    return [{"shard": "1/1", "arguments": "--shard 1/1"}]


def planned(environ: dict[str, str], matrix: plan.Matrix = in_one) -> list[dict[str, str]]:
    assert plan.run(environ, matrix=matrix) == 0
    jobs: list[dict[str, str]] = json.loads(pairs(Path(environ["GITHUB_OUTPUT"]))["jobs"])
    return jobs


def test_another_repository_gets_its_own_few_models_in_one_job_and_nothing_about_the_toolkit(
    adopter: dict[str, str],
) -> None:
    (job,) = planned(adopter, plan.matrix_entries)
    assert (job["name"], job["stage"]) == ("programs", "gate")
    relative = os.path.relpath(Path(adopter["GITHUB_WORKSPACE"], "source/ci/my models.toml"), ROOT)
    assert shlex.split(job["arguments"]) == [
        *("--target", "x86_64-linux"),
        *("--suite", relative),
    ]


def test_requirements_of_the_calling_repository_are_not_looked_for_in_the_toolkit(
    adopter: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QNN_CI_REQUIREMENTS", "ci/requirements.txt")
    (job,) = planned({**adopter, "QNN_CI_REQUIREMENTS": "ci/requirements.txt"}, plan.matrix_entries)
    assert job["name"] == "programs"


def test_an_onnx_suite_of_another_repository_goes_to_the_job_that_runs_onnx_models(
    adopter: dict[str, str],
) -> None:
    suite = Path(adopter["GITHUB_WORKSPACE"], "source/ci/onnx.toml")
    suite.write_text('schema = 2\n[case.net]\nmodel = "net.onnx"\n[[case.net.run]]\nlane = "onnx"\n')
    both = planned({**adopter, "QNN_CI_SUITE": "ci/my models.toml, ci/onnx.toml"})
    assert [job["name"] for job in both] == ["programs", "onnx"]
    assert shlex.split(both[1]["arguments"]) == ["--suite", os.path.relpath(suite, ROOT)]
    assert "onnx.toml" not in both[0]["arguments"]
    alone = planned({**adopter, "QNN_CI_SUITE": "ci/onnx.toml"})
    assert [job["name"] for job in alone] == ["validate", "onnx"]


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
    assert shlex.split(onnx["arguments"]) == ["--suite", os.path.relpath(suite, ROOT)]


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
        {"QNN_CI_REQUIREMENTS": "requirements.txt"},
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
    def entries(most: int, flags: tuple[str, ...], socs: str) -> list[dict[str, str]]:
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


def test_jobs_run_on_the_runners_that_the_caller_names(adopter: dict[str, str]) -> None:
    for text in ('"ubuntu-24.04"', '["self-hosted", "linux"]'):
        planned({**adopter, "QNN_CI_RUNS_ON": text})
        assert json.loads(pairs(Path(adopter["GITHUB_OUTPUT"]))["runs-on"]) == json.loads(text)
    for wrong in ("ubuntu-24.04", '{"group": "big"}', "3", "[]", '["linux", 3]', '""', "null"):
        with pytest.raises(UsageError):
            planned({**adopter, "QNN_CI_RUNS_ON": wrong})
    jobs = dict(read_workflow(ROOT, ".github/workflows/gate.yml").jobs)
    assert "inputs.runs-on" in jobs.pop("plan").runs_on
    assert all("needs.plan.outputs.runs-on" in job.runs_on and "plan" in job.needs for job in jobs.values())


def test_what_pays_for_more_machines_or_is_named_is_split(adopter: dict[str, str]) -> None:
    jobs = planned({**adopter, "QNN_CI_STAGES": "lowering"})
    assert [job["name"] for job in jobs] == ["lowering 1/1"]
    shards = [{"shard": f"{index}/2", "arguments": f"--shard {index}/2"} for index in (1, 2)]
    jobs = planned(adopter, lambda *_: shards)
    names = ["lowering 1/2", "lowering 2/2", "emulator 1/2", "emulator 2/2"]
    assert [job["name"] for job in jobs] == ["validate", *names]


@pytest.mark.parametrize(
    ("stages", "profile", "targets"),
    [
        ("validate, delegate", "wheels", "x86_64-linux"),
        ("validate, build-runner", "wheels", "x86_64-linux"),
        ("validate", "wheels", ""),
        ("validate, delegate", "qnn-2.37", ""),
    ],
)
def test_only_what_jobs_share_and_a_cache_may_hold_is_provisioned_for_them(
    tmp_path: Path, stages: str, profile: str, targets: str
) -> None:
    output = tmp_path / "output"
    plan.run({"GITHUB_OUTPUT": str(output), "QNN_CI_STAGES": stages, "QNN_CI_PROFILE": profile})
    assert pairs(output)["targets"] == targets


@pytest.mark.parametrize("name", ["none.toml", "../outside.toml", "/etc/hostname"])
def test_a_suite_that_is_not_in_the_calling_repository_is_an_error(
    adopter: dict[str, str], tmp_path: Path, name: str
) -> None:
    (tmp_path / "outside.toml").write_text("schema = 2\n")
    with pytest.raises(UsageError, match=name):
        plan.run({**adopter, "QNN_CI_SUITE": name})


@pytest.mark.parametrize("stages", ["buck_parity", "validate, build_x86"])
def test_a_named_job_that_cannot_run_is_an_error_and_no_job_less(
    adopter: dict[str, str], stages: str
) -> None:
    with pytest.raises(UsageError, match="executorch"):
        plan.run({**adopter, "QNN_CI_STAGES": stages})


@pytest.mark.parametrize(
    ("caller", "flags"),
    [
        ({}, ["--tag", "pr"]),
        ({"suites": ("my.toml",)}, ["--suite", "my.toml"]),
        ({"suites": ("my.toml",), "tags": ("a",)}, ["--suite", "my.toml", "--tag", "a"]),
    ],
)
def test_of_our_suite_a_pull_request_has_the_quick_programs_and_of_others_all_that_they_name(
    caller: dict[str, tuple[str, ...]], flags: list[str]
) -> None:
    assert plan.suite_flags("gate", plan.Caller("wheels", **caller)) == flags  # type: ignore[arg-type]


@pytest.mark.parametrize("base", ["", "0" * 40, "feedfacefeedfacefeedfacefeedfacefeedface"])
def test_what_changed_since_an_unknown_commit_is_not_known(base: str) -> None:
    assert plan.changed_files(base) is None


WANTED = place.SetupInputs("wheels", (), ("x86_64-linux",), ("SM8650",))


@pytest.mark.parametrize("changed", ["profiles/wheels.toml", "socs.toml"])
def test_the_caches_key_follows_the_manifests(tmp_path: Path, changed: str) -> None:
    for name in ("profiles/wheels.toml", "socs.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((MANIFESTS / name).read_bytes())
    assert place.cache_key(WANTED, tmp_path) == place.cache_key(WANTED)
    with (tmp_path / changed).open("a") as stream:
        stream.write("# changed\n")
    assert place.cache_key(WANTED, tmp_path) != place.cache_key(WANTED)


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
    assert place.run({**environ, "GITHUB_OUTPUT": str(tmp_path / "output")}) == 0
    outputs = pairs(tmp_path / "output")
    assert outputs["cacheable"] == cached
    assert outputs["key"] == place.cache_key(place.SetupInputs.of(environ))
    assert outputs["save"].startswith(f"{outputs['key']}-"), "what one run saves, a later one may replace"


@pytest.mark.parametrize(("chosen", "exported"), [("", ""), ("SM8750, SM8650", "SM8750,SM8650")])
def test_later_steps_have_the_chips_that_were_chosen_and_no_other(
    tmp_path: Path, chosen: str, exported: str
) -> None:
    """Not the one of the exported environment, which would be the only one that the stages then take."""
    programs = write_sdk(tmp_path / "sdk") / "bin" / HOST_LIBRARIES
    programs.mkdir(parents=True, exist_ok=True)
    paths = {"GITHUB_ENV": "env", "GITHUB_PATH": "path", "QNN_SDK_ROOT": "sdk", "QNN_CI_STORE": "store"}
    places = {name: str(tmp_path / path) for name, path in paths.items()}
    assert (
        setup.run({**os.environ, **places, "QNN_CI_SOC": chosen, "QNN_CI_REPORTS": places["QNN_CI_STORE"]})
        == 0
    )
    variables = pairs(tmp_path / "env")
    assert (variables["QNN_CI_SOC"], variables["QNN_SDK_ROOT"]) == (exported, places["QNN_SDK_ROOT"])
    assert "PATH" not in variables and (tmp_path / "path").read_text() == f"{programs}\n"


@pytest.mark.parametrize("restored", ["true", ""])
def test_no_verdict_comes_with_a_restored_store(tmp_path: Path, restored: str) -> None:
    entry = tmp_path / "qnn-ci-store" / "cache" / "memo" / "entry.json"
    entry.parent.mkdir(parents=True)
    entry.touch()
    environ = {"RUNNER_TEMP": str(tmp_path), "QNN_CI_PROFILE": "none", "QNN_CI_RESTORED": restored}
    assert setup.run({**os.environ, **environ, "QNN_CI_STORE": ""}) == 2
    assert entry.exists() == (not restored)


def test_a_selection_that_cannot_be_provisioned_fails_with_its_annotations(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environ = {
        **os.environ,
        "QNN_SDK_ROOT": str(tmp_path),
        "QNN_CI_STORE": str(tmp_path / "store"),
        "QNN_CI_REPORTS": str(tmp_path / "reports"),
    }
    assert setup.run(environ) == 3
    assert "::error title=provision" in capfd.readouterr().out


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
    return stage.run(environ)


def report_of(tmp_path: Path, outcome: Outcome) -> str:
    """A command that leaves a stage's report."""
    run = StageRun("validate", "wheels", "x86_64-linux", "nox -s validate")
    report = run.finish(outcome).write(tmp_path)
    return f"mkdir -p {tmp_path}/reports; cp {report} {tmp_path}/reports/validate.json"


def test_a_stages_arguments_are_split_and_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = report_of(tmp_path, Outcome.PASS)
    code = run_stage(tmp_path, monkeypatch, text, QNN_CI_ARGUMENTS="-k 'a b' $(touch x); ls")
    assert code == 0
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


def test_a_report_of_an_earlier_run_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reports = tmp_path / "reports"
    StageRun("validate", "wheels", "x86_64-linux", "").finish(Outcome.PASS).write(reports)
    assert run_stage(tmp_path, monkeypatch, "exit 0") == 1


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


def test_checks_that_a_row_of_integration_tests_cannot_run_make_it_red() -> None:
    rows = [row for name, row in gate_table().row.items() if name.startswith("integration")]
    assert {row.arguments.split()[0] for row in rows} == {"tests", "tests/integration"}
    for row in rows:
        assert row.root and row.variables == {engine.SWITCH: "required", needs.SWITCH: "required"}
        on_the_runner = {"binutils", "chromium", "docker.io", "openssh-client", "openssl", "shellcheck"}
        assert {*needs.PACKAGES.values(), *engine.PROGRAMS.values()} <= {*row.packages, *on_the_runner}


@pytest.mark.parametrize(
    ("results", "code"),
    [
        (["success", "success"], 0),
        (["success", "failure"], 1),
        (["cancelled", "success"], 1),
        (["success", "left out"], 1),
    ],
)
def test_only_success_is_success(
    results: list[str], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {f"{verdict.RESULT}JOB{n}": result for n, result in enumerate(results)}
    environ["GITHUB_STEP_SUMMARY"] = str(tmp_path / "s")
    assert verdict.run(environ) == code
    assert capsys.readouterr().out.count("::error") == sum(r != "success" for r in results)


def test_a_verdict_on_nothing_is_an_error() -> None:
    with pytest.raises(UsageError):
        verdict.run({"QNN_CI_RESULTS": "success"})


RELEASED = {
    "pyproject.toml": '[project]\nname = "x"\nversion = "1.2"\n'
    '[project.urls]\nRepository = "https://github.com/a/b"\n',
    "CHANGELOG.md": "## 1.2.1\n\n- Not yet.\n\n## 1.2 (2026-01-02)\n\n- Faster.\n\n## 1.1\n\n- Old.\n",
}


def test_a_release_is_the_same_wherever_and_whenever_it_is_made_and_its_checksums_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2026-01-02T03:04:05+0000")
    first = repository(tmp_path / "one", RELEASED)
    subprocess.run(["git", "clone", "-q", first, tmp_path / "other"], check=True)
    releases = []
    for root, kind, name in ((first, "tag", "v1.2"), (tmp_path / "other", "branch", "main")):
        about = {"GITHUB_REF_TYPE": kind, "GITHUB_REF_NAME": name, "GITHUB_OUTPUT": str(tmp_path / kind)}
        release.make(about, root)
        releases.append({path.name: path.read_bytes() for path in (root / "dist" / "release").iterdir()})
    assert releases[0] == releases[1]
    sums = releases[0].pop("SHA256SUMS").decode().splitlines()
    assert sorted(sums) == sorted(
        f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in releases[0].items()
    )
    assert pairs(tmp_path / "tag") == {"archive": "qnn-ci-1.2.tar.gz", "sbom": "qnn-ci-1.2.cdx.json"}
    bill = json.loads(releases[0]["qnn-ci-1.2.cdx.json"])
    assert bill["metadata"]["timestamp"] == "2026-01-02T03:04:05+00:00"
    assert releases[0]["qnn-ci-1.2.tar.gz"][4:8] == bytes(4)  # where gzip would say when


def test_a_tag_that_is_not_the_version_is_refused() -> None:
    with pytest.raises(UsageError, match=r"v9\.9"):
        release.make({"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v9.9"})


@pytest.mark.parametrize(("file", "kept"), [("pyproject.toml", "a/b"), ("docs/page.md", "the example")])
def test_a_release_names_the_address_of_its_owner(file: str, kept: str, tmp_path: Path) -> None:
    files = {**RELEASED, "docs/page.md": "uses: the example\n"}
    release.require_releasable(repository(tmp_path / "owned", files))
    left = {**files, file: files[file].replace(kept, "OWNER/qnn-ci")}
    with pytest.raises(CheckFailed):
        release.require_releasable(repository(tmp_path / "left", left))


@dataclass
class GitHubCli:
    """A program gh that writes down how it is called, and fails at what it is told to."""

    root: Path
    log: Path

    def publish(self) -> int:
        about = {"GITHUB_REF_TYPE": "tag", "GITHUB_REF_NAME": "v1.2", "QNN_CI_RELEASE": "dist/release"}
        return publish.run({**about, "GITHUB_WORKSPACE": str(self.root)}, self.root)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def gh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitHubCli:
    root = repository(tmp_path / "released", RELEASED)
    text = f"""
if [ "$2" = view ]; then
  echo "$GH_VIEW"
  [ -n "$GH_VIEW" ] || echo 'release not found' >&2
  [ -n "$GH_VIEW" ]
  exit
fi
echo "$@" >> {tmp_path}/calls
[ "$2" != "$GH_FAILS" ]"""
    program = script(tmp_path / "bin" / "gh", text)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    release.make({}, root)
    return GitHubCli(root, tmp_path / "calls")


def test_a_release_that_could_not_be_filled_stays_a_draft_and_the_next_try_fills_it(
    gh: GitHubCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_FAILS", "upload")
    with pytest.raises(UpstreamError):
        gh.publish()
    assert [line.split()[1] for line in gh.calls()] == ["create", "upload"]
    monkeypatch.setenv("GH_FAILS", "")
    monkeypatch.setenv("GH_VIEW", '{"isDraft": true}')
    assert gh.publish() == 0
    assert [line.split()[1] for line in gh.calls()[2:]] == ["edit", "upload", "edit"]


def test_nothing_is_published_twice_or_with_other_bytes_than_were_attested(
    gh: GitHubCli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GH_VIEW", '{"isDraft": false}')
    with pytest.raises(CheckFailed, match=r"v1\.2"):
        gh.publish()
    monkeypatch.setenv("GH_VIEW", "")
    (gh.root / "dist" / "release" / "more").touch()
    with pytest.raises(CheckFailed, match="more"):
        gh.publish()
    assert gh.calls() == []


def test_only_named_stages_are_planned_and_an_unknown_one_is_an_error() -> None:
    assert list(plan.named_only(ROWS, "tests, always")) == ["always", "some"]
    with pytest.raises(UsageError, match="nonsense"):
        plan.named_only(ROWS, "nonsense")


@pytest.mark.parametrize(("result", "code"), [("success", 0), ("skipped", 1)])
def test_the_command_ends_as_its_part_does(monkeypatch: pytest.MonkeyPatch, result: str, code: int) -> None:
    monkeypatch.setenv(f"{verdict.RESULT}STAGE", result)
    assert run_here(verb, "verdict") == code


def test_inputs_become_flags_whatever_separates_them() -> None:
    wanted = place.SetupInputs.of(
        {"QNN_CI_TARGETS": "x86_64-linux, aarch64-android", "QNN_CI_COMPONENTS": "qnn-sdk"}
    )
    assert wanted.flags() == [
        *("--component", "qnn-sdk"),
        *("--target", "x86_64-linux", "--target", "aarch64-android"),
    ]
