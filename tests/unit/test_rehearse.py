"""Miniature workflows run as GitHub would run them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ci.github import rehearse as verb
from ci.github.rehearse.model import read_workflow
from ci.github.rehearse.rehearsal import Choice, fresh_environment
from ci.github.rehearse.runner import run_workflow
from provisioning.base.errors import UsageError
from provisioning.base.findings import Outcome, Report
from tests.support.rehearsals import IDENTITY, SHA, WORKFLOW, log_of, rehearsal, rehearse, repository
from tests.support.typed import run_here


def test_after_a_failure_only_steps_that_ask_for_it_run(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          a:
            steps:
              - {name: breaks, run: exit 3}
              - {name: plain, run: "true"}
              - {name: asks, if: failure(), run: "true"}
              - {name: always, if: always(), run: "true"}
        """,
    )
    assert [(s.title, s.outcome) for s in jobs["a"].steps] == [
        ("breaks", "failure"),
        ("plain", "skipped"),
        ("asks", "success"),
        ("always", "success"),
    ]
    assert jobs["a"].result == "failure"
    assert jobs["a"].failure == "breaks: ended with exit code 3"


def test_needs_carry_results_and_outputs_and_skip_what_depends_on_a_failure(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          one:
            outputs: {word: "${{ steps.s.outputs.word }}"}
            steps: [{id: s, run: 'echo "word=hello" >> "$GITHUB_OUTPUT"'}]
          two:
            needs: one
            steps: [{run: 'echo "${{ needs.one.outputs.word }}" > x; test "$(cat x)" = hello; exit 1'}]
          three: {needs: [one, two], steps: [{run: "true"}]}
          four: {needs: three, if: "always()", steps: [{env: {N: "${{ toJSON(needs) }}"}, run: 'echo "$N"'}]}
          five: {needs: four, steps: [{run: "true"}]}
          six: {if: "false", steps: [{run: "true"}]}
          seven: {needs: six, steps: [{run: "true"}]}
        """,
    )
    results = {name: job.result for name, job in jobs.items()}
    assert results == {
        "one": "success",
        "two": "failure",
        "three": "skipped",
        "four": "success",
        "five": "skipped",  # for an ancestor failed, though its own need did not
        "six": "skipped",
        "seven": "skipped",
    }
    assert '"result": "skipped"' in log_of(jobs["four"])


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (f"{{uses: actions/download-artifact@{SHA}, with: {{name: none}}}}", "there is no artifact 'none'"),
        ("{run: 'echo GITHUB_REF=x >> $GITHUB_ENV'}", "GITHUB_ENV cannot set GITHUB_REF"),
        ("{run: sleep 30, timeout-minutes: 0.005}", "ended with exit code -15"),
    ],
)
def test_what_fails_a_step_there_fails_it_here(tmp_path: Path, step: str, says: str) -> None:
    job = rehearse(tmp_path, f"jobs: {{a: {{steps: [{step}]}}}}")["a"]
    assert job.result == "failure"
    assert says in job.failure
    assert says in log_of(job)


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (f"{{uses: someone/else@{SHA}}}", "someone/else has no local equivalent"),
        (f"{{uses: actions/checkout@{SHA}, with: {{sparse: x}}}}", "found sparse"),
        ("{run: 'echo ${{ github.nonsense }}'}", "github.nonsense is not known"),
        ("{run: 'echo ${{ steps.none.outputs.x }}'}", "found steps.none"),
    ],
)
def test_what_cannot_be_rehearsed_is_an_error_and_no_pass(tmp_path: Path, step: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        rehearse(tmp_path, f"jobs: {{a: {{steps: [{step}]}}}}")
    assert says in caught.value.message


def test_a_fresh_runner_has_nothing_of_the_users_but_how_to_reach_an_index_or_an_engine() -> None:
    users = {
        "QNN_SDK_ROOT": "/sdk",
        "LD_LIBRARY_PATH": "/sdk/lib",
        "GITHUB_TOKEN": "secret",
        "HOME": "/users/me",
        "PIP_INDEX_URL": "mine",
        "https_proxy": "proxy",
        "DOCKER_HOST": "unix:///run/user/1000/docker.sock",
        "PATH": "/store/venv/bin:/usr/bin",
    }
    assert fresh_environment(users, ["QNN_CI_SOC=SM8750", "EMPTY=", "URL=a=b"], Path("/store")) == {
        "HOME": "/users/me",
        "PIP_INDEX_URL": "mine",
        "https_proxy": "proxy",
        "DOCKER_HOST": "unix:///run/user/1000/docker.sock",
        "PIP_CACHE_DIR": "/users/me/.cache/pip",
        "UV_CACHE_DIR": "/users/me/.cache/uv",
        "PATH": "/usr/bin",
        "QNN_CI_SOC": "SM8750",
        "EMPTY": "",
        "URL": "a=b",
    }


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one, as each rehearsal of another repository clones it."""
    monkeypatch.setattr(
        "ci.github.rehearse.verb.ROOT", repository(tmp_path / "toolkit", {"who": "toolkit\n"})
    )


def run_verb(tmp_path: Path, *flags: str, workflow: str) -> tuple[int, Report]:
    text = f"on: [pull_request]\njobs: {{a: {{steps: [{{run: '{workflow}'}}]}}}}\n"
    if not (root := tmp_path / "origin").exists():
        repository(root, {".github/workflows/w.yml": text})
    reports = tmp_path / "reports"
    code = run_here(verb, "w", "--root", root, "--reports", reports, *flags)
    return code, Report.read(reports / "rehearse.json")


@pytest.mark.usefixtures("toolkit")
def test_a_red_rehearsal_exits_1_and_shows_annotations_and_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = run_verb(tmp_path, workflow="echo ::error title=t::it broke; exit 4")
    assert (code, report.outcome) == (1, Outcome.FAIL)
    assert [(f.rule, f.message) for f in report.findings] == [
        ("rehearse.job", "echo ::error title=t::it broke; exit 4: ended with exit code 4"),
        ("rehearse.error", "error: t: it broke"),
    ]
    assert "a: error: t: it broke" in capsys.readouterr().out


@pytest.mark.usefixtures("toolkit")
def test_uncommitted_changes_are_rehearsed_only_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_verb(tmp_path, workflow="true")
    file = tmp_path / "origin" / ".github" / "workflows" / "w.yml"
    file.write_text(file.read_text().replace("true", "false"))
    assert run_verb(tmp_path, workflow="")[0] == 0
    assert "1 uncommitted changes are not rehearsed" in capsys.readouterr().out
    assert run_verb(tmp_path, "--uncommitted", workflow="")[0] == 1


def test_what_may_fail_fails_nothing_else_and_a_failed_row_stops_the_others(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          a:
            steps:
              - {id: s, continue-on-error: true, run: exit 3}
              - {run: 'test "${{ steps.s.outcome }} ${{ steps.s.conclusion }}" = "failure success"'}
          b: {continue-on-error: true, steps: [{run: exit 1}]}
          c: {needs: [a, b], steps: [{run: "true"}]}
          d:
            needs: c
            strategy: {max-parallel: 1, matrix: {n: [1, 2]}}
            steps: [{run: exit 1}]
        """,
    )
    results = [jobs[name].result for name in ("a", "b", "c", "d (1)", "d (2)")]
    assert results == ["success", "success", "success", "failure", "cancelled"]


def test_an_interruption_cancels_but_what_always_runs(tmp_path: Path) -> None:
    lines: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        rehearse(
            tmp_path,
            """
            jobs:
              a:
                steps:
                  - {run: kill -INT $PPID; sleep 30}
                  - {name: tidy, if: always(), run: "true"}
              b: {needs: a, steps: [{run: "true"}]}
            """,
            lines=lines,
        )
    assert any(line.startswith("a: ok: tidy") for line in lines)
    assert any(line.startswith("a: cancelled") for line in lines) and "b: cancelled" in lines


def test_a_checkout_takes_submodules_from_the_users_own_clone(tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner", {"file.txt": "of the submodule"})
    steps = f"[{{uses: actions/checkout@{SHA}, with: {{submodules: true}}}}, {{run: cat part/file.txt}}]"
    workflow = f"on: [push]\njobs:\n  a: {{steps: {steps}}}\n"
    root = repository(tmp_path / "root", {WORKFLOW: workflow})
    add = ["git", "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "part"]
    subprocess.run(add, cwd=root, check=True)
    subprocess.run(["git", *IDENTITY, "commit", "--quiet", "-m", "x"], cwd=root, check=True)
    inner.rename(tmp_path / "gone")
    whole = rehearsal(root, tmp_path / "scratch")
    ((result,), _, _) = run_workflow(whole, read_workflow(root, WORKFLOW), {}, Choice())
    assert result.result == "success", log_of(result)


def test_a_masked_value_reaches_no_log_summary_or_annotation(tmp_path: Path) -> None:
    lines: list[str] = []
    steps = """
        jobs:
          a:
            env: {SECRET: hush}
            steps:
              - run: echo "::add-mask::$SECRET"
              - run: echo "it is hush"; echo "hush" >> "$GITHUB_STEP_SUMMARY"; echo "::error title=hush::hush"
              - {name: "say ${{ env.SECRET }}", run: exit 1}
        """
    job = rehearse(tmp_path, steps, lines=lines)["a"]
    assert "it is ***" in log_of(job) and job.failure == "say ***: ended with exit code 1"
    written = [*lines, job.summary, log_of(job), *(one.shown() for one in job.annotations)]
    assert "hush" not in "\n".join([*written, *(step.title for step in job.steps)])
