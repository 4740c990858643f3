"""What `build_x86` costs a second time, on a copy of the tree that EXECUTORCH_ROOT names.

The cold build comes first, with a compiler cache of its own, and is a fact: nobody can make it faster here.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ci.builds.tree import OWN_NAME, open_tree
from lab.bench.frame import Aim, Benchmark, Contender, run_stage
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import store_path
from provisioning.dist import MANIFEST

WARM, CHANGED, UNCHANGED = "an emptied build folder", "one changed source", "nothing changed"
AIMS = (Aim(WARM, 180.0), Aim(CHANGED, 60.0), Aim(UNCHANGED, 2.0))
SOURCE = "backends/qualcomm/runtime/QnnManager.cpp"


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    if not (named := os.environ.get("EXECUTORCH_ROOT")):
        raise EnvironmentLacking(
            "EXECUTORCH_ROOT names no tree to build", fix="export EXECUTORCH_ROOT=DIRECTORY"
        )
    tree = work / OWN_NAME
    shutil.copytree(named, tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
    environment = {**os.environ, "EXECUTORCH_ROOT": str(tree), "CCACHE_DIR": str(work / "ccache")}

    def build(folder: Path, into: Path) -> None:
        places = ["--build-dir", str(folder / "build"), "--output", str(folder / "dist")]
        run_stage("build_x86", places, store_path(), into, environment)

    def change(into: Path) -> None:
        source = tree / SOURCE
        # A comment would not do: ccache compares what the preprocessor leaves.
        line = f"extern int changed_{time.monotonic_ns()};\n"
        source.write_text(source.read_text(encoding="utf-8") + line, encoding="utf-8")
        build(kept, into)

    def check(into: Path) -> None:
        if not (into / "dist" / MANIFEST).is_file():
            raise CheckFailed(f"{into}: the build left no {MANIFEST}")

    kept, begun = work / "kept", time.monotonic()
    build(kept, work / "cold")
    cold = time.monotonic() - begun
    yield Benchmark(
        contenders=(
            Contender(WARM, lambda into: build(into, into), check),
            Contender(CHANGED, change),
            Contender(UNCHANGED, lambda into: build(kept, into)),
        ),
        aims=AIMS,
        facts={"cold_seconds": round(cold, 1), "executorch": open_tree(tree).version},
    )
