"""Faults of the build that a profile pins are named, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci.inspect import verb
from provisioning.known_faults import faults_of, faults_of_build
from tests.support.programs import context
from tests.support.typed import run_here

FAULTY, GOOD = "v2.50.40.260831140417", "v2.51.0.260929181845"


@pytest.mark.parametrize(("version", "named"), [("2.47.0", False), ("2.49.40", True), ("2.51.0", False)])
def test_a_fault_is_named_for_its_versions_alone(version: str, named: bool) -> None:
    assert ("llama-decode-u16u8" in {fault.id for fault in faults_of("qnn", version)}) is named
    assert not faults_of("qnn", "1.0")
    assert [fault.id for fault in faults_of("onnxruntime-qnn", "2.5.0")] == ["attention-23"]
    assert {fault.id for fault in faults_of("onnxruntime-qnn", "2.7.0")} == {
        "reciprocal-below-one",
        "trace-of-a-quantized-gru",
    }


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
