"""What stages work with, by content: installed packages, the SDK's libraries for this machine, the runner."""

from __future__ import annotations

import hashlib
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ci.engine.memo import Digests, digest_of_files, key_of
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import hash_file
from provisioning.base.settings import ROOT
from provisioning.build_id import build_ids
from provisioning.environment import HOST_LIBRARIES

RUNNER = ROOT / "dist" / "x86_64-linux" / "bin" / "qnn_executor_runner"


def packages(names: Iterable[str], session: str) -> dict[str, str]:
    """Version and digest of each, without importing it; `session` is who installs them."""
    found = {}
    for name in names:
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            raise EnvironmentLacking(
                f"{name} is not installed in {sys.executable}", remedy=f"nox -s {session}, which installs it"
            ) from None
        # RECORD has the hash of every file of the package.
        record = key_of({"record": distribution.read_text("RECORD") or ""})
        found[name] = f"{distribution.version} {record[:16]}"
    return found


def host_libraries(sdk_root: Path, purpose: str, store: Path | None = None) -> dict[str, str]:
    """QNN's build and the digest of the libraries that run here; `purpose` is what libQnnHtp.so is for.

    With the store, whose memory knows the digests of files that have not changed."""
    libraries = sdk_root / "lib" / HOST_LIBRARIES
    htp = libraries / "libQnnHtp.so"
    if not htp.is_file():
        raise EnvironmentLacking(
            f"{sdk_root} has no lib/{HOST_LIBRARIES}/libQnnHtp.so, which {purpose}",
            remedy="nox -s provision, or set QNN_SDK_ROOT to an SDK with x86-64 Linux libraries",
        )
    digests = Digests(store) if store else None
    found = {
        path.name: digests.of(str(path))[0] if digests else hash_file(path)
        for path in sorted(libraries.glob("*.so*"))
    }
    if digests:
        digests.save()
    return {"build_id": ", ".join(build_ids(htp)) or "unknown", "libraries": key_of(dict(found))}


def find_runner(environ: Mapping[str, str]) -> Path:
    """The user's own, named by QNN_EXECUTOR_RUNNER, else the one that build_runner makes."""
    named = environ.get("QNN_EXECUTOR_RUNNER")
    path = Path(named).absolute() if named else RUNNER
    if not path.is_file():
        raise EnvironmentLacking(
            f"QNN_EXECUTOR_RUNNER={named} is not a file" if named else "qnn_executor_runner is not built yet",
            remedy="unset QNN_EXECUTOR_RUNNER, then nox -s build_runner" if named else "nox -s build_runner",
        )
    return path


def ready_runner(environ: Mapping[str, str], reports: Path) -> Path:
    """As `find_runner`, but the one that build_runner makes is built first if it is not there."""
    if not environ.get("QNN_EXECUTOR_RUNNER") and not RUNNER.is_file():
        sys.stderr.write("qnn_executor_runner is not built yet: nox -s build_runner\n")
        sys.stderr.flush()
        command = [sys.executable, "-m", "ci", "build_runner", "--reports", str(reports)]
        code = subprocess.run(command, cwd=ROOT, env=dict(environ), stdout=2, check=False).returncode
        if code:
            raise EnvironmentLacking(
                f"qnn_executor_runner could not be built: exit code {code} of build_runner, see above",
                remedy="nox -s build_runner",
            )
    return find_runner(environ)


def runner_digest(runner: Path) -> str:
    """With the libraries staged beside it, which are as much a part of it."""
    staged = runner.parent.name == "bin"
    top = runner.parent.parent if staged else runner.parent
    libraries = (top / "lib").glob("*.so*") if staged else ()
    return hashlib.sha256(digest_of_files(top, [runner, *libraries]).encode()).hexdigest()
