"""Miniature workflows run as GitHub would run them."""

from __future__ import annotations

import _thread
import argparse
import subprocess
import threading
import time
from pathlib import Path

import pytest

from ci.github import rehearse as verb
from ci.github.rehearse.job import hash_files
from ci.github.rehearse.rehearsal import Choice, fresh_environment
from ci.github.rehearse.verb import snapshot_of
from provisioning.base.errors import UsageError
from provisioning.base.findings import Outcome, Report
from tests.support.rehearsals import IDENTITY, SHA, log_of, rehearse, repository


def test_steps_see_what_earlier_ones_set(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        env: {LEVEL: workflow, W: w}
        jobs:
          a:
            env: {LEVEL: job}
            steps:
              - id: first
                run: |
                  echo "FROM_FILE=set" >> "$GITHUB_ENV"
                  printf 'many<<E\\n1\\n2\\nE\\n' >> "$GITHUB_OUTPUT"
                  mkdir bin; printf '#!/bin/sh\\necho mine' > bin/tool; chmod +x bin/tool
                  echo "$PWD/bin" >> "$GITHUB_PATH"
                  echo "# told" >> "$GITHUB_STEP_SUMMARY"
              - env: {LEVEL: step, MANY: "${{ steps.first.outputs.many }}"}
                run: echo "$LEVEL $W $FROM_FILE $(tool) $MANY ${{ env.FROM_FILE }}"
        """,
    )
    assert jobs["a"].result == "success"
    assert "step w set mine 1\n2 set" in log_of(jobs["a"])
    assert jobs["a"].summary == "# told\n"


def test_a_step_speaks_of_its_own_variables_in_its_condition_and_all_else(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          a:
            steps:
              - env: {WHO: me}
                if: env.WHO == 'me'
                name: for ${{ env.WHO }}
                run: test "${{ env.WHO }}" = me
              - {if: env.WHO == 'me', name: nobody, run: exit 1}
        """,
    )
    assert [(s.title, s.outcome) for s in jobs["a"].steps] == [("for me", "success"), ("nobody", "skipped")]


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


def test_a_step_that_may_fail_does_not_fail_the_job(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          a:
            steps:
              - {id: x, run: exit 1, continue-on-error: true}
              - run: test "${{ steps.x.outcome }} ${{ steps.x.conclusion }}" = "failure success"
        """,
    )
    assert jobs["a"].result == "success"


@pytest.mark.parametrize(("may", "results"), [("true", {"success"}), ("false", {"failure", "skipped"})])
def test_a_job_that_may_fail_holds_nothing_up(tmp_path: Path, may: str, results: set[str]) -> None:
    text = f"""
        jobs:
          a: {{continue-on-error: {may}, steps: [{{run: exit 1}}]}}
          b: {{needs: a, steps: [{{run: "true"}}]}}
        """
    assert {job.result for job in rehearse(tmp_path, text).values()} == results


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


def test_a_matrix_from_an_output_makes_a_job_a_row(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          plan:
            outputs: {rows: "${{ steps.s.outputs.rows }}"}
            steps:
              - id: s
                run: echo 'rows=[{"n":"a","c":0},{"n":"b","c":1}]' >> "$GITHUB_OUTPUT"
          row:
            name: row ${{ matrix.n }}
            needs: plan
            strategy: {fail-fast: false, matrix: {include: "${{ fromJSON(needs.plan.outputs.rows) }}"}}
            steps: [{run: "exit ${{ matrix.c }}"}]
          end: {needs: row, if: "failure()", steps: [{run: "true"}]}
        """,
    )
    assert (jobs["row a"].result, jobs["row b"].result, jobs["end"].result) == (
        "success",
        "failure",
        "success",
    )


