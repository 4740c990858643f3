"""Provision a selection in a job, and export its environment to later steps."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ci.github.files import annotate, append, export, set_outputs
from ci.github.place import SetupInputs, store_of
from provisioning.base.errors import UsageError
from provisioning.base.findings import Report
from provisioning.base.foreign import visible
from provisioning.base.rendering.text import plural
from provisioning.base.rendering.workflow_commands import command
from provisioning.base.settings import (
    DEFAULT_SOC,
    DEFAULT_TARGET,
    ROOT,
    Selection,
    dist_path,
    reports_path,
)
from provisioning.components import ANDROID_NDK, QNN_SDK, identity_of

ALIASES: Mapping[str, tuple[str, ...]] = {ANDROID_NDK: ("ANDROID_NDK_ROOT", "ANDROID_NDK_HOME")}


def run(environ: Mapping[str, str]) -> int:
    wanted = SetupInputs.of(environ)
    environ = {**environ, "QNN_CI_STORE": str(store_of(environ)), "QNN_CI_SOC": ",".join(wanted.socs)}
    if environ.get("QNN_CI_RESTORED"):
        # Provisioning proves trees and downloads. A verdict that came with them nobody proves.
        shutil.rmtree(store_of(environ) / "cache", ignore_errors=True)
    report_file = ROOT / reports_path(None, environ) / "provision.json"
    if code := _verb(["provision", *wanted.flags()], environ):
        with suppress(OSError, ValueError):  # there may be no report
            annotate(Report.read(report_file), environ)
        return code
    damage = [finding for finding in Report.read(report_file).findings if finding.rule == "store-damage"]
    if damage:
        more = f" (and {plural(len(damage) - 1, 'more file')})" if damage[1:] else ""
        text = f"{damage[0].subject}{more}: {damage[0].message}"
        sys.stdout.write(command("warning", visible(text), title="provision: store-damage") + "\n")
    selection = Selection(
        profile=wanted.profile,
        target=wanted.targets[0] if wanted.targets else DEFAULT_TARGET,
        soc=wanted.socs[0] if wanted.socs else DEFAULT_SOC,
        store=Path(environ["QNN_CI_STORE"]),
        reports=reports_path(None, environ),
    )
    outputs = dict.fromkeys(("sdk-root", "ndk-root", "version", "build-id"), "")
    if not wanted.components or QNN_SDK in wanted.components:
        outputs |= _environment_outputs(selection, environ)
    else:
        for component in wanted.components:
            outputs |= _component_outputs(component, selection, environ)
    # Exported last: the environment names one chip, and stages take all chips of the selection.
    chosen = {"QNN_CI_PROFILE": wanted.profile, "QNN_CI_STORE": environ["QNN_CI_STORE"]}
    export({**chosen, "QNN_CI_SOC": ",".join(wanted.socs)}, environ)
    set_outputs({**outputs, "repaired": str(bool(damage)).lower()}, environ)
    return 0


def _environment_outputs(selection: Selection, environ: Mapping[str, str]) -> dict[str, str]:
    from provisioning.environment import HOST_LIBRARIES, resolve

    environment = resolve(selection, environ).with_runner(environ, dist_path())
    environment.explain()
    # The runner keeps PATH itself and prepends each line of GITHUB_PATH, so the last line comes first.
    export({name: value for name, value in environment.variables.items() if name != "PATH"}, environ)
    append("GITHUB_PATH", "".join(f"{entry}\n" for entry in reversed(environment.path_entries)), environ)
    outputs = {}
    if (sdk := environment.roots.get(QNN_SDK)) is not None:
        library = sdk.path / "lib" / HOST_LIBRARIES / "libQnnHtp.so"
        version = sdk.version or identity_of(QNN_SDK, sdk.path).version
        outputs = {"sdk-root": str(sdk.path), "version": version, "build-id": _build_id(library)}
    if (ndk := environment.roots.get(ANDROID_NDK)) is not None:
        outputs["ndk-root"] = str(ndk.path)
    return outputs


def _build_id(library: Path) -> str:
    from provisioning.build_id import build_ids

    ids = build_ids(library) if library.is_file() else ()
    return ids[0] if len(ids) == 1 else ""


def _component_outputs(component: str, selection: Selection, environ: Mapping[str, str]) -> dict[str, str]:
    """A component without the SDK: export its root under the names that other tools know."""
    from provisioning.components import COMPONENT_VARIABLES
    from provisioning.manifest import load_profile
    from provisioning.store import FileSelection, Store

    variable = COMPONENT_VARIABLES[component]
    pin = load_profile(selection.profile).pins[component]
    if root := environ.get(variable):
        version = identity_of(component, Path(root)).version
    else:
        tree = Store(selection.store).find(component, pin, FileSelection(frozenset(), frozenset()))
        if tree is None:
            raise UsageError(f"{component} was provisioned, but is not in {selection.store}")
        root, version = str(tree.root), tree.version
    export(dict.fromkeys(ALIASES.get(component, (variable,)), root), environ)
    return {"ndk-root": root, "version": version} if component == ANDROID_NDK else {}


def _verb(arguments: list[str], environ: Mapping[str, str]) -> int:
    sys.stdout.flush()
    typed = [sys.executable, "-m", "provisioning", *arguments]
    return subprocess.run(typed, cwd=ROOT, env=environ, check=False).returncode
