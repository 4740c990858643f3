"""The runner on which the tests of our workflows stand does as GitHub's does."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.repositories import repository
from tests.support.workflows.expression import Known, Scope, Value, condition, expand
from tests.support.workflows.job import status_functions
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