def test_with_fail_fast_the_rows_that_wait_are_cancelled(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          row:
            strategy: {matrix: {n: [1, 2, 3]}}
            steps: [{run: sleep 0.2; exit 1}]
        """,
        slots=1,
    )
    assert sorted(job.result for job in jobs.values()) == ["cancelled", "cancelled", "failure"]


def test_only_some_rows_and_what_a_job_needs_can_be_chosen(tmp_path: Path) -> None:
    text = """
        jobs:
          first: {steps: [{run: "true"}]}
          row:
            needs: first
            strategy: {matrix: {n: [1, 2]}}
            steps: [{run: "true"}]
          other: {steps: [{run: exit 1}]}
        """
    jobs = rehearse(tmp_path, text, choice=Choice(only=("row",), rows=("row (2)",)))
    assert {name: job.result for name, job in jobs.items()} == {
        "first": "success",
        "row (1)": "left out",
        "row (2)": "success",
        "other": "left out",
    }


ACTION = """
    name: greet
    inputs: {who: {default: you}}
    outputs: {said: {value: "${{ steps.say.outputs.said }}"}}
    runs:
      using: composite
      steps:
        - id: say
          shell: bash
          env: {WHO: "${{ inputs.who }}"}
          run: |
            cat "$GITHUB_ACTION_PATH/word.txt"
            echo "said=hi $WHO" >> "$GITHUB_OUTPUT"
            test "$WHO" != nobody
        - {if: always(), shell: bash, run: "echo after $GITHUB_ACTION_PATH"}
    """


@pytest.mark.parametrize("uses", ["./actions/greet", "$/actions/greet"])
def test_a_composite_action_has_its_own_inputs_outputs_and_path(tmp_path: Path, uses: str) -> None:
    jobs = rehearse(
        tmp_path,
        f"""
        jobs:
          a:
            steps:
              - uses: actions/checkout@{SHA}
              - {{id: g, uses: {uses}, with: {{who: me}}}}
              - run: test "${{{{ steps.g.outputs.said }}}}" = "hi me"
        """,
        {"actions/greet/action.yml": ACTION, "actions/greet/word.txt": "word\n"},
    )
    assert jobs["a"].result == "success"
    assert "word" in log_of(jobs["a"])


def test_a_workspace_action_needs_a_checkout_and_a_self_reference_none(tmp_path: Path) -> None:
    files = {"actions/greet/action.yml": ACTION, "actions/greet/word.txt": ""}
    assert (
        rehearse(tmp_path / "1", "jobs: {a: {steps: [{uses: $/actions/greet}]}}", files)["a"].result
        == "success"
    )
    with pytest.raises(UsageError, match=r"no action\.yml in actions/greet"):
        rehearse(tmp_path / "2", "jobs: {a: {steps: [{uses: ./actions/greet}]}}", files)


def test_a_failure_inside_an_action_is_named_and_its_later_steps_still_run(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        "jobs: {a: {steps: [{uses: $/actions/greet, with: {who: nobody}}]}}",
        {"actions/greet/action.yml": ACTION, "actions/greet/word.txt": ""},
    )
    assert jobs["a"].failure.startswith("$/actions/greet: a step of $/actions/greet failed: ")
    assert "after " in log_of(jobs["a"])


CALLED = """
    on:
      workflow_call:
        inputs: {n: {type: number, required: true}, flag: {type: boolean}}
        outputs: {twice: {value: "${{ jobs.inner.outputs.twice }}"}}
    jobs:
      inner:
        outputs: {twice: "${{ steps.s.outputs.twice }}"}
        steps:
          - id: s
            if: ${{ !inputs.flag }}
            run: echo "twice=$((2 * ${{ inputs.n }}))" >> "$GITHUB_OUTPUT"
    """


def test_a_called_workflow_takes_inputs_and_gives_outputs(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          call: {uses: ./.github/workflows/called.yml, with: {n: 21}}
          after: {needs: call, steps: [{run: 'test 42 = "${{ needs.call.outputs.twice }}"'}]}
        """,
        {".github/workflows/called.yml": CALLED},
    )
    assert {name: job.result for name, job in jobs.items()} == {"call / inner": "success", "after": "success"}


