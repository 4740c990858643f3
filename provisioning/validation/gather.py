"""Collects what rules look at. Everything that touches the machine is here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from provisioning import loader_search as loader
from provisioning.base.settings import DEFAULT_TARGET, Selection
from provisioning.compat import load_measured
from provisioning.component_facts import METADATA, identity_of
from provisioning.environment import HOST_LIBRARIES, resolve
from provisioning.manifest import load_profile, soc_named
from provisioning.validation.context import Context, Host, Library, Need, Tool, Tree
from provisioning.validation.probe import Answer, ask
from provisioning.validation.scan import Cache, answer_key, libraries, record_of

_TOOLS = {
    "cmake": ["--version"],
    "gcc": ["-dumpfullversion", "-dumpversion"],
    "clang": ["--version"],
}
_PACKAGED = frozenset({"cmake"})
"""Programs that Python packages of the same name install."""
_NUMBER = re.compile(r"\d+(?:\.\d+)+|\d+")
_SYMBOL_PROVIDERS = ("libc.so.6", "libstdc++.so.6", "libgcc_s.so.1", "libm.so.6")


def gather(
    selection: Selection,
    environ: Mapping[str, str],
    needs: Collection[Need],
    *,
    cache: Cache,
    tree: Path | None = None,
) -> Context:
    """Resolve the environment (or take `tree` as the QNN SDK) and read what the chosen rules need."""
    profile = load_profile(selection.profile)
    targets = selection.targets or (selection.target,)
    socs = {name: soc_named(name) for name in selection.socs or (selection.soc,)}
    trees, variables = _trees(selection, targets, environ, tree)
    asked = socs if Need.COMPILER in needs and tree is None and _lowers(targets, trees) else ()
    with ThreadPoolExecutor(8) as pool:
        # The compiler and the tools are other processes: they run while this one reads libraries.
        answers = {soc: pool.submit(_answer, soc, variables, cache) for soc in asked}
        tools = _TOOLS if Need.TOOLS in needs else ()
        host = pool.submit(_host, variables, profile.packages, tools) if Need.HOST in needs else None
        found: list[Library] = []
        system = loader.SystemLibraries()
        if Need.LIBRARIES in needs:
            if "qnn-sdk" in trees:
                found = libraries(trees["qnn-sdk"].path, cache)
            system = _system_libraries(cache)
        context = Context(
            profile=profile,
            targets=targets,
            socs=socs,
            trees=trees,
            environ=environ,
            variables=variables,
            libraries=tuple(found),
            host=host.result() if host is not None else None,
            system_libraries=system,
            answers={soc: answer.result() for soc, answer in answers.items()},
            measured=load_measured(),
        )
    cache.save()
    return context


def _lowers(targets: tuple[str, ...], trees: Mapping[str, Tree]) -> bool:
    """Whether models are lowered here: not with an SDK that was provisioned for devices alone."""
    return DEFAULT_TARGET in targets or any(
        (tree.path / "lib" / HOST_LIBRARIES).is_dir() for name, tree in trees.items() if name == "qnn-sdk"
    )


def _answer(soc: str, variables: Mapping[str, str], cache: Cache) -> Answer:
    """Ask the compiler, unless it made a device before and nothing that it is made of has changed since."""
    key = answer_key(soc, variables)
    remembered = cache.answer(key) if key else None
    if remembered is not None:
        return remembered
    answer = ask(soc, variables)
    if key and answer.made_device:
        cache.put_answer(key, answer)
    return answer


def _trees(
    selection: Selection, targets: tuple[str, ...], environ: Mapping[str, str], tree: Path | None
) -> tuple[dict[str, Tree], dict[str, str]]:
    if tree is not None:
        directory = str(tree / "lib" / HOST_LIBRARIES)
        return (
            {"qnn-sdk": Tree(tree, "tree", stated=stated_versions("qnn-sdk", tree))},
            {**environ, "QNN_SDK_ROOT": str(tree), "LD_LIBRARY_PATH": directory},
        )
    from dataclasses import replace

    trees: dict[str, Tree] = {}
    variables: dict[str, str] = {}
    for target in reversed(targets):
        environment = resolve(replace(selection, target=target), environ)
        variables = environment.merged(environ)
        for component, root in environment.roots.items():
            stated = stated_versions(component, root.path)
            trees[component] = Tree(root.path, root.origin, root.variable, stated)
    return trees, variables


def stated_versions(component: str, root: Path) -> dict[str, str]:
    """What a component's own files, and the name of its directory, say its version is."""
    stated: dict[str, str] = {}
    with contextlib.suppress(OSError):
        found = identity_of(component, root)
        if found.version:
            stated[METADATA[component]] = found.version
        if found.build_id:
            stated[f"{METADATA[component]} build_id"] = found.build_id
    if component == "android-ndk":
        return stated
    if re.fullmatch(r"v?\d+(?:\.\d+){2,}", root.resolve().name):
        stated["directory"] = root.resolve().name.removeprefix("v")
    return stated


def _system_libraries(cache: Cache) -> loader.SystemLibraries:
    known = loader.read_cache()
    directories = loader.default_directories()
    provides: dict[str, tuple[str, ...]] = {}
    for name in _SYMBOL_PROVIDERS:
        for path in (*known.get(name, ()), *(directory / name for directory in directories)):
            elf = record_of(path, cache).elf if path.is_file() else None
            if elf is not None and elf.machine == "EM_X86_64":
                provides[name] = elf.provides
                break
    return loader.SystemLibraries(known, directories, provides)


def _host(variables: Mapping[str, str], packages: Collection[str], names: Collection[str]) -> Host:
    with ThreadPoolExecutor(len(_TOOLS)) as pool:
        tools = {name: pool.submit(_tool, name, variables) for name in names}
        release = _os_release()
        libc, glibc = platform.libc_ver()
        if hasattr(os, "confstr") and "CS_GNU_LIBC_VERSION" in os.confstr_names:
            libc, _, glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return Host(
            system=platform.system(),
            machine=platform.machine(),
            distribution=f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".strip(),
            python=platform.python_version(),
            glibc=glibc if libc == "glibc" else "",
            tools={name: tool for name, task in tools.items() if (tool := task.result()) is not None},
            packages=_packages(packages),
        )


def _packages(names: Collection[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _os_release() -> dict[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def _tool(name: str, variables: Mapping[str, str]) -> Tool | None:
    """The program that PATH finds. The interpreter's own directory comes first, as in its environment."""
    search = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", os.defpath)])
    path = shutil.which(name, path=search)
    if path is None:
        return None
    if (
        name in _PACKAGED
        and Path(path).parent == Path(sys.executable).parent
        and (known := _packages([name]))
    ):
        # Its metadata says what its wrapper script would start another Python to say.
        return Tool(path, known[name])
    try:
        done = subprocess.run(
            [path, *_TOOLS[name]],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=dict(variables),
        )
    except (OSError, subprocess.TimeoutExpired):
        return Tool(path, "")
    found = _NUMBER.search(done.stdout)
    return Tool(path, found[0] if found else "")
