"""This lane compiles a Hugging Face checkpoint for Genie or ExecuTorch, runs it on the HTP emulator and
judges it."""

from ci.suite.lane_head import LaneHead, LaneStage

HEAD = LaneHead(
    name="llm",
    environment="llm",
    models="checkpoints of language models",
    timeout=4 * 3600.0,
    only_compiles=True,
    stages=(
        LaneStage(
            "test_llm",
            "ci.lanes.llm.verb",
            "run language models on the HTP emulator, and compare their text with the float model's",
        ),
    ),
)
