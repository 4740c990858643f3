from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.onnx.graph import Signature, Tensor
from ci.onnx.samples import MOST, calibration_samples, checked, read_inputs, read_samples
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError

ONE = Signature((Tensor("x", "float32", (1, 4)),), ())
TWO = Signature((Tensor("tokens", "int32", (1, 4)), Tensor("mask", "float32", (1, 4))), ())
GOOD = np.ones((1, 4), np.float32)


def test_npy_files_serve_a_model_of_one_input(tmp_path: Path) -> None:
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", GOOD * number)
    samples = read_samples(tmp_path, ONE)
    assert [float(sample["x"][0, 0]) for sample in samples] == [0.0, 1.0, 2.0]


def test_npz_files_hold_inputs_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", tokens=np.ones((1, 4), np.int32), mask=GOOD)
    assert list(read_samples(tmp_path, TWO)[0]) == ["tokens", "mask"]


def test_folders_hold_one_input_each(tmp_path: Path) -> None:
    for name, array in (("tokens", np.ones((1, 4), np.int32)), ("mask", GOOD)):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", array)
    assert len(read_samples(tmp_path, TWO)) == 1


def test_folders_must_hold_as_many_samples(tmp_path: Path) -> None:
    for name, count in (("tokens", 1), ("mask", 2)):
        (tmp_path / name).mkdir()
        for number in range(count):
            np.save(tmp_path / name / f"{number}.npy", GOOD)
    with pytest.raises(CheckFailed, match="1 of tokens, 2 of mask"):
        read_samples(tmp_path, TWO)


def test_an_npy_does_not_say_which_of_two_inputs_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", GOOD)
    with pytest.raises(UsageError, match="does not say which"):
        read_samples(tmp_path, TWO)


@pytest.mark.parametrize(
    ("signature", "mend"),
    [
        (ONE, "put in .npz files with x, one a sample, or .npy files"),
        (TWO, "put in .npz files with tokens, mask, one a sample"),
    ],
)
def test_an_empty_directory_is_refused(tmp_path: Path, signature: Signature, mend: str) -> None:
    with pytest.raises(UsageError, match="holds no sample") as caught:
        read_samples(tmp_path, signature)
    assert caught.value.remedy == mend


@pytest.mark.parametrize("source", ["absent", "a:b:c", "a.npz"])
def test_what_is_neither_a_directory_nor_a_function_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(UsageError, match=r"expected a directory of \.npy or \.npz"):
        calibration_samples(source, ONE, tmp_path)


def test_both_kinds_at_once_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", GOOD)
    np.savez(tmp_path / "0.npz", x=GOOD)
    with pytest.raises(UsageError, match="both"):
        read_samples(tmp_path, ONE)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_with_its_place(bad: float) -> None:
    array = GOOD.copy()
    array[0, 2] = bad
    with pytest.raises(CheckFailed, match=f"x holds {bad} at 2"):
        checked({"x": array}, ONE, "here")


def test_another_shape_is_refused() -> None:
    with pytest.raises(CheckFailed) as caught:
        checked({"x": np.ones((2, 4), np.float32)}, ONE, "here")
    assert caught.value.message == "here: expected x: float32[1, 4], found float32[2, 4]"


def test_another_type_is_refused() -> None:
    with pytest.raises(CheckFailed, match=r"found float64\[1, 4\]"):
        checked({"x": np.ones((1, 4))}, ONE, "here")


def test_a_type_that_no_array_has_is_told() -> None:
    signature = Signature((Tensor("x", "string", (1, 4)),), ())
    with pytest.raises(CheckFailed, match=r"expected x: string\[1, 4\], found float32"):
        checked({"x": GOOD}, signature, "here")


def test_an_unknown_name_gets_the_known_ones() -> None:
    with pytest.raises(CheckFailed) as caught:
        checked({"y": GOOD}, ONE, "here")
    assert caught.value.remedy == "its inputs are x"


def test_an_absent_input_is_named() -> None:
    with pytest.raises(CheckFailed, match="nothing for the input mask"):
        checked({"tokens": np.ones((1, 4), np.int32)}, TWO, "here")


@pytest.mark.parametrize("name", ["bad.npy", "bad.npz"])
@pytest.mark.parametrize("content", [b"", b"no array at all", b"\x93NUMPY\x01\x00", b"PK\x03\x04"])
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckFailed, match=name):
        read_samples(tmp_path, ONE)


@pytest.mark.parametrize("header", ["(1, 4", "(True,)", "(99999999999999999999,)", "(9000000000000000,)"])
def test_a_damaged_header_is_told_whatever_numpy_makes_of_it(tmp_path: Path, header: str) -> None:
    np.save(tmp_path / "0.npy", GOOD)
    whole = (tmp_path / "0.npy").read_bytes()
    damaged = whole.replace(b"(1, 4), }".ljust(40), f"{header}, }}".ljust(40).encode())
    assert damaged != whole
    (tmp_path / "0.npy").write_bytes(damaged)
    with pytest.raises(CheckFailed, match=r"0\.npy: expected an array"):
        read_samples(tmp_path, ONE)


