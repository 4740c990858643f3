"""Validating the whole wheels tree, as a process: ours against readelf over the same files.

readelf prints headers and judges nothing; it shows what the reading alone costs. Validation with every rule,
the compiler's answer among them, takes 1.4 seconds at most.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.bench.frame import Aim, Benchmark, Contender, run_stage
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Report, Severity
from provisioning.base.settings import DEFAULT_PROFILE, store_path
from provisioning.components import QNN_SDK
from provisioning.manifest import load_profile
from provisioning.qnn_libraries import libraries_in
from provisioning.store import EVERYTHING, Store

ALL, READELF = "validate", "readelf"
AIMS = (Aim(ALL, 1.4),)


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    """The tree with all targets and arches, from the user's store."""
    readelf = shutil.which("readelf")
    if readelf is None:
        raise EnvironmentLacking("expected readelf on PATH, found none", fix="apt-get install binutils")
    component = load_profile(DEFAULT_PROFILE).components[QNN_SDK]
    root = Store(store_path()).provision(QNN_SDK, component, EVERYTHING).root
    files = [library.path for library in libraries_in(root)]
    headers = [readelf, "-hdlVW", *map(str, files)]
    # The tree as the user's own SDK, so that the benchmark has a store of its own.
    environment = {**os.environ, "QNN_SDK_ROOT": str(root)}

    def validate(into: Path) -> None:
        run_stage("validate", [], work / "store", into, environment, package="provisioning")

    def print_headers(into: Path) -> None:
        # It fails for a library without dynamic symbols, after the headers.
        with (into / "headers.txt").open("wb") as out:
            subprocess.run(headers, stdout=out, stderr=subprocess.DEVNULL, check=False)

    def check(into: Path) -> None:
        report = Report.read(into / "validate.json")
        faults = [finding.message for finding in report.findings if finding.severity is not Severity.NOTE]
        if faults or report.metrics["libraries"] != len(files):
            raise CheckFailed(
                f"expected {len(files)} libraries, found {report.metrics['libraries']}, and {faults}",
                fix=session("validate"),
            )

    # Once before the rounds, which then have no first-use costs.
    validate(work / "first")
    yield Benchmark(
        contenders=(
            Contender(ALL, validate, check),
            Contender(READELF, print_headers),
        ),
        aims=AIMS,
        facts={"libraries": len(files), "bytes": sum(path.stat().st_size for path in files)},
    )
