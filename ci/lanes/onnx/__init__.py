"""This lane compiles ONNX models through ONNX Runtime's QNN provider."""

from ci.suite.lane_head import LaneHead, LaneStage

HEAD = LaneHead(
    name="onnx",
    environment="onnx",
    models="ONNX models",
    stages=(
        LaneStage(
            "test_onnx",
            "ci.lanes.onnx.verb",
            "run the ONNX suite on the HTP emulator, through ONNX Runtime's QNN provider",
        ),
    ),
    mark="ONNX",
)
