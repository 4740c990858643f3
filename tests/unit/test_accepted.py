"""The one form of accepted results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from multiprocessing import Process
from pathlib import Path

import pytest

from provisioning.accepted_file import Accepted, Values, accept, load_accepted
from provisioning.base.errors import ManifestError

VALUES: Mapping[str, Values] = {
    "net/8a8w/SM8650": {"sqnr_db": 29.5, "top1": 1.0},
    "TestAdd.test_add [a b]": {"parts": [["wrong", 3.1]]},
}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "accepted.json"
    accept(path, lambda before: before.updated(VALUES))
    assert load_accepted(path).subjects == VALUES


def test_a_changed_value_is_one_line_of_a_diff(tmp_path: Path) -> None:
    before = Accepted(tmp_path / "accepted.json", VALUES)
    after = before.updated({"net/8a8w/SM8650": {"sqnr_db": 31.0}})
    changed = {*before.as_text().splitlines()} ^ {*after.as_text().splitlines()}
    assert sorted(changed) == [
        '    "net/8a8w/SM8650 sqnr_db": 29.5,',
        '    "net/8a8w/SM8650 sqnr_db": 31.0,',
    ]


def test_none_takes_a_value_away_and_the_last_one_its_subject(tmp_path: Path) -> None:
    before = Accepted(tmp_path / "accepted.json", VALUES)
    after = before.updated({"net/8a8w/SM8650": {"top1": None}, "TestAdd.test_add [a b]": {"parts": None}})
    assert after.subjects == {"net/8a8w/SM8650": {"sqnr_db": 29.5}}


def test_an_empty_file_of_values_is_json(tmp_path: Path) -> None:
    assert json.loads(Accepted(tmp_path / "accepted.json").as_text())["accepted"] == {}


def _accept(path: Path, number: int) -> None:
    for value in range(20):
        changes: Mapping[str, Values] = {f"program {number}": {f"v{value}": value}}
        accept(path, partial(Accepted.updated, changes=changes))


def test_two_runs_lose_nothing_of_each_other(tmp_path: Path) -> None:
    path = tmp_path / "accepted.json"
    runs = [Process(target=_accept, args=(path, number)) for number in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert {subject: len(values) for subject, values in load_accepted(path).subjects.items()} == {
        "program 0": 20,
        "program 1": 20,
    }


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("{", "(syntax)"),
        ("[" * 100_000, "(syntax)"),
        ('{"schema": 3, "accepted": {\n<<<<<<< ours\n}}', "(syntax)"),
        ('{"schema": 3, "accepted": {"a x": 1, "a x": 2}}', "a x"),
        ('{"schema": 2, "programs": {}}', "schema"),
        ('{"schema": 3, "accepted": []}', "schema"),
        ("[]", "schema"),
        ('{"schema": 3, "accepted": {"nameless": 1}}', "nameless"),
    ],
)
def test_a_file_that_is_none_is_refused_by_its_place(tmp_path: Path, text: str, key: str) -> None:
    path = tmp_path / "accepted.json"
    path.write_text(text)
    with pytest.raises(ManifestError) as error:
        load_accepted(path)
    assert key in str(error.value) and str(path) in str(error.value)
