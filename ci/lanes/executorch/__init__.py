"""PyTorch models through ExecuTorch: the suite, what was delegated, and the judgement of programs."""

from ci.suite.lane_head import DEVICE_STAGE, FORECAST, ONE_MODEL, LaneHead, LaneStage

HEAD = LaneHead(
    name="executorch",
    environment="executorch",
    models="PyTorch models",
    stages=(
        LaneStage(
            "test_lowering",
            "ci.lanes.executorch.verb:LOWERING",
            "compile the suite's models for the NPU; check what runs there and what it costs",
            "suites.md",
        ),
        LaneStage(
            "test_emulator",
            "ci.lanes.executorch.verb:EMULATION",
            "run the suite's programs on the HTP emulator and compare with PyTorch",
            "suites.md",
        ),
        LaneStage(
            "test_device",
            "ci.lanes.executorch.verb:DEVICE",
            "judge what a device gave for the suite's programs, and compare it with the emulator",
            "devices.md#a-suite-on-a-device",
            flags=DEVICE_STAGE,
        ),
    ),
    verbs=tuple(verb for verb in ONE_MODEL if verb != FORECAST),
    runtime="ExecuTorch",
)

PROGRAM = "program.pte"
"""A program's file has this name in a result's folder."""

CHOSEN = ".chosen"
"""Files of values among which indices choose end with this, in a result's folder."""

QUANTIZED = "quantized.pt2"
"""A quantized model's file has this name in a result's folder."""

REWRITTEN, SAMPLES = "rewritten.pt2", "samples"
"""A rewritten model's file and its folder of samples have these names in a result's folder."""

BROKEN = "broken"
"""The details of an error have the step of the compiler that raised it under this name."""
