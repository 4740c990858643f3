"""GitHub's expressions mean here what they mean there, and what is not understood is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ci.github.rehearse.expression import Known, Value, condition, evaluate, parse, plain
from provisioning.base.errors import UsageError

CONTEXTS: dict[str, Value] = {
    "github": Known("github", {"event_name": "pull_request", "event": {"pull_request": {"number": 7}}}),
    "needs": {"plan": {"result": "success", "outputs": {"jobs": '[{"name": "a"}]'}}},
    "steps": {"one": {"outputs": {"cache-hit": "true"}}},
    "matrix": {"provision": False, "minutes": 5},
    "list": [{"x": 1}, {"x": 2}, {"y": 3}],
}


def value(text: str) -> Value:
    return evaluate(parse(text), CONTEXTS, {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 == '1'", True),
        ("'A' == 'a'", True),
        ("!true || 1 == 1", True),
        ("1 == 1 && 2 == 3 || 'z'", "z"),
        ("github.EVENT_NAME", "pull_request"),
        ("github['event']['pull_request']['number'] == 7", True),
        ("github.event.merge_group.base_sha", None),
        ("steps.one.outputs.cache-hit == 'true'", True),
        ("list.*.x", [1, 2]),
        ("contains('Hello', 'ELL')", True),
        ('contains(fromJSON(\'["push", "schedule"]\'), github.event_name)', False),
        ("startsWith('refs/tags/v1', 'REFS/tags/')", True),
        ("format('{0}-{1}-{{}}', 'a', 2)", "a-2-{}"),
        ("fromJSON(needs.plan.outputs.jobs)[0].name", "a"),
        ("github.event == github.event", True),
        ("github.event == fromJSON('{}')", False),
        ("'10' < 9", False),
    ],
)
def test_an_expression_has_githubs_value(text: str, expected: object) -> None:
    result = value(text)
    assert plain(result) == expected
    assert type(plain(result)) is type(expected)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("github.nonsense", "github.nonsense is not known"),
        ("gihub.ref", "context 'gihub' cannot be used"),
        ("1 ==", "ends where a value is expected"),
        ("true + 1", "cannot be read"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error_that_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        value(text)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("text", "after_failure", "after_success"),
    [
        ("", False, True),
        ("1 == 1", False, True),
        ("always()", True, True),
        ("failure()", True, False),
        ("!failure()", False, True),
        ("always() && 'x' == ''", False, False),
    ],
)
def test_a_condition_implies_success_unless_it_asks_for_the_status(
    text: str, after_failure: bool, after_success: bool
) -> None:
    for failed, expected in ((True, after_failure), (False, after_success)):
        status = {"always": _says(True), "success": _says(not failed), "failure": _says(failed)}
        assert condition(text, CONTEXTS, status) is expected


def _says(answer: bool) -> Callable[[], Value]:
    return lambda: answer
