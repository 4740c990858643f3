"""Accepted results: their one form, and what is agreed on of each program with which build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from multiprocessing import Process
from pathlib import Path

import numpy
import pytest

from ci.suite.accepted import Baseline, baseline_in
from ci.suite.accuracy import Pair, compare
from ci.suite.figures import round_figures
from ci.suite.index_choices import Among
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
    changed = {*before.to_text().splitlines()} ^ {*after.to_text().splitlines()}
    assert sorted(changed) == [
        '    "net/8a8w/SM8650 sqnr_db": 29.5,',
        '    "net/8a8w/SM8650 sqnr_db": 31.0,',
    ]


def test_none_takes_a_value_away_and_the_last_one_its_subject(tmp_path: Path) -> None:
    before = Accepted(tmp_path / "accepted.json", VALUES)
    after = before.updated({"net/8a8w/SM8650": {"top1": None}, "TestAdd.test_add [a b]": {"parts": None}})
    assert after.subjects == {"net/8a8w/SM8650": {"sqnr_db": 29.5}}


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


NAME = "net/8a8w/SM8650"


def written(baseline: Baseline, values: Mapping[str, object]) -> Baseline:
    return baseline.rewritten({NAME: values}, {}, {"net/8a8w"})


class TestAgreeing:
    """To costs and accuracy, each program with the build that it is of."""

    def agreed(self, tmp_path: Path, **fields: object) -> Baseline:
        values = {"build_id": "v1", "ddr_read": 100, "accuracy": {"top1": 0.9}, **fields}
        return written(Baseline(tmp_path / "b.json", lane="onnx"), values)

    def accepted(
        self,
        baseline: Baseline,
        figures: Mapping[str, float],
    ) -> Baseline:
        """As --accept does it."""
        return written(baseline, {"build_id": "v1", "accuracy": round_figures(figures)})

    def test_every_figure_that_is_measured_is_read_again(self, tmp_path: Path) -> None:
        """An accepted argmax was refused by the next run, which did not know its figure."""
        indices, floats = numpy.array([0, 2]), numpy.array([[0.1, 0.9], [0.2, 0.3], [0.7, 0.8]])
        pairs = [
            Pair("index", indices, indices, choice=Among(floats, 0.1)),
            Pair("flag", indices, indices),
            Pair("score", floats, floats * 1.01),
        ]
        figures = round_figures(compare(pairs, pairs))
        agreed = self.accepted(self.agreed(tmp_path), figures)
        assert "reference_choice_agreement" in figures and agreed.programs[NAME].accuracy == figures

    def test_what_another_build_gave_does_not_stay_beside_what_this_one_gives(self, tmp_path: Path) -> None:
        changed = written(self.agreed(tmp_path, peak_mb=7), {"build_id": "v2", "ddr_read": 5})
        recorded = changed.programs[NAME]
        assert (recorded.ddr_read, recorded.accuracy, recorded.peak_mb) == (5, {}, 7)

    def test_a_file_has_one_line_for_each_value_and_says_which_is_wrong(self, tmp_path: Path) -> None:
        baseline = self.agreed(tmp_path, refused=("Erf", "Add"), in_float=False)
        values = json.loads(baseline.path.read_text())["accepted"]
        assert values == {
            f"onnx/{NAME} build_id": "v1",
            f"onnx/{NAME} ddr_read": 100,
            f"onnx/{NAME} refused": ["Erf", "Add"],
            f"onnx/{NAME} top1": 0.9,
        }
        baseline.path.write_text(baseline.path.read_text().replace("ddr_read", "ddr_raed"))
        with pytest.raises(ManifestError) as caught:
            baseline_in(load_accepted(baseline.path), "onnx")
        assert caught.value.key == f"onnx/{NAME}.ddr_raed"
