"""PyTorch models through ExecuTorch: the suite, what was delegated, and the judgement of programs."""

from ci.suite.lane_head import LaneHead, LaneStage

HEAD = LaneHead(
    name="executorch",
    environment="executorch",
    models="PyTorch models",
    stages=(
        LaneStage(
            "test_lowering",
            "ci.lanes.executorch.verb:LOWERING",
            "compile the suite's models for the NPU; check what runs there and what it costs",
        ),
        LaneStage(
            "test_emulator",
            "ci.lanes.executorch.verb:EMULATION",
            "run the suite's programs on the HTP emulator and compare with PyTorch",
        ),
    ),
)

PROGRAM = "program.pte"
"""The file of a program in a result's folder."""

QUANTIZED = "quantized.pt2"
"""The file of a quantized model in a result's folder."""

REWRITTEN, SAMPLES = "rewritten.pt2", "samples"
"""The file of a rewritten model in a result's folder, and the folder of samples for it."""
