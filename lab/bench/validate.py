"""Validating the whole wheels tree, as a process: ours against readelf over the same files.

readelf prints headers and judges nothing; it shows what the reading alone costs. Validation with every rule,
the compiler's answer among them, takes 1.4 seconds at most.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from lab.bench.frame import Aim, Benchmark, Contender
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, EnvironmentLacking
from provisioning.base.findings import Report, Severity
from provisioning.base.settings import DEFAULT_PROFILE, ROOT, store_path
from provisioning.manifest import load_profile
from provisioning.store import EVERYTHING, Store
from provisioning.validation.scan import libraries

COMPONENT: Literal["qnn-sdk"] = "qnn-sdk"
ALL, FILES, READELF = "validate", "files only", "readelf"
AIMS = (Aim(ALL, 1.4),)


@contextmanager
def prepared(work: Path) -> Iterator[Benchmark]:
    """The tree with all targets and arches, from the user's store."""
    readelf = shutil.which("readelf")
    if readelf is None:
        raise EnvironmentLacking(
            "expected readelf on PATH, found none", fix="apt-get install binutils, which has it"
        )
    component = load_profile(DEFAULT_PROFILE).components[COMPONENT]
    root = Store(store_path()).provision(COMPONENT, component, EVERYTHING).root
    files = [library.path for library in libraries(root)]
    headers = [readelf, "-hdlVW", *map(str, files)]
    validate = functools.partial(_validate, root, work / "store")
    # A first run of both, so that the first round has no first-use costs.
    for flags in ((), ("--tree", str(root))):
        validate(work, *flags)
    subprocess.run(headers, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    yield Benchmark(
        contenders=(
            Contender(ALL, validate, _check(len(files))),
            Contender(FILES, lambda into: validate(into, "--tree", str(root)), _check(len(files))),
            Contender(READELF, lambda into: _headers(headers, into)),
        ),
        aims=AIMS,
        facts={"libraries": len(files), "bytes": sum(path.stat().st_size for path in files)},
    )


def _validate(sdk: Path, store: Path, into: Path, *flags: str) -> None:
    """Uses the tree as the user's own SDK, so that the benchmark has its own store."""
    dropped = ("LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")
    environ = {name: value for name, value in os.environ.items() if name not in dropped}
    subprocess.run(
        [sys.executable, "-m", "provisioning", "validate", "--profile", DEFAULT_PROFILE, *flags],
        cwd=ROOT,
        env={
            **environ,
            "QNN_SDK_ROOT": str(sdk),
            "QNN_CI_STORE": str(store),
            "QNN_CI_REPORTS": str(into / "reports"),
        },
        stdout=subprocess.DEVNULL,
        check=False,
    )


def _headers(command: list[str], into: Path) -> None:
    with (into / "headers.txt").open("wb") as out:
        subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=False)


def _check(count: int) -> Callable[[Path], None]:
    def check(directory: Path) -> None:
        report = Report.read(directory / "reports" / "validate.json")
        faults = [finding.message for finding in report.findings if finding.severity is not Severity.NOTE]
        if faults or report.metrics["libraries"] != count:
            raise CheckFailed(
                f"expected {count} libraries and no fault, found {report.metrics['libraries']} and {faults}",
                fix=session("validate"),
            )

    return check
