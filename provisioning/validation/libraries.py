"""Rules about which libraries an SDK must hold, and that they are of one build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from provisioning import qnn_libraries
from provisioning.base.commands import Fix, session
from provisioning.base.findings import Severity
from provisioning.base.settings import WINDOWS, profile_names
from provisioning.components import QNN_SDK
from provisioning.elf import version_key
from provisioning.manifest import Profile, Soc, load_profile, load_socs
from provisioning.pe import ARM64, Pe
from provisioning.qnn_libraries import Library, TargetLibraries
from provisioning.validation import NotApplicable, Problem, rule
from provisioning.validation.context import ComponentTree, Context
from provisioning.validation.versions import build_of, holders_of_build_ids, of_another_build, tree_of


def _directory(context: Context, wanted: TargetLibraries) -> str | None:
    """The first of the target's directories that the SDK has."""
    return next((name for name in wanted.directories if context.in_directory(name)), None)


def _target_tables(context: Context) -> Mapping[str, TargetLibraries]:
    table: Mapping[str, TargetLibraries] = {str(k): v for k, v in qnn_libraries.table().targets.items()}
    return {target: table[target] for target in context.targets if target in table}


def _provision(context: Context, tree: ComponentTree, *flags: str) -> str:
    """The command that brings a library; it does not touch the user's own SDK, which therefore makes way."""
    command = session("provision", *flags)
    return Fix("unset {}; {}", tree.variable, command) if tree.origin == "directory" else command


@rule("required-libraries")
def required_libraries(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    for target, wanted in _target_tables(context).items():
        directory = _directory(context, wanted)
        fix = _provision(context, tree, "--target", target)
        if directory is None:
            if any(context.unreadable(f"lib/{name}") for name in wanted.directories):
                continue
            why = context.profile.why_lacking(target)
            if why:
                choices = " or ".join(n for n in profile_names() if _official(load_profile(n)))
                fix = f"use an official SDK, which has all targets: --profile {choices}"
            message = f"has no lib/{' or lib/'.join(wanted.directories)}, which {target} needs"
            # Of all targets it is the profile's choice to lack one, of a named one the user's mistake.
            severity = Severity.NOTE if why and context.every_target else None
            yield Problem(tree.named, f"{message}: {why}" if why else message, fix, severity)
            continue
        held = context.in_directory(directory)
        for names in wanted.libraries:
            if not any(name in held or context.unreadable(f"lib/{directory}/{name}") for name in names):
                yield Problem(f"lib/{directory}", f"lacks {' or '.join(names)}, which {target} needs", fix)


@rule("soc-libraries")
def soc_libraries(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    devices = {target: wanted for target, wanted in _target_tables(context).items() if wanted.skels}
    if not devices:
        raise NotApplicable("only device targets need stubs and skels")
    places = {library.place for library in context.libraries}
    for target, wanted in devices.items():
        directory, chips = _directory(context, wanted), context.socs_of(target)
        if not chips and not context.every_target:
            windows = sorted(name for name, soc in load_socs().items() if soc.windows)
            yield Problem(
                ", ".join(context.socs),
                f"Windows does not run on it: {target} needs a chip of Windows on Snapdragon",
                f"--soc with one of {', '.join(windows)}",
            )
        for name, soc in chips.items():
            # required-libraries reports a missing directory.
            needed = [f"lib/{directory}/{library}" for library in wanted.soc_libraries if directory]
            needed += [f"lib/{skel}" for skel in wanted.skels]
            for template in needed:
                place = template.format(arch=soc.arch)
                if place not in places and not context.unreadable(place):
                    yield Problem(
                        place,
                        f"is not there, {name} (v{soc.arch}) needs it on {target}",
                        _provision(context, tree, "--target", target, "--soc", name),
                    )


@rule("lpai-libraries")
def lpai_libraries(context: Context) -> Iterator[Problem]:
    tree_of(context, QNN_SDK)
    devices = {
        # LPAI's libraries were seen for Android and Linux only.
        target: wanted
        for target, wanted in _target_tables(context).items()
        if wanted.skels and target != WINDOWS
    }
    socs = {name: soc for name, soc in context.socs.items() if soc.lpai is not None}
    if not devices or not socs:
        raise NotApplicable("no chosen chip has an LPAI, or no device target is chosen")
    if not any(_carries_lpai(context, soc) for soc in socs.values()):
        raise NotApplicable(f"the QNN of profile {context.profile.name} carries no LPAI")
    places = {library.place for library in context.libraries}
    for target, wanted in devices.items():
        directory = _directory(context, wanted) or wanted.directories[0]
        for name, soc in socs.items():
            if not _carries_lpai(context, soc):
                continue
            lpai = qnn_libraries.table().lpai[str(soc.lpai)]
            for place in (
                *(f"lib/{directory}/{library}" for library in lpai.libraries),
                *(f"lib/{skel}" for skel in lpai.skels),
            ):
                if place not in places and not context.unreadable(place):
                    yield Problem(place, f"is not there, the LPAI v{soc.lpai} of {name} needs it on {target}")


def _carries_lpai(context: Context, soc: Soc) -> bool:
    lpai = qnn_libraries.table().lpai.get(str(soc.lpai))
    if lpai is None:
        return False
    if any(library.directory.startswith("lpai-v") for library in context.libraries):
        return True
    pin = context.profile.components[QNN_SDK]
    return _official(context.profile) and version_key(pin.version) >= version_key(lpai.since)


def profiles_with_lpai(lpai: int | None) -> list[str]:
    """The official profiles whose QNN carries the libraries of this LPAI version."""
    table = qnn_libraries.table().lpai.get(str(lpai))
    if table is None:
        return []
    profiles = [load_profile(name) for name in profile_names()]
    return [
        profile.name
        for profile in profiles
        if QNN_SDK in profile.components
        and _official(profile)
        and version_key(profile.components[QNN_SDK].version) >= version_key(table.since)
    ]


def _official(profile: Profile) -> bool:
    return all(part.source.type == "archive" for part in profile.components[QNN_SDK].parts)


@rule("one-build-id")
def one_build_id(context: Context) -> Iterator[Problem]:
    holders = holders_of_build_ids(context)
    common = build_of(holders)
    number = sum(common in library.build_ids for library in holders)
    for place, others in of_another_build(context, common).items():
        message = f"is of build {', '.join(others)}, {number} other libraries are of {common}"
        yield Problem(place, message, also=others)


def _libraries(context: Context) -> list[tuple[Library, Pe]]:
    libraries = [(library, library.pe) for library in context.libraries if library.pe is not None]
    if not libraries:
        raise NotApplicable("there is no Windows library")
    return libraries


@rule("pe-machine")
def pe_machine(context: Context) -> Iterator[Problem]:
    for library, pe in _libraries(context):
        if pe.machine != ARM64:
            yield Problem(library.place, f"expected Arm64, found {pe.machine_name}")


@rule("pe-version")
def pe_version(context: Context) -> Iterator[Problem]:
    for library, pe in _libraries(context):
        for build in library.build_ids:
            stated = pe.version.split(".")[:3]
            if pe.version and stated != build.removeprefix("v").split(".")[:3]:
                yield Problem(
                    library.place, f"its version resource says {pe.version}, its build id is {build}"
                )
