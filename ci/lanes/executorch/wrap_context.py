"""A QNN context binary, such as AI Hub's, as an ExecuTorch program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.base.files import replacing
from provisioning.base.settings import Selection

if TYPE_CHECKING:
    from ci.artifacts.program import ContextStrings


def wrap(context: Path, contents: ContextStrings, selection: Selection, output: Path, timeout: float) -> str:
    """Write the program; returns the chip that it is for."""
    from ci.artifacts.against_sdk import against
    from ci.closed import closed
    from ci.lanes.executorch.compile import WORKER, home_of
    from ci.outcome import Refused
    from ci.work import asking
    from provisioning.base.progress import at_work
    from provisioning.components import QNN_SDK
    from provisioning.environment import resolve
    from provisioning.manifest import load_socs

    environment = resolve(selection, os.environ, needs=(QNN_SDK,))
    answer = against(contents, environment.root(QNN_SDK).path)
    if any("error 5000" in line for line in answer.says):
        message = f"{context}: {'; '.join(answer.says)}"
        raise CheckFailed(message, fix="compile it with this QNN, or another --profile")
    known = load_socs()
    soc = next((name for name in contents.socs if name in known), selection.soc)
    log = Path(selection.reports).absolute() / "wrap" / f"{context.name}.log"
    with replacing(output.absolute()) as part:
        environ = closed(environment.merged(os.environ))
        home = home_of(environ, log.parent)
        order = {"context": str(context.absolute()), "soc": soc, "path": str(part)}
        try:
            with at_work(f"working on {context}"), asking(home, f"{WORKER}:wrapped", log, timeout) as ask:
                ask(**order)
        except Refused as refused:
            message = f"{context}: ExecuTorch cannot take it: {refused.message}"
            raise CheckFailed(message, fix=session("diagnose", log)) from refused
    return soc
