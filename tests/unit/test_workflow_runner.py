"""The runner on which the tests of our workflows stand does as GitHub's does."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from tests.support.repositories import repository
from tests.support.workflows.expression import Known, Scope, Unknown, Value, condition, expand
from tests.support.workflows.files import read_action, read_workflow
from tests.support.workflows.job import status_functions
from tests.support.workflows.machine import fresh_environment, git
from tests.support.workflows.run import Finished, run_workflow

SHA = "0123456789abcdef0123456789abcdef01234567"
"""No third-party action is looked up, so any commit will do."""


def run(scratch: Path, workflow: str, files: Mapping[str, str] | None = None) -> Finished:
    """Run a workflow of which only what follows `on:` is given."""
    text = "on: {push: }\n" + textwrap.dedent(workflow)
    root = repository(scratch / "root", {**(files or {}), ".github/workflows/w.yml": text})
    # No job checks the toolkit out, so any repository will do.
    return run_workflow(scratch / "out", "w", root, event="push", toolkit=root)


def test_after_a_failure_only_steps_that_ask_for_it_run(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        jobs:
          a:
            steps:
              - {name: breaks, run: 'echo "::error file=x.py,line=3,title=t::it%0Abroke"; exit 3'}
              - {name: plain, run: "true"}
              - {name: asks, if: failure(), run: "true"}
              - {name: always, if: always(), run: 'echo "# it" >> $GITHUB_STEP_SUMMARY'}
        """,
    )
    (job,) = done.every_job
    assert {step.title: step.outcome for step in job.steps} == {
        "breaks": "failure",
        "plain": "skipped",
        "asks": "success",
        "always": "success",
    }
    assert (job.result, job.failure) == ("failure", "breaks: ended with exit code 3")
    assert (job.annotations, job.summary) == (["error: x.py:3: t: it\nbroke"], "# it\n")


def test_needs_carry_results_and_outputs_and_skip_what_depends_on_a_failure(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        jobs:
          one:
            outputs: {word: "${{ steps.s.outputs.word }}"}
            steps: [{id: s, run: 'printf "word<<E\\nhello\\nE\\n" >> "$GITHUB_OUTPUT"'}]
          two:
            needs: one
            steps: [{run: 'echo "${{ needs.one.outputs.word }}" > x; test "$(cat x)" = hello; exit 1'}]
          three: {needs: [one, two], steps: [{run: "true"}]}
          four: {needs: three, if: "always()", steps: [{run: 'test "${{ needs.three.result }}" = skipped'}]}
          five: {needs: four, steps: [{run: "true"}]}
          six: {if: "false", steps: [{run: "true"}]}
          seven: {needs: six, steps: [{run: "true"}]}
        """,
    )
    assert done.results() == {
        "one": "success",
        "two": "failure",
        "three": "skipped",
        "four": "success",
        "five": "skipped",  # for an ancestor failed, though its own need did not
        "six": "skipped",
        "seven": "skipped",
    }


def test_each_row_of_a_matrix_is_a_job_and_one_that_fails_fails_what_needs_them(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        jobs:
          a:
            name: ${{ matrix.name }}
            strategy: {fail-fast: false, matrix: {include: [{name: x, code: 0}, {name: y, code: 1}]}}
            steps: [{run: "exit ${{ matrix.code }}"}]
          b: {needs: a, if: "needs.a.result == 'success'", steps: [{run: "true"}]}
        """,
    )
    assert done.results() == {"x": "success", "y": "failure", "b": "skipped"}


