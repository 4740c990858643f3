"""This lane compiles ONNX models through ONNX Runtime's QNN provider."""

from pathlib import Path

from ci.suite.lane_head import DEVICE_STAGE, KEEPING_STAGE, ONE_MODEL, LaneHead, LaneStage


def is_onnx(path: Path) -> bool:
    return path.suffix == ".onnx"


HEAD = LaneHead(
    name="onnx",
    environment="onnx",
    models="ONNX models",
    stages=(
        LaneStage(
            "test_onnx",
            "ci.lanes.onnx.verb:EMULATION",
            "run the ONNX suite on the HTP emulator, through ONNX Runtime's QNN provider",
            "onnx.md#a-suite-of-onnx-models",
            flags=KEEPING_STAGE,
        ),
        LaneStage(
            "test_onnx_device",
            "ci.lanes.onnx.verb:DEVICE",
            "judge what a device gave for the ONNX suite's programs, and compare it with the emulator",
            "devices.md#a-suite-on-a-device",
            flags=DEVICE_STAGE,
        ),
    ),
    verbs=ONE_MODEL,
    takes_path=is_onnx,
    draws_samples=True,
    runtime="ONNX Runtime",
    mark="ONNX",
)