def test_a_byte_changed_anywhere_in_a_packed_file_is_told(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "0.npz", x=GOOD)
    whole = (tmp_path / "0.npz").read_bytes()
    for place in range(0, len(whole), 5):
        (tmp_path / "0.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 0x41]) + whole[place + 1 :])
        # Not every byte is looked at: a date, say.
        with contextlib.suppress(CheckFailed):
            assert np.array_equal(read_samples(tmp_path, ONE)[0]["x"], GOOD)


def test_a_text_is_not_taken_for_pickled_objects(tmp_path: Path) -> None:
    (tmp_path / "0.npy").write_text("1 2 3")
    with pytest.raises(CheckFailed, match="it begins otherwise, and has 5 bytes"):
        read_samples(tmp_path, ONE)


class Touch:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("name", ["0.npy", "0.npz"])
def test_pickled_objects_are_never_loaded(tmp_path: Path, name: str) -> None:
    array = np.array([Touch(tmp_path / "touched")], dtype=object)
    if name.endswith("y"):
        np.save(tmp_path / name, array)
    else:
        np.savez(tmp_path / name, x=array)
    with pytest.raises(CheckFailed, match="something else"):
        read_samples(tmp_path, ONE)
    assert not (tmp_path / "touched").exists()


def test_inputs_of_the_command_line_go_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.ones((1, 4), np.int32))
    np.save(tmp_path / "m.npy", GOOD)
    found = read_inputs([f"mask={tmp_path}/m.npy", f"tokens={tmp_path}/t.npy"], TWO)
    assert list(found) == ["tokens", "mask"]


def test_an_npz_of_the_command_line_has_all_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", mask=GOOD, tokens=np.ones((1, 4), np.int32))
    assert list(read_inputs([f"{tmp_path}/all.npz"], TWO)) == ["tokens", "mask"]


def test_an_npy_of_the_command_line_serves_a_model_of_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", GOOD)
    assert list(read_inputs([f"{tmp_path}/x.npy"], ONE)) == ["x"]


def test_an_input_given_twice_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", GOOD)
    with pytest.raises(UsageError, match="given twice"):
        read_inputs([f"x={tmp_path}/a.npy", f"{tmp_path}/a.npy"], ONE)


@pytest.mark.parametrize("name", ["absent.npy", "absent.npz"])
def test_a_missing_file_is_a_wrong_use(tmp_path: Path, name: str) -> None:
    with pytest.raises(ToolkitError, match="there is no such file") as caught:
        read_inputs([str(tmp_path / name)], ONE)
    assert caught.value.exit_code == 2


class TestFactory:
    def given(self, folder: Path, body: str, signature: Signature = ONE) -> list[Any]:
        text = f"import itertools\nimport numpy as np\ndef samples():\n    {body}\n"
        (folder / "qnn_ci_given.py").write_text(text)
        return calibration_samples("qnn_ci_given:samples", signature, folder)

    @pytest.mark.parametrize("sample", ["{'x': a}", "(a,)", "a"])
    def test_gives_samples_by_name_in_order_or_alone(self, tmp_path: Path, sample: str) -> None:
        body = f"a = np.ones({ONE.inputs[0].shape}, np.float32); yield {sample}; yield {sample}"
        assert [list(each) for each in self.given(tmp_path, body)] == [["x"], ["x"]]

    def test_that_never_ends_is_cut_off(self, tmp_path: Path) -> None:
        body = f"return itertools.repeat(np.ones({ONE.inputs[0].shape}, np.float32))"
        assert len(self.given(tmp_path, body)) == MOST

    @pytest.mark.parametrize(
        ("body", "said"),
        [
            ("yield np.ones((1,), np.float32)", "sample 1: expected x: float32"),
            ("yield (1, 2)", "expected 1 inputs, found 2"),
            ("return []", "gives no sample"),
            ("yield 1 / 0", "ZeroDivisionError"),
        ],
    )
    def test_that_does_not_fit_is_told_by_sample(self, tmp_path: Path, body: str, said: str) -> None:
        with pytest.raises(CheckFailed, match=re.escape(said)):
            self.given(tmp_path, body)

    def test_that_is_not_there_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(CheckFailed, match="No module named 'qnn_ci_no_such'"):
            calibration_samples("qnn_ci_no_such:samples", ONE, tmp_path)

    def test_a_directory_of_that_name_comes_first(self, tmp_path: Path) -> None:
        (tmp_path / "a:b").mkdir()
        np.save(tmp_path / "a:b" / "0.npy", np.ones(ONE.inputs[0].shape, np.float32))
        assert len(calibration_samples("a:b", ONE, tmp_path)) == 1
