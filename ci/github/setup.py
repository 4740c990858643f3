"""Provision the components that setup-qnn selects, and export their environment to later steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ci.github.step_files import annotate, append, export, set_outputs
from ci.report.summary import github_annotations
from provisioning.base.commands import repeat_flag
from provisioning.base.errors import UsageError
from provisioning.base.findings import Report
from provisioning.base.settings import (
    DEFAULT_PROFILE,
    DEFAULT_SOC,
    DEFAULT_TARGET,
    ROOT,
    Selection,
    dist_path,
    reports_path,
    store_path,
)
from provisioning.components import ANDROID_NDK, QNN_SDK, identity_of

ALIASES: Mapping[str, tuple[str, ...]] = {ANDROID_NDK: ("ANDROID_NDK_ROOT", "ANDROID_NDK_HOME")}


@dataclass(frozen=True, slots=True)
class SetupInputs:
    """The inputs of setup-qnn and setup-ndk, read from the environment."""

    profile: str
    components: tuple[str, ...]
    targets: tuple[str, ...]
    socs: tuple[str, ...]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> SetupInputs:
        def several(name: str) -> tuple[str, ...]:
            return tuple(dict.fromkeys(environ.get(name, "").replace(",", " ").split()))

        return cls(
            environ.get("QNN_CI_PROFILE") or DEFAULT_PROFILE,
            several("QNN_CI_COMPONENTS"),
            several("QNN_CI_TARGETS"),
            several("QNN_CI_SOC"),
        )

    def flags(self) -> list[str]:
        """The flags for `provision`, which reads profile, SoCs and licences from the environment itself."""
        return [*repeat_flag("--component", self.components), *repeat_flag("--target", self.targets)]


def store_of(environ: Mapping[str, str]) -> Path:
    """The folder QNN_CI_STORE, else a folder of the job."""
    if not environ.get("QNN_CI_STORE") and (temp := environ.get("RUNNER_TEMP")):
        return Path(temp) / "qnn-ci-store"
    return store_path(None, environ)


def setup(environ: Mapping[str, str]) -> int:
    inputs = SetupInputs.of(environ)
    environ = {**environ, "QNN_CI_STORE": str(store_of(environ)), "QNN_CI_SOC": ",".join(inputs.socs)}
    report_file = ROOT / reports_path(None, environ) / "provision.json"
    if code := _verb(["provision", *inputs.flags()], environ):
        with suppress(OSError, ValueError):  # there may be no report
            annotate(Report.read(report_file), environ)
        return code
    report = Report.read(report_file)
    # Of a machine that keeps its store.
    damage = tuple(finding for finding in report.findings if finding.rule == "store-damage")
    sys.stdout.write(github_annotations([replace(report, findings=damage)]))
    selection = Selection(
        profile=inputs.profile,
        target=inputs.targets[0] if inputs.targets else DEFAULT_TARGET,
        soc=inputs.socs[0] if inputs.socs else DEFAULT_SOC,
        store=Path(environ["QNN_CI_STORE"]),
        reports=reports_path(None, environ),
    )
    outputs = dict.fromkeys(("sdk-root", "ndk-root", "version"), "")
    if not inputs.components or QNN_SDK in inputs.components:
        outputs |= _environment_outputs(selection, environ)
    else:
        for component in inputs.components:
            outputs |= _component_outputs(component, selection, environ)
    # Exported last: the environment names one chip, and stages take all chips of the selection.
    variables = {"QNN_CI_PROFILE": inputs.profile, "QNN_CI_STORE": environ["QNN_CI_STORE"]}
    export({**variables, "QNN_CI_SOC": ",".join(inputs.socs)}, environ)
    set_outputs(outputs, environ)
    return 0


def _environment_outputs(selection: Selection, environ: Mapping[str, str]) -> dict[str, str]:
    from provisioning.environment import resolve

    environment = resolve(selection, environ).for_shell(environ, dist_path())
    environment.explain()
    # The runner keeps PATH itself and prepends each line of GITHUB_PATH, so the last line comes first.
    export({name: value for name, value in environment.variables.items() if name != "PATH"}, environ)
    append("GITHUB_PATH", "".join(f"{entry}\n" for entry in reversed(environment.path_entries)), environ)
    outputs = {}
    if (sdk := environment.roots.get(QNN_SDK)) is not None:
        version = sdk.version or identity_of(QNN_SDK, sdk.path).version
        outputs = {"sdk-root": str(sdk.path), "version": version}
    if (ndk := environment.roots.get(ANDROID_NDK)) is not None:
        outputs["ndk-root"] = str(ndk.path)
    return outputs


def _component_outputs(component: str, selection: Selection, environ: Mapping[str, str]) -> dict[str, str]:
    """For a component without the SDK, export its root under the names that other tools know."""
    from provisioning.components import COMPONENT_VARIABLES
    from provisioning.manifest import load_profile
    from provisioning.store import EVERYTHING, Store

    variable = COMPONENT_VARIABLES[component]
    pin = load_profile(selection.profile).pins[component]
    if root := environ.get(variable):
        version = identity_of(component, Path(root)).version
    else:
        tree = Store(selection.store).find(component, pin, EVERYTHING)
        if tree is None:
            raise UsageError(f"{component} was provisioned, but is not in {selection.store}")
        root, version = str(tree.root), tree.version
    export(dict.fromkeys(ALIASES.get(component, (variable,)), root), environ)
    return {"ndk-root": root, "version": version} if component == ANDROID_NDK else {}


def _verb(arguments: list[str], environ: Mapping[str, str]) -> int:
    sys.stdout.flush()
    command = [sys.executable, "-m", "provisioning", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environ, check=False).returncode
