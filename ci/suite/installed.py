"""What stages work with: the SDK's libraries for this machine."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from ci.digests import Digests
from ci.results import digest_of
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Metric
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.base.stage_run import require_stage
from provisioning.components import build_ids
from provisioning.dist import description_of, require_current
from provisioning.environment import HOST_LIBRARIES, Environment, resolve, selecting_flags


def require_packages(modules: Iterable[str], fix: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise EnvironmentLacking(
                f"{module.replace('_', '-')} is not installed in {sys.executable}", fix=fix
            )


def host_libraries(sdk_root: Path, store: Path) -> dict[str, str]:
    """The QNN build and the digest of the libraries that run on this machine. The store remembers the digests
    of files that have not changed."""
    libraries = sdk_root / "lib" / HOST_LIBRARIES
    htp = libraries / "libQnnHtp.so"
    if not htp.is_file():
        raise EnvironmentLacking(
            f"{sdk_root} has no lib/{HOST_LIBRARIES}/libQnnHtp.so, which compiles for the HTP",
            fix=Fix("{}, or set QNN_SDK_ROOT to an SDK with x86-64 Linux libraries", ("provision",)),
        )
    digests = Digests(store)
    hashes = {path.name: digests.of(path) for path in sorted(libraries.glob("*.so*"))}
    digests.save()
    return {"build_id": ", ".join(build_ids(htp)) or "unknown", "libraries": digest_of(dict(hashes))}


def find_as_workers(environment: Environment) -> None:
    """Let this process find the executorch that workers find: with an overlay, its tree's."""
    for entry in environment.variables.get("PYTHONPATH", "").split(os.pathsep)[:1]:
        if description_of(Path(entry)) is not None:
            require_current(Path(entry))
            if entry not in sys.path:
                sys.path.insert(0, entry)


def source_of_executorch() -> dict[str, Metric]:
    """For a report: the tree and the commit of an executorch that was built from source."""
    overlays = (description_of(Path(entry)) for entry in sys.path if entry)
    built = next(filter(None, overlays), None)
    return {} if built is None else {"executorch": f"built from {built}"}


def ready_environment(selection: Selection, environ: Mapping[str, str]) -> Environment:
    """As `resolve`, but what is neither in the store nor the user's own is provisioned first."""
    environment = _provisioned_environment(selection, environ)
    find_as_workers(environment)
    return environment


def _provisioned_environment(selection: Selection, environ: Mapping[str, str]) -> Environment:
    try:
        return resolve(selection, environ)
    except EnvironmentLacking:
        sys.stderr.write(f"Fetching what the profile {selection.profile} names, once\n")
        here = replace(selection, named_targets=(DEFAULT_TARGET,), named_socs=())
        flags = selecting_flags(here, environ)
        failed = "QNN could not be provisioned"
        require_stage("provisioning", "provision", flags, selection.reports, environ, failed)
    return resolve(selection, environ)
