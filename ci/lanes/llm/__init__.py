"""This lane compiles a Hugging Face checkpoint for Genie or ExecuTorch, runs it on the HTP emulator and
judges it."""

from pathlib import Path

from ci.suite.lane_head import COMPILE, LANGUAGE_STAGE, RUN, LaneHead, LaneStage

CONFIGS = ("config.json", "adapter_config.json", "genie_config.json")
"""A folder in the Hugging Face format has one of these, or what is often taken for one, or what `compile`
wrote for Genie."""


def is_checkpoint(path: Path) -> bool:
    return any((path / name).is_file() for name in CONFIGS)


HEAD = LaneHead(
    name="llm",
    environment="llm",
    models="checkpoints of language models",
    timeout=4 * 3600.0,
    verbs=(COMPILE, RUN),
    takes_path=is_checkpoint,
    takes_text=True,
    stages=(
        LaneStage(
            "test_llm",
            "ci.lanes.llm.verb:STAGE",
            "run language models on the HTP emulator, and compare their text with the float model's",
            "llm.md#language-models-in-a-suite",
            flags=LANGUAGE_STAGE,
        ),
    ),
)