@pytest.mark.parametrize(
    ("only", "after"), [("inner", "left out"), ("call", "left out"), ("after", "success")]
)
def test_of_a_called_workflow_that_is_chosen_or_needed_all_jobs_run(
    tmp_path: Path, only: str, after: str
) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          call: {uses: ./.github/workflows/called.yml, with: {n: 21}}
          after: {needs: call, steps: [{run: "true"}]}
        """,
        {".github/workflows/called.yml": CALLED},
        choice=Choice(only=(only,)),
    )
    assert {name: job.result for name, job in jobs.items()} == {"call / inner": "success", "after": after}


def test_artifacts_and_caches_really_copy_between_jobs(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        f"""
        jobs:
          make:
            steps:
              - run: mkdir -p out/deep store && echo x > out/deep/f && echo y > store/g && chmod 700 store/g
              - {{uses: actions/upload-artifact@{SHA}, with: {{name: n, path: out/}}}}
              - {{uses: actions/cache/save@{SHA}, with: {{path: store, key: k-1}}}}
          use:
            needs: make
            steps:
              - {{uses: actions/download-artifact@{SHA}, with: {{name: n, path: in}}}}
              - {{id: c, uses: actions/cache/restore@{SHA}, with: {{path: store, key: k-1}}}}
              - run: test "$(cat in/deep/f)" = x && test "$(cat store/g)" = y && test -x store/g
              - run: test "${{{{ steps.c.outputs.cache-hit }}}}" = true
              - {{id: d, uses: actions/cache/restore@{SHA}, with: {{path: other, key: k-1}}}}
              - run: test "${{{{ steps.d.outputs.cache-hit }}}}" = ""
        """,
    )
    assert {name: job.result for name, job in jobs.items()} == {"make": "success", "use": "success"}


UPLOAD = f"actions/upload-artifact@{SHA}"


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (f"{{uses: actions/download-artifact@{SHA}, with: {{name: none}}}}", "there is no artifact 'none'"),
        (
            f"{{uses: actions/upload-artifact@{SHA}, with: {{path: no, if-no-files-found: error}}}}",
            "no files match no",
        ),
        (
            f"{{uses: actions/upload-artifact@{SHA}, with: {{name: a/b, path: .}}}}",
            "characters that GitHub refuses",
        ),
        ("{run: 'echo GITHUB_REF=x >> $GITHUB_ENV'}", "GITHUB_ENV cannot set GITHUB_REF"),
        ("{run: 'echo nonsense >> $GITHUB_OUTPUT'}", "expected NAME=value"),
        ("{run: sleep 30, timeout-minutes: 0.005}", "ended with exit code -15"),
        ("{run: head -c 1048577 /dev/zero >> $GITHUB_STEP_SUMMARY}", "summary has 1048577 bytes"),
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
        ("{uses: actions/checkout}", "names no version"),
        (f"{{uses: actions/upload-artifact@{SHA}, with: {{name: n}}}}", "path, which is required"),
        (f"{{uses: actions/cache/restore@{SHA}, with: {{path: x}}}}", "key, which is required"),
        (f"{{uses: actions/cache/save@{SHA}, with: {{key: x}}}}", "path, which is required"),
        (f"{{uses: actions/attest@{SHA}}}", "subject-path, which is required"),
        ("{run: 'echo ${{ github.nonsense }}'}", "github.nonsense is not known"),
        ("{run: 'echo ${{ steps.none.outputs.x }}'}", "steps.none is not known"),
        ("{run: x, shell: pwsh}", "shell 'pwsh' is not known"),
    ],
)
def test_what_cannot_be_rehearsed_is_an_error_and_no_pass(tmp_path: Path, step: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        rehearse(tmp_path, f"jobs: {{a: {{steps: [{step}]}}}}")
    assert says in caught.value.message


PROPOSE = f"peter-evans/create-pull-request@{SHA}"


def test_a_pull_request_that_would_be_opened_is_shown_with_what_it_would_hold(tmp_path: Path) -> None:
    said: list[str] = []
    job = rehearse(
        tmp_path,
        f"""
        jobs:
          a:
            steps:
              - uses: actions/checkout@{SHA}
              - run: echo 2 > pins/old; echo 1 > pins/new; echo 1 > elsewhere
              - uses: {PROPOSE}
                with: {{add-paths: pins/, branch: update, title: Newer pins, body: why}}
        """,
        {"pins/old": "1\n"},
        said=said,
    )["a"]
    begin = said.index("a: would open the pull request 'Newer pins' from the branch update, with")
    assert said[begin + 1 : begin + 3] == [
        "a:    M pins/old",
        "a:   ?? pins/new",
    ]
    assert not any("elsewhere" in line for line in said[begin:])
    assert "\n-1\n+2\n" in log_of(job)
    assert (tmp_path / "origin" / "pins" / "old").read_text() == "1\n"


def test_masked_values_reach_nobody(tmp_path: Path) -> None:
    said: list[str] = []
    job = rehearse(
        tmp_path,
        """
        jobs:
          a:
            env: {SECRET: hush}
            steps:
              - run: echo "::add-mask::$SECRET"
              - run: echo "it is hush"; echo "hush too" >> "$GITHUB_STEP_SUMMARY"
              - run: echo "::error title=hush,file=hush::it is hush"
              - {name: "say ${{ env.SECRET }}", run: exit 1}
        """,
        said=said,
    )["a"]
    assert "it is ***" in log_of(job)
    assert job.summary == "*** too\n"
    assert [one.shown() for one in job.annotations] == ["error: ***: ***: it is ***"]
    assert job.failure == "say ***: ended with exit code 1"
    assert "hush" not in "\n".join([*said, *(step.title for step in job.steps), log_of(job)])


def test_an_interrupted_rehearsal_ends_when_its_steps_have(tmp_path: Path) -> None:
    """For their workspaces are taken away next."""
    begun = tmp_path / "begun"

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.01)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    started = time.monotonic()
    step = f'trap "sleep 0.5; touch {tmp_path}/ended" EXIT; touch {begun}; sleep 30'
    with pytest.raises(KeyboardInterrupt):
        rehearse(tmp_path, f"jobs: {{a: {{steps: [{{run: '{step}'}}]}}}}")
    assert (tmp_path / "ended").exists()
    assert time.monotonic() - started < 20


def test_jobs_share_no_files_and_have_the_variables_that_were_given(tmp_path: Path) -> None:
    jobs = rehearse(
        tmp_path,
        """
        jobs:
          a: {steps: [{run: 'touch here; test "$GIVEN" = 1'}]}
          b: {needs: a, steps: [{run: 'test ! -e here; test "$GIVEN" = 1'}]}
        """,
        env=["GIVEN=1"],
    )
    assert {job.result for job in jobs.values()} == {"success"}


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


@pytest.mark.parametrize("given", ["NAME", "=value", ""])
def test_a_variable_that_is_none_is_wrong_use(given: str) -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        fresh_environment({}, [given], Path("/store"))


def test_a_step_has_the_variables_and_the_event_that_github_gives_it(tmp_path: Path) -> None:
    job = rehearse(
        tmp_path,
        """
        jobs:
          a:
            steps:
              - run: |
                  test "$PWD" = "$GITHUB_WORKSPACE"
                  test -d "$RUNNER_TEMP"
                  test "$CI $GITHUB_ACTIONS" = "true true"
                  test -z "${GITHUB_TOKEN+set}"
                  echo "$GITHUB_EVENT_NAME $GITHUB_REF $GITHUB_REF_NAME $GITHUB_SHA $RUNNER_OS"
                  cat "$GITHUB_EVENT_PATH"
              - run: test "${{ github.event.after }}" = "$GITHUB_SHA"
              - {run: test "$PWD" = "$RUNNER_TEMP", working-directory: "${{ runner.temp }}"}
        """,
    )["a"]
    assert job.result == "success", job.failure
    lines = log_of(job).splitlines()
    assert f"push refs/heads/main main {SHA} Linux" in lines
    assert f'"after": "{SHA}"' in log_of(job)


def test_hash_files_depends_on_content_and_is_empty_for_none(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1")
    before = hash_files(tmp_path, "*.txt")
    (tmp_path / "a.txt").write_text("2")
    assert len(before) == 64
    assert hash_files(tmp_path, "**/*.txt") != before
    assert hash_files(tmp_path, "*.txt", "!a.txt") == ""


# Another repository that uses the toolkit

GATE = """
    name: Gate
    on: {workflow_call: {inputs: {word: {type: string, default: none}}}}
    permissions: {}
    jobs:
      look:
        permissions: {contents: read}
        steps:
          - uses: actions/checkout@0123456789abcdef0123456789abcdef01234567
            with: {repository: "${{ job.workflow_repository }}", ref: "${{ job.workflow_sha }}", path: tool}
          - {uses: actions/checkout@0123456789abcdef0123456789abcdef01234567, with: {path: source}}
          - {uses: $/act, with: {word: "${{ inputs.word }}"}}
          - run: test "$(cat tool/who) $(cat source/who)" = "toolkit adopter"
          - run: >-
              test "${{ github.repository }} ${{ github.workflow }} ${{ job.workflow_repository }}"
              = "rehearsal/origin QNN some/tool"
    """
ACT = """
    inputs: {word: {}}
    runs:
      using: composite
      steps:
        - {uses: $/inner}
        - {shell: bash, run: 'test "$(cat "$GITHUB_ACTION_PATH/../who")" = toolkit'}
    """
INNER = "runs: {using: composite, steps: [{shell: bash, run: 'echo inner $GITHUB_ACTION_PATH'}]}"


def adopting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: str) -> tuple[int, Report]:
    tool = repository(
        tmp_path / "tool",
        {
            ".github/workflows/gate.yml": GATE,
            "act/action.yml": ACT,
            "inner/action.yml": INNER,
            "who": "toolkit\n",
        },
    )
    root = repository(
        tmp_path / "origin",
        {
            ".github/workflows/w.yml": f"""
            name: QNN
            on: [pull_request]
            permissions: {{}}
            jobs:
              qnn: {{permissions: {{contents: read}}, {uses}}}
            """,
            "who": "adopter\n",
        },
    )
    monkeypatch.setattr("ci.github.rehearse.verb.ROOT", tool)
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    reports = tmp_path / "reports"
    code = verb.run(parser.parse_args(["w", "--root", str(root), "--reports", str(reports)]))
    return code, Report.read(reports / "rehearse.json")


def test_a_called_workflow_of_the_toolkit_finds_its_own_files_and_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = adopting(tmp_path, monkeypatch, f"uses: some/tool/.github/workflows/gate.yml@{SHA}")
    assert code == 0, capsys.readouterr().out
    assert "this checkout stands in" in capsys.readouterr().out


def test_an_action_of_the_toolkit_is_expanded_from_its_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = adopting(tmp_path, monkeypatch, f"steps: [{{uses: some/tool/act@{SHA}}}]")
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    "uses",
    [
        f"uses: some/tool/.github/workflows/none.yml@{SHA}",
        f"steps: [{{uses: some/other@{SHA}}}]",
        f"steps: [{{uses: actions/checkout@{SHA}, with: {{repository: some/other}}}}]",
    ],
)
def test_what_neither_repository_has_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: str
) -> None:
    with pytest.raises(UsageError):
        adopting(tmp_path, monkeypatch, uses)


# The verb itself


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one, as each rehearsal of another repository clones it."""
    monkeypatch.setattr(
        "ci.github.rehearse.verb.ROOT", repository(tmp_path / "toolkit", {"who": "toolkit\n"})
    )