def test_rows_of_a_matrix_set_outputs_of_their_own_and_a_called_workflow_hands_them_on(
    tmp_path: Path,
) -> None:
    called = """
        on:
          workflow_call:
            outputs:
              x: {value: "${{ jobs.a.outputs.x }}"}
              y: {value: "${{ jobs.a.outputs.y }}"}
              both: {value: "${{ jobs.a.outputs.both }}"}
              none: {value: "${{ jobs.no.outputs.none }}"}
        jobs:
          a:
            name: ${{ matrix.name }}
            strategy: {fail-fast: false, matrix: {include: [{name: x}, {name: y}]}}
            outputs:
              x: ${{ matrix.name == 'x' && steps.s.outputs.word || '' }}
              y: ${{ matrix.name == 'y' && steps.s.outputs.word || '' }}
              both: ${{ steps.s.outputs.word }}
            steps: [{id: s, run: 'echo word=${{ matrix.name }}1 >> "$GITHUB_OUTPUT"'}]
          no: {if: "false", outputs: {none: "${{ steps.s.outputs.word }}"}, steps: [{id: s, run: "true"}]}
        """
    done = run(
        tmp_path,
        """
        jobs:
          called: {uses: $/.github/workflows/called.yml}
          b:
            needs: called
            steps:
              - env: {ALL: "${{ toJSON(needs.called.outputs) }}"}
                run: |
                  echo "$ALL" | tr -d ' \\n' > all
                  grep -q '"x":"x1","y":"y1","both":"[xy]1","none":""' all
        """,
        {".github/workflows/called.yml": textwrap.dedent(called)},
    )
    assert done.results()["b"] == "success", done.failures() + done.log("b")


@pytest.mark.parametrize("number", ["${{ steps.u.outputs.artifact-id }}", "7"])
def test_an_artifact_has_a_number_that_no_other_has(tmp_path: Path, number: str) -> None:
    done = run(
        tmp_path,
        f"""
        jobs:
          a:
            steps:
              - {{run: 'mkdir a; echo a > a/x'}}
              - {{id: u, uses: actions/upload-artifact@{SHA}, with: {{name: n, path: a}}}}
              - {{uses: actions/download-artifact@{SHA}, with: {{artifact-ids: '{number}', path: d}}}}
              - {{run: 'test $(cat d/x) = a'}}
        """,
    )
    (job,) = done.every_job
    assert job.failure.partition(": ")[2] == ("there is no artifact of the id '7'" if number == "7" else "")


def test_what_may_fail_fails_nothing_else(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        """
        jobs:
          a:
            steps:
              - {id: s, continue-on-error: true, run: exit 3}
              - {run: 'test "${{ steps.s.outcome }} ${{ steps.s.conclusion }}" = "failure success"'}
        """,
    )
    assert done.results() == {"a": "success"}, done.failures()


def test_a_cache_and_an_artifact_travel_between_jobs_and_a_variable_between_steps(tmp_path: Path) -> None:
    restore = f"{{id: r, uses: actions/cache/restore@{SHA}, with: {{path: c, key: k-2, restore-keys: k-}}}}"
    done = run(
        tmp_path,
        f"""
        jobs:
          a:
            steps:
              - {{run: 'mkdir c && ln -s nowhere c/link && mkdir -p d/.h && touch d/.h/x && echo a > d/y'}}
              - {{run: 'echo WHO=me >> $GITHUB_ENV; mkdir bin; cp /bin/true bin/ours'}}
              - {{run: 'echo $PWD/bin >> $GITHUB_PATH'}}
              - {{run: 'test $WHO = me && ours'}}
              - {{uses: actions/cache/save@{SHA}, with: {{path: c, key: k-1}}}}
              - {{uses: actions/upload-artifact@{SHA}, with: {{name: n, path: d/}}}}
          b:
            needs: a
            steps:
              - {restore}
              - {{run: 'test -L c/link && test "${{{{ steps.r.outputs.cache-hit }}}}" = false'}}
              - {{uses: actions/download-artifact@{SHA}, with: {{pattern: "*", path: all}}}}
              - {{run: 'test "$(find all -type f)" = all/y'}}
        """,
    )
    assert done.results() == {"a": "success", "b": "success"}, done.failures()


def test_a_run_sees_what_is_not_committed_yet_and_leaves_the_repository_alone(tmp_path: Path) -> None:
    use = f"on: {{schedule: }}\njobs: {{a: {{steps: [{{uses: actions/checkout@{SHA}}}, {{run: cat x}}]}}}}\n"
    root = repository(tmp_path / "root", {"x": "old", ".github/workflows/w.yml": use})
    (root / "x").write_text("new")
    done = run_workflow(tmp_path / "out", "w", root, event="schedule", toolkit=root)
    assert "\nnew\n" in done.log("a")
    assert git(root, "status", "--porcelain") == " M x\n"


