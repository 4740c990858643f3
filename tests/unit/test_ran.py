"""`run`: what is written and said of a program's outputs, and how far another one's are."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from ci.model_commands import run
from ci.models.inputs import Sample
from ci.one_model.output import Ran, compare_outputs, outputs_in, write
from provisioning.base.errors import CheckFailed, UsageError

VALUES = np.linspace(-1, 1, 8, dtype=np.float32).reshape(2, 4)


def ran(outputs: Sample) -> Ran:
    return Ran({}, outputs, "1 part on the emulator; nothing on the CPU")


def test_outputs_are_written_and_read_again_by_their_names_in_order(tmp_path: Path) -> None:
    outputs = {"/head/y:0": VALUES, "b": VALUES[0], "a": np.arange(3)}
    write(ran(outputs), tmp_path / "out", "net.pte")
    assert sorted(path.suffix for path in (tmp_path / "out").iterdir()) == [".json", ".npy", ".npy", ".npy"]
    again = outputs_in(tmp_path / "out")
    assert list(again) == list(outputs)
    assert all(np.array_equal(again[name], outputs[name]) for name in outputs)


def test_outputs_of_another_program_are_not_overwritten(tmp_path: Path) -> None:
    write(ran({"y": VALUES}), tmp_path, "a/net.pte")
    write(ran({"y": VALUES + 1}), tmp_path, "a/net.pte")
    with pytest.raises(UsageError, match=r"a/net\.pte"):
        write(ran({"y": VALUES}), tmp_path, "b/net.pte")
    assert np.array_equal(outputs_in(tmp_path)["y"], VALUES + 1)


def test_names_that_would_be_one_file_are_two(tmp_path: Path) -> None:
    write(ran({"a/b": VALUES, "a:b": VALUES[0]}), tmp_path, "net.pte")
    assert outputs_in(tmp_path)["a:b"].shape == (4,)


def test_outputs_are_compared_by_name_where_both_have_it_else_in_order() -> None:
    ours = {"a": VALUES, "b": -VALUES}
    for other in ({"b": -VALUES, "a": VALUES}, {"x": VALUES, "y": -VALUES}):
        found = compare_outputs(ours, other, "other")
        assert not found.differ and all("bit-equal" in line for line in found.lines)


def test_outputs_with_little_in_common_differ() -> None:
    assert not compare_outputs({"y": VALUES * 1.1}, {"y": VALUES}, "other").differ
    assert compare_outputs({"y": -VALUES}, {"y": VALUES}, "other").differ
    assert compare_outputs({"y": np.arange(3)}, {"y": np.arange(3) + 1}, "other").differ


@pytest.mark.parametrize("other", [{}, {"y": VALUES[0]}])
def test_outputs_of_another_model_cannot_be_compared(other: Sample) -> None:
    with pytest.raises(CheckFailed):
        compare_outputs({"y": VALUES}, other, "other")


@pytest.mark.parametrize("flags", [["--option", "a=b"], ["--dimension", "x=1"], ["--as-it-is"]])
def test_a_flag_of_onnx_models_is_refused_with_another_program(flags: list[str]) -> None:
    parser = argparse.ArgumentParser()
    run.configure(parser)
    with pytest.raises(UsageError, match="is for ONNX models"):
        run.run(parser.parse_args(["net.pte", *flags]))


def test_a_folder_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "y.npy").touch()
    with pytest.raises(UsageError) as caught:
        outputs_in(tmp_path)
    assert str(tmp_path) in caught.value.message