def run_verb(tmp_path: Path, *flags: str, workflow: str, on: str = "[pull_request]") -> tuple[int, Report]:
    text = f"on: {on}\njobs: {{a: {{steps: [{{run: '{workflow}'}}]}}}}\n"
    if not (root := tmp_path / "origin").exists():
        repository(root, {".github/workflows/w.yml": text})
    parser = argparse.ArgumentParser()
    verb.configure(parser)
    reports = tmp_path / "reports"
    code = verb.run(parser.parse_args(["w", "--root", str(root), "--reports", str(reports), *flags]))
    return code, Report.read(reports / "rehearse.json")


@pytest.mark.usefixtures("toolkit")
def test_a_green_rehearsal_exits_0_and_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, report = run_verb(tmp_path, workflow="true")
    assert (code, report.outcome) == (0, Outcome.PASS)
    assert capsys.readouterr().out.endswith("green: 1 success\n")


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


@pytest.mark.parametrize(
    ("expression", "known"),
    [
        ("steps.wrote.outputs.yes", True),
        ("steps.wrote.outputs.sometimes", True),
        ("steps.wrote.outputs.typo", False),
        ("steps.used.outputs.out", True),
        ("steps.used.outputs.typo", False),
        ("steps.cache.outputs.cache-matched-key", True),
        ("steps.cache.outputs.typo", False),
        ("steps.skipped.outputs.anything", True),
        ("needs.before.outputs.out", True),
        ("needs.before.outputs.typo", False),
        ("matrix.n", True),
        ("matrix.only-in-another-row", True),
        ("matrix.typo", False),
        ("secrets.GITHUB_TOKEN", True),
        ("secrets.MINE", False),
    ],
)
def test_an_output_that_nothing_can_give_is_an_error_and_not_an_empty_text(
    tmp_path: Path, expression: str, known: bool
) -> None:
    text = f"""
        jobs:
          before: {{outputs: {{out: ''}}, steps: [{{run: 'true'}}]}}
          a:
            needs: before
            strategy: {{matrix: {{include: [{{n: 1}}, {{only-in-another-row: 2}}]}}}}
            steps:
              - {{id: wrote, run: 'echo yes=1 >> "$GITHUB_OUTPUT"; if false; then echo sometimes=1; fi'}}
              - {{id: used, uses: ./act}}
              - {{id: cache, uses: actions/cache/restore@{SHA}, with: {{path: x, key: k}}}}
              - {{id: skipped, if: false, run: exit 1}}
              - run: test -z "${{{{ {expression} }}}}" -o -n "x"
        """
    action = "outputs: {out: {value: ''}}\nruns: {using: composite, steps: [{shell: bash, run: 'true'}]}\n"
    text = text.replace("- {id: used", f"- {{uses: actions/checkout@{SHA}}}\n              - {{id: used")
    if known:
        assert rehearse(tmp_path, text, {"act/action.yml": action})["a (1)"].result == "success"
    else:
        with pytest.raises(UsageError, match=r"is not known here"):
            rehearse(tmp_path, text, {"act/action.yml": action})


