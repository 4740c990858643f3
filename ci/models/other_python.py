"""`--python`: the user's Python exports a model that needs its own packages, and ours lowers it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ci.models.user_model import SAMPLE_FILES, UserModel
from provisioning.base.command_line import Parser
from provisioning.base.commands import captured, leave_out
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError
from provisioning.base.progress import at_work

SCRIPT = Path(__file__).with_name("other_python_export.py")


def export_with(
    python: Path, named: UserModel, samples: Path | None, folder: Path, seed: int, timeout: float
) -> Path:
    if named.factory.endswith(".pt2"):
        message = f"{named.file} is exported already"
        raise UsageError(message, fix=leave_out("--python", ", or give file.py:function"))
    bare = python.parent in (Path(), Parser.user_folder())
    program = str(python) if python.is_file() else shutil.which(python.name) if bare else None
    if program is None:
        raise UsageError(f"--python {python}: there is no such program", fix="--python .venv/bin/python")
    file = folder / f"{named.name}.pt2"
    files = sorted(path for path in samples.iterdir() if path.suffix in SAMPLE_FILES) if samples else []
    sample = str(files[0]) if files else ""
    script, modules = SCRIPT.read_text(encoding="utf-8"), str(named.search_path)
    command = [program, "-c", script, modules, named.factory, str(seed), sample, str(file)]
    try:
        with at_work(f"{python} exports {named.factory}"):
            done = captured(command, cwd=Parser.user_folder(), timeout=timeout)
    except subprocess.TimeoutExpired as error:
        message = f"{python}: not exported after {timeout:g} s"
        raise CheckFailed(message, fix="allow more with --timeout") from error
    except OSError as error:
        raise UsageError(f"--python {python}: {error.strerror}", fix="name a Python") from error
    if done.returncode or not file.is_file():
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        if "No module named 'torch'" in last:
            message = f"{python} has no torch"
            raise EnvironmentLacking(message, fix="name the Python of an environment that has torch")
        raise CheckFailed(
            f"{python} cannot export {named.factory}: {last}",
            fix="run the same there: torch.export.export(model.eval(), inputs); --debug shows all it said",
            output=done.stderr,
        )
    return file
