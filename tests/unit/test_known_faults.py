"""Faults of the build that a profile pins are named, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.inspect import verb
from ci.operators.faults import faults_in, shown_by_inputs
from provisioning.known_faults import Product, faults_of, faults_of_build, load_faults
from tests.support.programs import context
from tests.support.typed import run_here

FAULTY, GOOD = "v2.50.40.260831140417", "v2.51.0.260929181845"


@pytest.mark.parametrize(("version", "named"), [("2.47.0", False), ("2.49.40", True), ("2.51.0", False)])
def test_a_fault_is_named_for_its_versions_alone(version: str, named: bool) -> None:
    assert ("llama-decode-u16u8" in {fault.id for fault in faults_of("qnn", version)}) is named
    assert not faults_of("qnn", "1.0")
    assert [fault.id for fault in faults_of("onnxruntime-qnn", "2.5.0")] == ["attention-23"]
    assert {fault.id for fault in faults_of("onnxruntime-qnn", "2.7.0")} == {
        "matmul-of-activations",
        "reciprocal-below-one",
        "trace-of-a-quantized-gru",
    }


def test_a_fault_without_a_command_of_its_own_is_shown_by_its_script_wherever_one_stands() -> None:
    shown = [fault.shown_by.command for fault in load_faults() if not fault.show]
    assert shown and {words[:2] for words in shown} == {("shell", "python")}
    assert [words for words in shown if not (Path(words[2]).is_absolute() and Path(words[2]).is_file())] == []


def test_a_program_has_the_faults_of_its_build_and_lane() -> None:
    onnx, executorch = (
        {fault.id for fault in faults_of_build(FAULTY, lane)} for lane in ("onnx", "executorch")
    )
    assert "llama-decode-u16u8" in onnx - executorch
    assert "per-channel-input-channels" in executorch - onnx
    assert "fp16-on-v68" in onnx & executorch
    assert not faults_of_build("unknown", "any")


@pytest.mark.parametrize(("build_id", "named"), [(FAULTY, True), (GOOD, False)])
def test_inspect_names_the_faults_of_the_build_that_compiled(
    build_id: str, named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "context.bin"
    binary.write_bytes(context("SM8450", 69, build_id=build_id))
    for flags in (["--json"], []):
        run_here(verb, binary, *flags)
        assert ("llama-decode-u16u8" in capsys.readouterr().out) is named


@pytest.mark.parametrize(("arch", "named"), [(68, True), (75, False)])
def test_inspect_names_a_fault_of_one_hexagon_version_for_that_one_alone(
    arch: int, named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "context.bin"
    binary.write_bytes(context("SM8350" if named else "SM8650", arch, build_id=GOOD))
    run_here(verb, binary)
    assert ("fp16-on-v68" in capsys.readouterr().out) is named


VERSIONS: dict[Product, str] = {"executorch": "1.5.1", "qnn": "2.49.40"}


@pytest.mark.parametrize(
    ("operator", "more", "scheme", "soc", "named"),
    [
        ("aten.cumsum.default", {}, "8a8w", "SM8650", {"cumsum-8-bit"}),
        ("aten.cumsum.default", {}, "16a8w", "SM8650", set()),
        ("aten.softmax.int", {}, "fp16", "SM8650", set()),
        ("aten.softmax.int", {}, "fp16", "SM8850", {"minus-infinity-on-v81"}),
        (
            "aten.full.default",
            {"shapes": [[1, 2, 3, 7, 5]]},
            "fp16",
            "SM8650",
            {"constant-of-five-dimensions"},
        ),
        ("aten.full.default", {"shapes": [[1, 3, 7, 5]]}, "fp16", "SM8650", set()),
        ("aten.max.dim", {"first": 2}, "fp16", "SM8650", {"max-of-two"}),
        ("aten.max.dim", {"first": 1}, "fp16", "SM8650", set()),
        ("aten.pow.Scalar", {"of_number": True}, "8a8w", "SM8650", {"power-of-a-number"}),
        ("aten.pow.Tensor_Tensor", {"of_number": True}, "8a8w", "SM8650", {"power-of-a-number"}),
        ("aten.pow.Tensor_Tensor", {}, "8a8w", "SM8650", set()),
        ("aten.pow.Tensor_Scalar", {}, "8a8w", "SM8650", set()),
        ("_native_batch_norm_legit.no_stats", {}, "fp16", "SM8650", {"batch-norm-without-statistics"}),
        ("aten._native_batch_norm_legit_no_training.default", {}, "fp16", "SM8650", {"batch-norm-epsilon"}),
        # It gives no program.
        ("aten.matmul.default", {}, "16a8w", "SM8650", set()),
        ("aten.linear.default", {"again": True}, "8a8w", "SM8650", {"bias-used-twice"}),
        ("aten.linear.default", {}, "8a8w", "SM8650", set()),
        (
            "dim_order_ops._to_dim_order_copy.default",
            {"kinds": ["bool"]},
            "8a8w",
            "SM8650",
            {"comparison-as-float"},
        ),
        ("dim_order_ops._to_dim_order_copy.default", {"kinds": ["int64"]}, "8a8w", "SM8650", set()),
        # A cast that lowering added.
        ("aten._to_copy.default", {"added": True}, "8a8w", "SM8650", set()),
        # No program of ours has a float64.
        ("aten.mean.dim", {}, "fp16", "SM8650", set()),
    ],
)
def test_an_operator_has_the_faults_of_its_scheme_and_chip(
    operator: str, more: dict[str, Any], scheme: str, soc: str, named: set[str]
) -> None:
    nodes = {"node": {"operator": operator, "line": "net.py:7", **more}}
    found = faults_in(nodes, scheme, soc, VERSIONS)
    assert {met.fault.id for met in found} == named and all("net.py:7" in str(met) for met in found)
    assert not faults_in(nodes, scheme, soc, {"executorch": "9"})


@pytest.mark.parametrize(("least", "named"), [(-3e38, True), (-7e4, True), (-65536.0, False), (0.0, False)])
def test_a_fault_of_values_is_named_where_an_input_has_them(least: float, named: bool) -> None:
    nodes = {
        name: {"operator": name, "line": ""} for name in ("aten._safe_softmax.default", "aten.exp.default")
    }
    found = shown_by_inputs({"nodes": nodes, "least": least}, "fp16", "SM8850", "v2.49.40.260810104044")
    assert [met.fault.id for met in found] == ["minus-infinity-on-v81"] * named