def test_secrets_are_refused_where_a_workflow_is_called_with_them(tmp_path: Path) -> None:
    called = "on: {workflow_call: {secrets: {mine: {}}}}\njobs: {b: {steps: [{run: 'true'}]}}\n"
    files = {".github/workflows/called.yml": called}
    text = "jobs: {a: {uses: ./.github/workflows/called.yml%s}}"
    assert rehearse(tmp_path / "without", text % "", files)["a / b"].result == "success"
    with pytest.raises(UsageError, match=r"jobs\.a\.secrets: a rehearsal has no secrets"):
        rehearse(tmp_path / "with", text % ", secrets: inherit", files)


def test_no_more_rows_than_max_parallel_run_side_by_side(tmp_path: Path) -> None:
    alone = f"mkdir {tmp_path}/alone; sleep 0.05; rmdir {tmp_path}/alone"
    strategy = "{max-parallel: 1, matrix: {n: [1, 2, 3]}}"
    text = f"jobs: {{a: {{strategy: {strategy}, steps: [{{shell: bash, run: '{alone}'}}]}}}}"
    jobs = rehearse(tmp_path, text, slots=3)
    assert {job.result for job in jobs.values()} == {"success"}


def test_a_cancelled_rehearsal_still_runs_what_always_runs(tmp_path: Path) -> None:
    """As on GitHub: steps and jobs with `always()` clean up after those that were ended."""
    started = tmp_path / "started"

    def interrupt() -> None:
        while not started.exists():
            time.sleep(0.01)
        _thread.interrupt_main()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        rehearse(
            tmp_path,
            f"""
            jobs:
              a:
                steps:
                  - run: touch {started}; sleep 60
                  - run: touch {tmp_path}/next
                  - if: always() && job.status == 'cancelled'
                    run: sleep 0.3; touch {tmp_path}/always
              b: {{needs: a, steps: [{{run: 'touch {tmp_path}/b'}}]}}
              c: {{needs: a, if: always(), steps: [{{run: 'touch {tmp_path}/c'}}]}}
            """,
        )
    assert {name for name in ("next", "always", "b", "c") if (tmp_path / name).exists()} == {"always", "c"}


