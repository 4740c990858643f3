"""What update-pins tells of newer releases."""

from __future__ import annotations

import pytest

from ci.dev.releases import actions_behind
from provisioning.base.errors import UpstreamError

PINNED = {
    "actions/cache/restore": {"version": "v5.0.3", "commit": "0"},
    "actions/cache/save": {"version": "v5.0.3", "commit": "0"},
    "actions/checkout": {"version": "v6.0.2", "commit": "0"},
    "other/action": {"version": "v2.0.0", "commit": "0"},
}


@pytest.mark.parametrize(
    ("newest", "expected"),
    [
        ({}, []),
        ({"actions/checkout": "v6.9.0"}, []),
        ({"actions/checkout": "v7.0.0"}, ["| actions/checkout | v6.0.2 | **v7.0.0**"]),
        ({"actions/cache": "v6"}, ["| actions/cache | v5.0.3 | **v6**"]),
        ({"other/action": "latest"}, ["| other/action | v2.0.0 | not known: "]),
    ],
)
def test_actions_a_major_behind_are_named_once(newest: dict[str, str], expected: list[str]) -> None:
    same = {"actions/cache": "v5.0.3", "actions/checkout": "v6.0.2", "other/action": "v2.0.0"}
    rows = actions_behind(PINNED, lambda repository: {**same, **newest}[repository])
    assert [row[: len(start)] for row, start in zip(rows, expected, strict=True)] == expected


def test_a_repository_that_does_not_answer_is_told_and_the_others_are_read() -> None:
    def newest(repository: str) -> str:
        if repository == "actions/cache":
            raise UpstreamError("no answer")
        return "v9.0.0"

    rows = actions_behind(PINNED, newest)
    assert ["not known: no answer" in row for row in rows] == [True, False, False]
