"""Samples and options of ONNX models: what fits the model, and what would be ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ci.lanes.onnx.options import Value, parse_assignments, settings_of
from ci.lanes.onnx.samples import MOST, calibration_samples, divide_samples, read_samples
from ci.models.inputs import GraphSignature, InputsUsed, Tensor, check_sample, draw_sample, read_inputs
from ci.work.plain import to_json
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.manifest import soc_named

ONE = GraphSignature((Tensor("x", "float32", (1, 4)),), ())
TWO = GraphSignature((Tensor("tokens", "int32", (1, 4)), Tensor("mask", "float32", (1, 4))), ())
GOOD, TOKENS = np.ones((1, 4), np.float32), np.ones((1, 4), np.int32)


@pytest.mark.parametrize(
    ("count", "limits", "compared", "calibrating"),
    [
        (0, (None, None), 0, 0),
        (34, (None, None), 8, 26),
        (34, (2, 5), 2, 5),
    ],
)
def test_each_sample_is_used_once(
    count: int, limits: tuple[int | None, int | None], compared: int, calibrating: int
) -> None:
    samples = [{"x": GOOD * number} for number in range(count)]
    divided_ = divide_samples(samples, *limits)
    numbers = [int(sample["x"].max()) for sample in [*divided_.compared, *divided_.calibrating]]
    assert (len(divided_.compared), len(divided_.calibrating)) == (compared, calibrating)
    assert len({*numbers}) == len(numbers) and (count < 5 or numbers != sorted(numbers))
    assert divided_.used == InputsUsed(compared, calibrating, count, noise=not count)


def test_a_lone_sample_judges_and_calibrates() -> None:
    compared, calibrating, used = divide_samples([{"x": GOOD}], None, None)
    assert len(compared) == len(calibrating) == 1 and "also" in str(used)


class TestFolder:
    def test_files_are_samples_of_the_one_input_or_hold_all_by_name(self, tmp_path: Path) -> None:
        for number in range(3):
            np.save(tmp_path / f"{number}.npy", GOOD * number)
        samples = read_samples(tmp_path, ONE)
        assert [float(sample["x"][0, 0]) for sample in samples] == [0.0, 1.0, 2.0]
        (tmp_path / "two").mkdir()
        np.savez(tmp_path / "two/a.npz", tokens=TOKENS, mask=GOOD)
        assert list(read_samples(tmp_path / "two", TWO)[0]) == ["tokens", "mask"]

    @pytest.mark.parametrize(("names", "signature"), [([], ONE), (["0.npy"], TWO), (["0.npy", "0.npz"], ONE)])
    def test_what_is_not_clear_is_refused(
        self, tmp_path: Path, names: list[str], signature: GraphSignature
    ) -> None:
        for name in names:
            np.savez(tmp_path / name, x=GOOD) if name.endswith("z") else np.save(tmp_path / name, GOOD)
        with pytest.raises(UsageError):
            read_samples(tmp_path, signature)


@pytest.mark.parametrize(
    ("sample", "signature", "words"),
    [
        ({"x": np.array([[1, 1, np.nan, 1]], np.float32)}, ONE, "x holds nan at 2"),
        ({"x": np.ones((2, 4), np.float32)}, ONE, "expected x: float32[1, 4], found float32[2, 4]"),
        ({"x": np.ones((1, 4))}, ONE, "found float64[1, 4]"),
        ({"y": GOOD}, ONE, "its inputs are x"),
        ({"tokens": TOKENS}, TWO, "nothing for the input mask"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(
    sample: dict[str, Any], signature: GraphSignature, words: str
) -> None:
    with pytest.raises(CheckFailed) as caught:
        check_sample(sample, signature, "here")
    assert words in f"{caught.value.message} {caught.value.fix}"


class Touch:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


class TestDamage:
    @pytest.mark.parametrize("name", ["0.npy", "0.npz"])
    def test_pickled_objects_are_never_loaded(self, tmp_path: Path, name: str) -> None:
        array = np.array([Touch(tmp_path / "touched")], dtype=object)
        np.savez(tmp_path / name, x=array) if name.endswith("z") else np.save(tmp_path / name, array)
        with pytest.raises(CheckFailed, match=name):
            read_samples(tmp_path, ONE)
        assert not (tmp_path / "touched").exists()


def test_inputs_of_the_command_line_go_by_name(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", TOKENS)
    np.save(tmp_path / "m.npy", GOOD)
    np.savez(tmp_path / "all.npz", mask=GOOD, tokens=TOKENS)
    for inputs in ([f"mask={tmp_path}/m.npy", f"tokens={tmp_path}/t.npy"], [f"{tmp_path}/all.npz"]):
        assert list(read_inputs(inputs, TWO)) == ["tokens", "mask"]
    assert list(read_inputs([f"{tmp_path}/m.npy"], ONE)) == ["x"]
    with pytest.raises(UsageError, match="x"):
        read_inputs([f"x={tmp_path}/m.npy", f"{tmp_path}/m.npy"], ONE)
    for name in ("absent.npy", "absent.npz"):
        with pytest.raises(UsageError, match=name):
            read_inputs([str(tmp_path / name)], ONE)


class TestFunction:
    def samples(self, folder: Path, body: str) -> list[Any]:
        text = "import itertools\nimport numpy as np\na = np.ones((1, 4), np.float32)\n"
        text += f"def samples():\n    {body}\n"
        (folder / "qnn_ci_samples_of_this_test.py").write_text(text)
        return calibration_samples("qnn_ci_samples_of_this_test:samples", ONE, folder)

    def test_that_never_ends_is_cut_off(self, tmp_path: Path) -> None:
        assert len(self.samples(tmp_path, "return itertools.repeat(a)")) == MOST

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ("yield np.ones((1,), np.float32)", "1.*float32"),
            ("yield (1, 2)", "1.*2"),
            ("return []", "qnn_ci_samples_of_this_test"),
            ("yield 1 / 0", "ZeroDivisionError"),
        ],
    )
    def test_that_does_not_fit_is_reported_by_sample(self, tmp_path: Path, body: str, words: str) -> None:
        with pytest.raises(CheckFailed, match=words):
            self.samples(tmp_path, body)


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_a_drawn_mask_hides_a_part_only(dtype: str) -> None:
    array = draw_sample(GraphSignature((Tensor("mask", dtype, (4, 16)),), ()))["mask"]
    assert array.dtype == dtype and {int(number) for number in array.ravel()} == {0, 1}


def test_drawn_values_lie_within_the_range_of_others() -> None:
    """One beyond it is cut by what was calibrated, and is then all of the error."""
    compared, *others = (
        draw_sample(GraphSignature((Tensor("x", "float32", (40, 50)),), ()), seed) for seed in range(3)
    )
    assert abs(compared["x"]).max() <= max(abs(sample["x"]).max() for sample in others)


SM8650 = soc_named("SM8650")


def test_options_go_to_where_they_belong() -> None:
    options: dict[str, Value] = {
        "htp_performance_mode": "burst",
        "extended_udma": True,
        "vtcm_mb": 8,
        "ep.context_node_name_prefix": "a_",
    }
    assert to_json(settings_of(options, soc=SM8650, embed=False)) == {
        "provider": {"htp_performance_mode": "burst", "extended_udma": "1", "vtcm_mb": "8"},
        "session": {"ep.context_node_name_prefix": "a_"},
    }
    assert settings_of({"htp_bf16_enable": 1, "vtcm_mb": 1}, soc=soc_named("SC8480XP"), embed=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"htp_perfomance_mode": "burst"}, "did you mean htp_performance_mode?"),
        *(({"vtcm_mb": value}, "vtcm_mb") for value in ("-3", "abc", "0", "1.5", "")),
        ({"vtcm_mb": 9}, "this chip has 8 MB"),
        (
            {"htp_share_resource_optimization": "1", "enable_vtcm_backup_buffer_sharing": 1},
            "contradicts",
        ),
        ({"htp_bf16_enable": 1}, "88 or more"),
        ({"op_packages": "Conv"}, "TYPE:PATH:SYMBOL"),
        ({"op_affinity": "/absent"}, "there is no file"),
    ],
)
def test_what_has_no_effect_or_another_is_refused_with_what_to_write(
    options: dict[str, Value], words: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings_of(options, soc=SM8650, embed=True)
    assert words in f"{caught.value.message} {caught.value.fix}"


@pytest.mark.parametrize("texts", [["vtcm_mb"], ["=4"], ["vtcm_mb="], ["vtcm_mb=4", "vtcm_mb=8"]])
def test_an_assignment_has_a_name_and_a_value_and_comes_once(texts: list[str]) -> None:
    with pytest.raises(UsageError):
        parse_assignments(texts)
    assert parse_assignments(["op_affinity=a=b"]) == {"op_affinity": "a=b"}
