"""Make ready what the programs of a suite need on this machine: the packages of the lane, QNN, and the
executorch that the user chose.

`ready_environment` provisions and builds what is missing; the other functions look and refuse."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from ci.work import (
    Digests,
    digest_of,
)
from provisioning.base.commands import Fix, quote_command
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import BUILDS_TREE, DEFAULT_TARGET, Selection, profile_flags
from provisioning.base.stage_run import RAN_WITH, require_stage
from provisioning.build_ids import build_ids
from provisioning.dist import description_of
from provisioning.environment import Environment, resolve, selecting_flags
from provisioning.executorch import PYTHON_PATH, Executorch
from provisioning.stage_variables import HOST_LIBRARIES

EXECUTORCH = "executorch"
"""The name of the package, and of the report's metric that says which one ran."""


def require_packages(modules: Iterable[str], fix: str) -> None:
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise EnvironmentLacking(
                f"{module.replace('_', '-')} is not installed in {sys.executable}", fix=fix
            )


def host_libraries(sdk_root: Path, store: Path) -> dict[str, str]:
    """The QNN build, and the digest of its libraries that run on this machine. The store remembers the
    digests of files that have not changed."""
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


def use_executorch(environment: Environment) -> Executorch:
    """Let this process find the executorch that its workers find; its output and report say which it is.
    Raises EnvironmentLacking if a variable names another one."""
    executorch = environment.executorch.current()
    sys.path[:] = [entry for entry in sys.path if description_of(Path(entry)) is None]
    if executorch.overlay:
        sys.path.insert(0, str(executorch.overlay))
    _require_found(executorch)
    text = executorch.describe(version(EXECUTORCH))
    if RAN_WITH.get(EXECUTORCH) != text:
        sys.stderr.write(f"executorch {text}\n")
    RAN_WITH[EXECUTORCH] = text
    return executorch


def _require_found(executorch: Executorch) -> None:
    """Refuse another executorch that comes before it on Python's path."""
    spec, home = importlib.util.find_spec(EXECUTORCH), executorch.overlay or Path(sys.prefix)
    for place in map(Path, list(spec.submodule_search_locations or ())[:1] if spec else ()):
        if place.absolute().is_relative_to(home.absolute()):
            continue
        is_on_path = str(place.parent) in os.environ.get(PYTHON_PATH, "").split(os.pathsep)
        uninstall = quote_command(sys.executable, "-m", "pip", "uninstall", EXECUTORCH)
        raise EnvironmentLacking(
            f"Python finds executorch in {place}, expected it below {home}",
            fix=f"leave {place.parent} out of {PYTHON_PATH}"
            if is_on_path
            else f"an editable install, a .pth file or the user's site has it: {uninstall}; an installed"
            " `qnn-ci` has a Python of its own",
        )


def ready_environment(selection: Selection, environ: Mapping[str, str]) -> Environment:
    """Resolve the environment, and first provision and build what neither the store nor the user has."""
    environment = provisioned_environment(selection, environ)
    if environ.get(BUILDS_TREE) and _is_to_be_built(environment.executorch):
        sys.stderr.write("Building for this machine the tree that was just built for a device\n")
        flags = profile_flags(selection.profile, {})
        message = f"{EXECUTORCH} could not be built for this machine"
        require_stage("ci", "build_x86", flags, selection.reports, environ, message)
        environment = resolve(selection, environ)
    use_executorch(environment)
    return environment


def _is_to_be_built(executorch: Executorch) -> bool:
    try:
        executorch.current()
    except EnvironmentLacking:
        return True
    return False


def provisioned_environment(selection: Selection, environ: Mapping[str, str]) -> Environment:
    """Resolve the environment, and first provision what neither the store nor the user has."""
    try:
        return resolve(selection, environ)
    except EnvironmentLacking:
        sys.stderr.write(f"Fetching what the profile {selection.profile} names, once\n")
        host = replace(selection, named_targets=(DEFAULT_TARGET,), named_socs=())
        flags = selecting_flags(host, environ)
        failed = "QNN could not be provisioned"
        require_stage("provisioning", "provision", flags, selection.reports, environ, failed)
    return resolve(selection, environ)
