"""Rules about the user's own variables. Our stages correct most of it; other programs do not."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from provisioning import qnn_libraries
from provisioning.base.commands import Fix, quoted
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.findings import Severity
from provisioning.components import ANDROID_NDK, COMPONENT_VARIABLES, KINDS, QNN_SDK, adopt
from provisioning.environment import HOST_LIBRARIES
from provisioning.validation import NotApplicable, Problem, rule
from provisioning.validation.context import Context, same_path

_ADAPTOR = "backends/qualcomm/python/PyQnn*.so"
_ENV = Fix('eval "$({})"', ("env",))


def _library_path(context: Context) -> list[str]:
    value = context.environ.get("LD_LIBRARY_PATH")
    if not value:
        raise NotApplicable("LD_LIBRARY_PATH is not set")
    return re.split("[:;]", value)


def _sdk_directory(entry: str) -> str | None:
    """The name of the SDK's directory under lib/ that an entry is in: `hexagon-v75`."""
    for part, following in zip(Path(entry).parts, Path(entry).parts[1:], strict=False):
        if part == "lib" and qnn_libraries.table().directory(following) is not None:
            return following
    return None


@rule("library-path-mixed")
def library_path_mixed(context: Context) -> Iterator[Problem]:
    for entry in _library_path(context):
        directory = _sdk_directory(entry)
        described = qnn_libraries.table().directory(directory) if directory else None
        if described is not None and described[0].system != "host":
            yield Problem(
                "LD_LIBRARY_PATH",
                f"{entry} holds libraries of {described[0].system}, not of this host",
            )


@rule("library-path-order")
def library_path_order(context: Context) -> Iterator[Problem]:
    if QNN_SDK not in context.trees:
        raise NotApplicable("this selection uses no qnn-sdk")
    ours = context.trees[QNN_SDK].path / "lib" / HOST_LIBRARIES
    first = None
    for entry in _library_path(context):
        if same_path(entry or ".", ours):
            if first is not None:
                yield Problem("LD_LIBRARY_PATH", f"{first} comes before {ours}, and both hold libQnnHtp.so")
            return
        if first is None and Path(entry or ".", "libQnnHtp.so").exists() and _is_host(entry):
            first = entry
    if first is not None:
        yield Problem(
            "LD_LIBRARY_PATH", f"{first} holds a libQnnHtp.so, and the chosen SDK's {ours} is not among them"
        )


def _is_host(entry: str) -> bool:
    directory = _sdk_directory(entry)
    described = qnn_libraries.table().directory(directory) if directory else None
    return described is None or described[0].system == "host"


@rule("library-path-missing")
def library_path_missing(context: Context) -> Iterator[Problem]:
    entries = _library_path(context)
    kept = ":".join(entry for entry in entries if not _unusable(entry))
    fix = f"leave it out: {quoted('export', f'LD_LIBRARY_PATH={kept}') if kept else 'unset LD_LIBRARY_PATH'}"
    for entry in entries:
        if why := _unusable(entry):
            yield Problem("LD_LIBRARY_PATH", why, fix)


def _unusable(entry: str) -> str:
    path = Path(entry)
    if not entry:
        return "has an empty entry, which means the current directory"
    if "$" in entry:
        return ""  # The loader replaces $ORIGIN and similar names for each program.
    if not path.exists():
        return f"{entry} is not there"
    if not path.is_dir():
        return f"{entry} is not a directory"
    return "" if os.access(path, os.R_OK | os.X_OK) else f"{entry} cannot be read by this user"


@rule("adsp-library-path")
def adsp_library_path(context: Context) -> Iterator[Problem]:
    value = context.environ.get("ADSP_LIBRARY_PATH")
    if not value:
        raise NotApplicable("ADSP_LIBRARY_PATH is not set")
    # The colon of a drive, as in C:\skels, separates nothing.
    if ":" in re.sub(r"(?:^|(?<=;))[A-Za-z]:(?=[\\/])", "", value):
        yield Problem("ADSP_LIBRARY_PATH", f"{value} is separated by `:`, FastRPC splits at `;`")