def test_uncommitted_changes_of_every_kind_are_in_the_snapshot(tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner", {"file": "1"})
    root = repository(tmp_path / "root", {"folder/file": "", "gone": "", "kept": ""})

    def git(*arguments: str, cwd: Path = root) -> str:
        command = ["git", "-c", "protocol.file.allow=always", *IDENTITY, *arguments]
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()

    for name in ("dirty", "moved"):
        git("submodule", "add", "--quiet", str(inner), name)
    git("commit", "--quiet", "-m", "with submodules")
    (root / "dirty" / "file").write_text("changed")
    (root / "moved" / "file").write_text("2")
    git("commit", "--quiet", "-a", "-m", "newer", cwd=root / "moved")
    (root / "folder" / "file").unlink()
    (root / "folder").rmdir()
    (root / "folder").write_text("a file now")
    (root / "gone").unlink()
    (root / "link").symlink_to("kept")
    (root / "link to folder").symlink_to("dirty")
    snapshot = tmp_path / "snapshot"
    _, lacking = snapshot_of(root, snapshot, uncommitted=True)
    assert lacking == 1, "what is not committed in the submodule"
    assert (snapshot / "folder").read_text() == "a file now"
    assert not (snapshot / "gone").exists()
    assert (snapshot / "link to folder").is_symlink() and (snapshot / "link").is_symlink()
    newer = git("rev-parse", "HEAD", cwd=root / "moved")
    assert git("rev-parse", "HEAD:moved", cwd=snapshot) == newer
    assert git("status", "--porcelain", cwd=snapshot) == ""
