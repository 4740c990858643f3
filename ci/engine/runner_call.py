"""How the stages call qnn_executor_runner; imports nothing heavy."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ci.engine.trouble import how_it_ended
from ci.engine.workers.parent import tail
from provisioning.base.commands import quoted
from provisioning.base.errors import CheckFailed


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


def call_runner(
    command: Sequence[str], program: Path, log: Path, environment: Mapping[str, str], timeout: float
) -> None:
    """Run it with its output in the log. Raises CheckFailed with its last error."""
    try:
        with log.open("wb") as stream:
            code = subprocess.run(
                command, env=dict(environment), stdout=stream, stderr=stream, timeout=timeout, check=False
            ).returncode
    except subprocess.TimeoutExpired as error:
        raise CheckFailed(
            f"{program}: it ran longer than {timeout:g} s", fix="give it longer: --timeout"
        ) from error
    if code:
        text = tail(log, 4000).splitlines()
        lines = [line for line in text if "error:" in line.lower()] or text
        words = f": {lines[-1].strip()}" if lines else ""
        raise CheckFailed(
            f"{program}: the runner {how_it_ended(code)}{words}",
            fix=f"python -m ci inspect {quoted(program)}",
        )
