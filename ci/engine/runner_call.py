"""How the stages call qnn_executor_runner; imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def write_inputs(listed: Path, inferences: Iterable[Iterable[Path]]) -> Path:
    """The runner's list of inputs: one line for each inference."""
    lines = (" ".join(f'"{path}"' for path in paths) + "\n" for paths in inferences)
    listed.write_text("".join(lines), encoding="utf-8")
    return listed


def runner_command(
    runner: Path, program: Path, inputs: Path, outputs: Path, *more: str, trace: Path | str = ""
) -> list[str]:
    """It writes outputs, and a trace if one is named; no file of figures unless a flag in `more` names it."""
    return [
        str(runner),
        *("--model_path", str(program), "--input_list_path", str(inputs)),
        *("--output_folder_path", str(outputs), f"--etdump_path={trace}", "--performance_output_path="),
        *more,
    ]
