"""One model named on the command line, as a program like those of a suite."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args

from ci.executorch.suite import Case, Program, Run, Scheme
from provisioning.base.errors import UsageError
from provisioning.base.settings import Selection
from provisioning.manifest import soc_named

FUNCTION = re.compile(r"(?P<module>.+):(?P<function>[A-Za-z_]\w*)")
SCHEMES: tuple[str, ...] = get_args(Scheme)


def program_named(model: str, scheme: str, soc: str, selection: Selection, calibration: int = 4) -> Program:
    """A model's program. The function's own folder, or the current one, is looked in first for modules."""
    soc_named(soc)
    match = FUNCTION.fullmatch(model)
    if match is None:
        raise UsageError(
            f"{model}: expected file.py:function or module:function, found neither",
            remedy="name a function that returns the model and its inputs: docs/suites.md",
        )
    name, folder = match["module"], Path.cwd()
    if name.endswith(".py"):
        path = Path(name).absolute()
        if not path.is_file():
            raise UsageError(f"{model}: there is no file {path}", remedy="name a Python file that is there")
        name, folder = path.stem, path.parent
    case = _case(f"{name}:{match['function']}", scheme, soc, calibration)
    word = re.sub(r"[^a-z0-9_.-]+", "-", f"{Path(os.fspath(name)).name}-{match['function']}".lower())
    return Program(folder / "no-suite.toml", word.strip("-_."), case, case.runs[0], soc, selection.profile)


def _case(factory: str, scheme: str, soc: str, calibration: int) -> Case:
    if scheme not in SCHEMES:
        raise UsageError(f"--precision {scheme}: no such precision", remedy=f"one of {', '.join(SCHEMES)}")
    run = Run.model_validate({"scheme": scheme, "socs": (soc,), "calibration": calibration})
    return Case.model_validate({"factory": factory, "run": (run,)})
