"""One run of a suite with the stand-in of the process that lowers; prints what each program came to."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from ci.executorch import compile as compiling
from ci.executorch.compile import Settings, compile_programs
from ci.executorch.suite import programs_of
from ci.suites.baseline import Baseline
from provisioning.base.settings import ROOT
from provisioning.environment import Environment
from tests.support.lowering import BASIS


def main(folder: Path, suite: Path, shift: float) -> None:
    real = time.time
    time.time = lambda: real() + shift
    compiling.WORKER = ("-m", "tests.support.lowering_worker")
    found = Environment("wheels", "x86_64-linux", "SM8650", {}, {}, (), (), ())
    settings = Settings(folder / "store", folder / "logs", jobs=2, timeout=60)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    programs = programs_of(suite)
    results = compile_programs(programs, found, environ, settings, BASIS, lambda _: Baseline(folder / "b"))
    texts = {}
    for name, each in results.items():
        assert each.folder is not None, each.failure
        texts[name.partition("/")[0]] = [each.cached, (each.folder / "program.pte").read_text()]
    print(json.dumps(texts))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
