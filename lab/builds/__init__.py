"""QNN builds of manifests/compat.toml, and the variables of a process that uses one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.builds import releases
from lab.builds.table import ONNX_PACKAGES, Builds, QnnBuild, load_builds
from provisioning.base import progress
from provisioning.base.errors import IntegrityError, UnknownName, UsageError
from provisioning.base.findings import Metric, Report
from provisioning.base.settings import Selection
from provisioning.build_ids import build_ids
from provisioning.components import QNN_SDK
from provisioning.manifest import Component, load_profile
from provisioning.stage_variables import HOST_LIBRARIES
from provisioning.store import Store

HOST = frozenset({"x86_64-linux"})


def own_build(table: Builds) -> QnnBuild:
    """The one that the profile pins."""
    pinned = load_profile(table.profile).components[QNN_SDK]
    return next(build for build in table.builds if build.build_id == pinned.build_id)


def builds_named(names: Sequence[str], least: int = 2) -> list[QnnBuild]:
    """These by their QNN versions, all without one; the newest first."""
    builds = {build.qnn: build for build in reversed(load_builds().builds)}
    if unknown := [name for name in names if name not in builds]:
        raise UnknownName(f"--qnn {unknown[0]}: manifests/compat.toml has no such build", unknown[0], builds)
    selected_builds = [builds[name] for name in dict.fromkeys(names)] or list(builds.values())
    if len(selected_builds) < least:
        raise UsageError("one build cannot be compared", fix=f"name a second --qnn of: {', '.join(builds)}")
    return selected_builds


def variables_for_sdk(environ: Mapping[str, str], sdk: Path) -> dict[str, str]:
    """The variables of a process that uses this SDK. With QNN_CI_PROFILE, stages would use the profile's own
    SDK."""
    others = {name: value for name, value in environ.items() if name != "QNN_CI_PROFILE"}
    return {**others, "QNN_SDK_ROOT": str(sdk), "LD_LIBRARY_PATH": str(sdk / "lib" / HOST_LIBRARIES)}


def provision(build: QnnBuild, pinned: Component, store: Store) -> Path:
    """The root of this build's tree. The profile's own build is the tree that everything else uses too."""
    component = build.component(pinned)
    tree = store.provision(QNN_SDK, component, HOST, progress=progress.for_stream())
    library = tree.root / "lib" / HOST_LIBRARIES / "libQnnHtp.so"
    ids = build_ids(library)
    if ids != (build.build_id,):
        raise IntegrityError(
            f"{build.package} {build.version}: expected build id {build.build_id}, found {', '.join(ids)}",
            fix="correct build_id in manifests/compat.toml",
        )
    return tree.root


def environment_of(
    build: QnnBuild, selection: Selection, lane: str, environ: Mapping[str, str]
) -> dict[str, str]:
    """The variables of a process that uses only this build."""
    store = Store(selection.store)
    if lane == "onnx":
        dropped = ("QNN_CI_PROFILE", "QNN_SDK_ROOT")
        others = {name: value for name, value in environ.items() if name not in dropped}
        packages, shown = build.packages(), progress.for_stream()
        tree = store.provision(ONNX_PACKAGES, packages, HOST, progress=shown)
        return releases.first_on_path(tree.root, build.package, build.version, others)
    pinned = load_profile(load_builds().profile).components[QNN_SDK]
    return variables_for_sdk(environ, provision(build, pinned, store))


def rows_of(report: Report) -> dict[str, Mapping[str, Metric]]:
    """By program, what a stage's report has of it."""
    rows = report.metrics.get("programs")
    return (
        {name: row for name, row in rows.items() if isinstance(row, dict)} if isinstance(rows, dict) else {}
    )
