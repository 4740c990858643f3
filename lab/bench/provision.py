"""Provisioning QNN into an empty store from wheels in a folder, against sha256sum and unzip of the same.

Ours asks pip for each wheel, verifies it, writes the tree of the chosen files and its inventory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.bench.frame import Aim, Benchmark, Contender, run_stage
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.settings import DEFAULT_PROFILE, store_path
from provisioning.components import QNN_SDK
from provisioning.manifest import load_profile
from provisioning.sources import Wheel
from provisioning.store import EVERYTHING, Store

OURS, AGAIN, PLAIN = "provision", "provision, nothing to do", "sha256sum and unzip"
AIMS = (Aim(OURS, PLAIN, 0.5), Aim(AGAIN, 2.0))


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    if missing := [name for name in ("sha256sum", "unzip") if shutil.which(name) is None]:
        raise EnvironmentLacking(f"expected {' and '.join(missing)} on PATH, found none")
    component = load_profile(DEFAULT_PROFILE).components[QNN_SDK]
    store, wheels = Store(store_path()), work / "wheels"
    store.provision(QNN_SDK, component, EVERYTHING)
    wheels.mkdir()
    sources = [part.source for part in component.parts if isinstance(part.source, Wheel)]
    for source in sources:
        shutil.copy(source.landing_place(store.downloads), wheels / source.filename)
    environment = {**os.environ, "PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1", "UV_NO_INDEX": "1"}

    def ours(into: Path, at: Path) -> None:
        run_stage("provision", ["--component", QNN_SDK], at, into, environment, package="provisioning")

    def plain(into: Path) -> None:
        listed = "".join(f"{source.sha256}  {wheels / source.filename}\n" for source in sources)
        subprocess.run(["sha256sum", "--check", "--quiet"], input=listed, text=True, check=True)
        for source in sources:
            archive = str(wheels / source.filename)
            subprocess.run(["unzip", "-q", archive, "-d", str(into / source.filename)], check=True)

    def check(into: Path) -> None:
        if not list(into.glob("store/trees/*/lib/*/libQnnHtp.so")):
            raise CheckFailed(f"{into}: provision left no QNN library")

    kept = work / "kept"
    ours(work / "first", kept)
    yield Benchmark(
        contenders=(
            Contender(OURS, lambda into: ours(into, into / "store"), check),
            Contender(PLAIN, plain),
            Contender(AGAIN, lambda into: ours(into, kept)),
        ),
        aims=AIMS,
        facts={"wheels": len(sources), "bytes": sum(source.size or 0 for source in sources)},
    )