def hiding_packages(context: Context) -> dict[str, list[str]]:
    """The pinned packages which each folder of PYTHONPATH hides. An adaptor shows a build on purpose."""
    hidden: dict[str, list[str]] = {}
    for entry in filter(None, context.environ.get("PYTHONPATH", "").split(os.pathsep)):
        folders = {name: Path(entry, name) for name in context.profile.packages}
        names = [
            name
            for name, folder in folders.items()
            if folder.is_dir()
            and not any(folder.glob(_ADAPTOR))
            and not any(folder.parent.glob(f"{name}[-.]*info"))
        ]
        if names:
            hidden[entry] = names
    return hidden


@rule("python-path")
def python_path(context: Context) -> Iterator[Problem]:
    if not context.environ.get("PYTHONPATH"):
        raise NotApplicable("PYTHONPATH is not set")
    entries = context.environ["PYTHONPATH"].split(os.pathsep)
    hidden = hiding_packages(context)
    kept = ":".join(entry for entry in entries if entry not in hidden)
    fix = quoted("export", f"PYTHONPATH={kept}") if kept else "unset PYTHONPATH"
    for entry, names in hidden.items():
        yield Problem(
            "PYTHONPATH",
            f"{entry} holds a folder {' and a folder '.join(names)}, which Python imports instead of the"
            " installed package",
            f"leave the folder out: {fix}",
        )


@rule("sdk-root")
def sdk_root(context: Context) -> Iterator[Problem]:
    for component, variable in COMPONENT_VARIABLES.items():
        value = context.environ.get(variable)
        if value == "":
            fix = f"unset {variable}, or set it to the SDK's directory"
            yield Problem(variable, "is set but empty, which executorch takes as set", fix)
        elif value and component not in context.trees and _is_for(component, context):
            try:
                adopt(component, value, variable)
            except EnvironmentLacking as error:
                yield Problem(variable, error.message.removeprefix(f"{variable}="), error.fix)


def _is_for(component: str, context: Context) -> bool:
    return bool(set(KINDS[component].needed_by).intersection(context.targets))


@rule("variables-contradict")
def variables_contradict(context: Context) -> Iterator[Problem]:
    for variable, aliases in (
        ("ANDROID_NDK_ROOT", KINDS[ANDROID_NDK].aliases),
        ("QNN_SDK_ROOT", ("QAIRT_SDK_ROOT",)),
    ):
        value = context.environ.get(variable)
        for alias in aliases:
            other = context.environ.get(alias)
            if value and other and not same_path(value, other):
                fix = f"unset {alias}, or set it to the same directory"
                yield Problem(alias, f"is {other}, {variable} is {value}", fix)
    sdk = context.trees.get(QNN_SDK)
    for entry in re.split("[: ]", context.environ.get("LD_PRELOAD", "")):
        if Path(entry).name.startswith("libQnn") and sdk:
            ours = sdk.path / "lib" / HOST_LIBRARIES
            if not same_path(Path(entry).parent, ours):
                fix = "unset LD_PRELOAD"
                yield Problem("LD_PRELOAD", f"{entry} is loaded instead of the one of {ours}", fix)
    profile = context.environ.get("QNN_CI_PROFILE")
    if profile and profile != context.profile.name:
        yield Problem(
            "QNN_CI_PROFILE",
            f"is {profile}, and --profile {context.profile.name} was chosen",
            "unset QNN_CI_PROFILE, or leave --profile out",
            Severity.WARNING,
        )
    for component, tree in context.trees.items():
        variable = COMPONENT_VARIABLES.get(component, "")
        value = context.environ.get(variable)
        if value and tree.origin == "store" and not same_path(value, tree.path):
            yield Problem(
                variable,
                f"is {value}, and profile {context.profile.name} uses {tree.path}",
                Fix("unset {}, or renew the environment: {}", variable, _ENV),
                Severity.WARNING,
            )