def test_a_called_workflow_has_the_secrets_that_its_caller_names(tmp_path: Path) -> None:
    called = """
        on: {workflow_call: {secrets: {KEY: {required: false}}}}
        jobs: {b: {steps: [{run: 'test "${{ secrets.KEY }}" = "hush"'}]}}
        """
    text = """
        on: {push: }
        jobs:
          named: {uses: $/.github/workflows/called.yml, secrets: {KEY: "${{ secrets.KEY }}"}}
          not-named: {uses: $/.github/workflows/called.yml}
        """
    files = {f"{name}.yml": textwrap.dedent(text) for name, text in (("called", called), ("w", text))}
    root = repository(tmp_path / "root", {f".github/workflows/{name}": text for name, text in files.items()})
    done = run_workflow(
        tmp_path / "out", "w", root, event="push", toolkit=root, secrets={"KEY": "hush", "OTHER": "no"}
    )
    assert done.results() == {"named / b": "success", "not-named / b": "failure"}


def upload(path: str) -> str:
    return f"{{uses: actions/upload-artifact@{SHA}, with: {{path: {path}}}}}"


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        (f"{{uses: actions/download-artifact@{SHA}, with: {{name: none}}}}", "there is no artifact 'none'"),
        (f"{{run: touch x}}, {upload('x')}, {upload('x')}", "there is an artifact 'artifact' already"),
        (f"{{run: 'mkdir d; touch d/a:b'}}, {upload('d')}", "GitHub refuses files of these names: ['a:b']"),
        ("{run: 'echo GITHUB_REF=x >> $GITHUB_ENV'}", "GITHUB_ENV cannot set GITHUB_REF"),
        ("{run: 'echo nonsense >> $GITHUB_OUTPUT'}", "found 'nonsense'"),
        ("{run: 'head -c 1048577 /dev/zero > $GITHUB_STEP_SUMMARY'}", "1048577 bytes"),
    ],
)
def test_what_fails_a_step_there_fails_it_here(tmp_path: Path, steps: str, says: str) -> None:
    (job,) = run(tmp_path, f"jobs: {{a: {{steps: [{steps}]}}}}").every_job
    assert job.result == "failure"
    assert says in job.failure


def test_a_job_ends_when_its_time_is_over(tmp_path: Path) -> None:
    (job,) = run(tmp_path, "jobs: {a: {timeout-minutes: 0.005, steps: [{run: sleep 30}]}}").every_job
    assert (job.result, job.failure) == ("failure", "sleep 30: ended with exit code -15")


STEPS = "steps: [{run: 'true'}]"


@pytest.mark.parametrize(
    ("workflow", "says"),
    [
        (f"jobs: {{a: {{steps: [{{uses: someone/else@{SHA}}}]}}}}", "someone/else"),
        (f"jobs: {{a: {{steps: [{{uses: actions/checkout@{SHA}, with: {{sparse: x}}}}]}}}}", "sparse"),
        ("jobs: {a: {steps: [{run: 'echo ${{ github.nonsense }}'}]}}", "github.nonsense"),
        (f"jobs: {{a: {{needs: b, {STEPS}}}}}", "needs one that is not there"),
        ("jobs: {a: {steps: [{run: 'echo ${{ steps.none.outputs.x }}'}]}}", "steps.none"),
        (f"concurrency: {{group: '{'x' * 401}'}}\njobs: {{a: {{{STEPS}}}}}", "401 characters"),
        ("jobs: {a: {uses: $/.github/workflows/called.yml, secrets: {KEY: x}}}", "declares no KEY"),
        (
            "permissions: {}\njobs: {a: {uses: $/.github/workflows/called.yml}}",
            "contents: none, but .github/workflows/called.yml has read",
        ),
    ],
)
def test_what_github_refuses_or_nobody_here_knows_is_an_error_and_no_pass(
    tmp_path: Path, workflow: str, says: str
) -> None:
    called = f"on: {{workflow_call: }}\njobs: {{b: {{permissions: {{contents: read}}, {STEPS}}}}}\n"
    with pytest.raises(Unknown) as caught:
        run(tmp_path, workflow, {".github/workflows/called.yml": called})
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"on: push\ndefaults: {{run: {{shell: sh}}}}\njobs: {{a: {{{STEPS}}}}}", "defaults"),
        ("on: push\njobs: {a: {steps: [{run: 'true', working-directory: x}]}}", "working-directory"),
        (f"on: push\njobs: {{a: {{strategy: {{matrix: {{include: []}}}}, {STEPS}}}}}", "fail-fast"),
        (f"on: {{workflow_call: {{inputs: {{a: {{tpye: x}}}}}}}}\njobs: {{a: {{{STEPS}}}}}", "tpye"),
    ],
)
def test_a_key_that_would_not_be_honoured_is_refused(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "w.yml").write_text(text)
    with pytest.raises(ValidationError) as caught:
        read_workflow(tmp_path, "w.yml")
    assert key in {str(name) for error in caught.value.errors() for name in error["loc"]}


