"""From a command line and an environment to the plan of a build."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ci.builds import toolchain
from ci.builds.build_tools import find_cmake, find_ninja
from ci.builds.cmake import RECORD
from ci.builds.output_folders import OURS, refuse_foreign, require_writable
from ci.builds.recipes import Recipe, for_tree, load_recipe
from ci.builds.source_plan import LocatedSdk, SourcePlan, default_jobs
from ci.builds.toolchain import Toolchain
from ci.builds.tree import file_names, open_tree, unread_options
from provisioning import overlay
from provisioning.base.commands import add_flags
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Finding, Severity
from provisioning.base.settings import DEFAULT_TARGET, OFFICIAL_PROFILE, Selection, dist_path, outputs_path
from provisioning.build_id import build_ids
from provisioning.components import ANDROID_NDK, EXECUTORCH_SOURCE, QNN_SDK
from provisioning.dist import RUNNER
from provisioning.environment import Environment, resolve, users_own
from provisioning.manifest import Profile, load_profile

HEADER = Path("include/QNN/QnnInterface.h")
LAUNCHERS = ("ccache", "sccache")


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """What a build from source was asked for; None where the user left the choice to us."""

    executorch: Path | None
    build_type: str
    jobs: int | None
    clean: bool
    build_dir: Path | None
    output: Path | None
    glibc: str | None
    cmake_arg: Sequence[str]
    target_only: bool
    install: bool
    compiler: str | None
    sysroot: Path | None
    toolchain_file: Path | None
    tried: bool


def plan_of(options: BuildOptions, selection: Selection, environ: Mapping[str, str]) -> SourcePlan:
    if options.build_dir:
        require_writable(options.build_dir, "--build-dir")
        refuse_foreign(options.build_dir, RECORD, "--build-dir")
    if options.output:
        require_writable(options.output, "--output")
        refuse_foreign(options.output, str(RUNNER), "--output", OURS)
        if selection.target == DEFAULT_TARGET:
            refuse_foreign(options.output / overlay.FOLDER, overlay.DESCRIPTION, "--output")
    profile = load_profile(selection.profile)
    recipe = load_recipe(selection.target)
    ndk = [ANDROID_NDK] if recipe.toolchain == "ndk" else []
    needs = (QNN_SDK, *ndk, *([] if options.executorch else [EXECUTORCH_SOURCE]))
    _check_headers(profile, selection, environ, needs)
    environment = resolve(selection, environ, needs=needs)
    environment.explain()
    suffix = "" if options.build_type == "RelWithDebInfo" else f"-{options.build_type}"
    launcher = next((path for name in LAUNCHERS if (path := shutil.which(name))), None)
    tree = open_tree(
        options.executorch.absolute() if options.executorch else environment.root(EXECUTORCH_SOURCE).path,
        recipe.submodules,
    )
    return SourcePlan(
        target=selection.target,
        recipe=for_tree(recipe, tree.root),
        tree=tree,
        names=file_names(tree.root),
        sdk=sdk_at(environment.root(QNN_SDK).path),
        toolchain=_toolchain(options, recipe, environment, environ),
        cmake=find_cmake(profile.host["cmake"].floor),
        ninja=find_ninja(),
        python=Path(sys.executable),
        python_identity=f"{sys.implementation.cache_tag} {platform.python_version()} at {sys.executable}",
        build_type=options.build_type,
        launcher=Path(launcher) if launcher else None,
        extra=tuple(options.cmake_arg),
        jobs=options.jobs or default_jobs(),
        root=(
            options.build_dir or outputs_path() / "build" / "executorch" / f"{selection.target}{suffix}"
        ).absolute(),
        dist=(options.output or dist_path() / selection.target).absolute(),
    )


def _check_headers(
    profile: Profile, selection: Selection, environ: Mapping[str, str], needs: tuple[str, ...]
) -> None:
    """Refuse a profile without headers before anything is provisioned for it."""
    if users_own(QNN_SDK, selection.store, environ, []) or any(
        not part.place or any(re.fullmatch(place.match, str(HEADER)) for place in part.place)
        for part in profile.components[QNN_SDK].parts
    ):
        return
    message = f"the profile {profile.name} has QNN's libraries without the headers that a build needs"
    try:
        resolve(replace(selection, profile=OFFICIAL_PROFILE), environ, needs=needs)
    except EnvironmentLacking as lacking:
        raise EnvironmentLacking(
            f"{message}, and {OFFICIAL_PROFILE} has them; {lacking.message}", fix=lacking.fix
        ) from lacking
    raise EnvironmentLacking(message, fix=add_flags("--profile", OFFICIAL_PROFILE))


def sdk_at(root: Path) -> LocatedSdk:
    if not (root / HEADER).is_file():
        raise EnvironmentLacking(
            f"{root}: expected {HEADER} to compile against, found none: the libraries of wheels come without",
            fix=f"name an official SDK with QNN_SDK_ROOT, or select --profile {OFFICIAL_PROFILE}",
        )
    libraries = sorted(root.glob("lib/*/libQnnHtp.so")) or sorted(root.glob("lib/*/libQnn*.so"))
    ids = build_ids(libraries[0]) if libraries else ()
    if not ids:
        raise EnvironmentLacking(
            f"{root}: no library below lib/ tells its build id", fix="name a whole SDK with QNN_SDK_ROOT"
        )
    return LocatedSdk(root, ids[0])


def notes_of(plan: SourcePlan, profile: Profile) -> Iterator[Finding]:
    """Warnings that a user wants to see before an hour of compiling."""

    def warning(rule: str, subject: object, message: str, fix: str) -> Finding:
        return Finding(rule, Severity.WARNING, str(subject), message, fix)

    for name in unread_options(plan.recipe, plan.names, plan.toolchain.files):
        message = f"no CMake file of {plan.tree.root} reads this option of the recipe: it has no effect"
        fix = "drop or rename it in manifests/recipes/ for this version of ExecuTorch"
        yield warning("build-option", name, message, fix)
    ndk = profile.components.get(ANDROID_NDK)
    if ndk is not None and plan.toolchain.version not in ("", ndk.version):
        message = f"the profile {profile.name} pins revision {ndk.version}"
        fix = "unset ANDROID_NDK_ROOT to use the store's"
        yield warning("build-ndk", plan.toolchain.identity, message, fix)
    sdk = plan.sdk
    if plan.target == "aarch64-android" and not (sdk.root / "lib" / plan.target).is_dir():
        message = (
            f"it has no lib/{plan.target}, so no phone can run what QNN {sdk.build_id} compiles: the"
            " runtime of another build refuses it (error 5000)"
        )
        fix = f"build, compile and bundle with --profile {OFFICIAL_PROFILE}, whose SDK has one"
        yield warning("build-runtime", sdk.root, message, fix)
    if (build_id := profile.components[QNN_SDK].build_id) and sdk.build_id != build_id:
        message = f"the profile {profile.name} pins {build_id}, this is {sdk.build_id}"
        fix = "unset QNN_SDK_ROOT to use the store's, or select the profile that this SDK is of"
        yield warning("build-sdk", sdk.root, message, fix)


def _toolchain(
    options: BuildOptions, recipe: Recipe, environment: Environment, environ: Mapping[str, str]
) -> Toolchain:
    if recipe.toolchain == "ndk":
        return toolchain.ndk(environment.root(ANDROID_NDK).path)
    if recipe.toolchain == "cross":
        return toolchain.cross(recipe, environ, options.compiler, options.sysroot, options.toolchain_file)
    return toolchain.host(environ)
