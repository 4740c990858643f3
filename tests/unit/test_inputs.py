"""The arrays that `run --input` names become the model's inputs."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from ci.models.inputs import GraphSignature, Tensor, as_files, read_inputs, shares_of
from provisioning.base.errors import CheckFailed, UsageError

SIGNATURE = GraphSignature(tuple(Tensor(name, "float32", (2,)) for name in ("wave", "mel", "state")), ())


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    made = {}
    for number, name in enumerate("abcd", 1):
        path = tmp_path / f"{name}.npy"
        numpy.save(path, numpy.full(2, number, "float32"))
        made[name] = str(path)
    return made


@pytest.mark.parametrize(
    ("given", "values"),
    [
        (("{a}", "{b}", "{c}"), (1, 2, 3)),
        (("{a}", "wave={b}", "{c}"), (2, 1, 3)),
        (("state={a}", "{b}", "{c}"), (2, 3, 1)),
    ],
)
def test_files_without_a_name_are_the_inputs_that_no_other_names_in_order(
    files: dict[str, str], given: tuple[str, ...], values: tuple[int, ...]
) -> None:
    sample = read_inputs([text.format(**files) for text in given], SIGNATURE)
    assert [*sample] == ["wave", "mel", "state"]
    assert tuple(array[0] for array in sample.values()) == values


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (("{a}", "{b}", "{c}", "{d}"), UsageError),
        (("wave={a}", "wave={b}", "{c}"), UsageError),
        # Nobody said what the third is.
        (("{a}", "{b}"), CheckFailed),
    ],
)
def test_too_many_files_and_too_few_are_refused(
    files: dict[str, str], given: tuple[str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        read_inputs([text.format(**files) for text in given], SIGNATURE)


@pytest.mark.parametrize(("compared", "calibrating"), [(8, 32), (2, 32), (8, 24), (1, 0)])
def test_samples_that_are_written_for_a_rewritten_model_judge_it_as_they_judged_the_first(
    compared: int, calibrating: int
) -> None:
    samples = range(compared), range(100, 100 + calibrating)
    files = as_files(*samples)
    judging, ranging = shares_of(len(files), compared, None)
    assert [files[number] for number in judging] == [*samples[0]]
    assert [files[number] for number in ranging] == [*samples[1]] or not calibrating