def test_only_composite_actions_are_run(tmp_path: Path) -> None:
    (tmp_path / "action.yml").write_text("runs: {using: node20, main: x.js}")
    with pytest.raises(ValidationError, match="composite"):
        read_action(tmp_path, ".")


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
    assert fresh_environment(users, Path("/store")) == {
        "HOME": "/users/me",
        "PIP_INDEX_URL": "mine",
        "https_proxy": "proxy",
        "DOCKER_HOST": "unix:///run/user/1000/docker.sock",
        "PIP_CACHE_DIR": "/users/me/.cache/pip",
        "UV_CACHE_DIR": "/users/me/.cache/uv",
        "PATH": "/usr/bin",
    }


CONTEXTS: dict[str, Value] = {
    "github": Known("github", {"event_name": "pull_request", "event": {"pull_request": {"number": 7}}}),
    "needs": {"plan": {"result": "success", "outputs": {"jobs": json.dumps([{"name": "a"}])}}},
    "steps": {"one": {"outputs": {"cache-hit": "true"}}},
    "matrix": {"provision": False, "minutes": 5},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 == '1'", True),
        ("'A' == 'a'", True),
        ("'it''s' != 'its'", True),
        ("!true || 1 == 1", True),
        ("1 == 1 && 2 == 3 || 'z'", "z"),
        ("true || false && false", True),
        ("(true || false) && false", False),
        ("github.EVENT_NAME", "pull_request"),
        ("github.event.pull_request.number == 7", True),
        ("github.event.merge_group.base_sha", None),
        ("null == 0", True),
        ("matrix.minutes", 5),
        ("steps.one.outputs.cache-hit == 'true'", True),
        ("format('{0}-{1}', 'a', 2)", "a-2"),
        ("fromJSON(needs.plan.outputs.jobs)", [{"name": "a"}]),
        ("github.event == github.event", True),
        ("github.event == fromJSON('{}')", False),
    ],
)
def test_an_expression_has_githubs_value_and_type(text: str, expected: object) -> None:
    value = expand(f"${{{{ {text} }}}}", Scope(CONTEXTS))
    assert value == expected
    assert type(value) is type(expected)


def test_expressions_in_a_text_become_text() -> None:
    assert expand("${{ matrix.provision }}-${{ matrix.minutes }}!", Scope(CONTEXTS)) == "false-5!"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("github.nonsense", "github.nonsense"),
        ("gihub.ref", "context 'gihub' cannot be used"),
        ("contains('a', 'b')", "contains()"),
        ("1 ==", "its end"),
        ("true + 1", "cannot be read"),
        ("true true", "after its end"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error_that_says_why(text: str, says: str) -> None:
    with pytest.raises(Unknown) as caught:
        expand(f"${{{{ {text} }}}}", Scope(CONTEXTS))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "after_failure", "after_success"),
    [
        ("", False, True),
        ("1 == 1", False, True),
        ("always()", True, True),
        ("failure()", True, False),
        ("${{ !cancelled() }}", True, True),
        ("!failure()", False, True),
        ("always() && 'x' == ''", False, False),
    ],
)
def test_a_condition_implies_success_unless_it_asks_for_the_status(
    text: str, after_failure: bool, after_success: bool
) -> None:
    for failed, expected in ((True, after_failure), (False, after_success)):
        scope = Scope(CONTEXTS, status_functions(succeeded=not failed, failed=failed))
        assert condition(text, scope) is expected
