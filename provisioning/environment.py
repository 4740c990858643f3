"""The environment of one target: which trees are used, and the variables that name them.

`resolve` finds each component: the user's own first, then the store. It looks at which directories exist, and
else reads nothing of this machine: everything comes in as a selection and a mapping. The flags that select
the same for `provision`, which fixes print, are here, too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from provisioning import licences
from provisioning.base.commands import Command, Fix, session
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import (
    ANDROID,
    DEFAULT_PROFILE,
    DEFAULT_TARGET,
    OFFICIAL_PROFILE,
    Selection,
    profile_flags,
    store_path,
    user_path,
)
from provisioning.components import COMPONENT_VARIABLES, EXECUTORCH_SOURCE, KINDS, QNN_SDK, ComponentName
from provisioning.dist import OVERLAY, runner_of
from provisioning.executorch import PROFILES_WHEEL, Executorch, choose, is_same_folder
from provisioning.own_installation import adopt
from provisioning.stage_variables import Note, Root, stage_variables

if TYPE_CHECKING:
    from provisioning.manifest import Component, Profile
    from provisioning.store.trees import Tree, Trees


_OFFICIAL = f"--profile {OFFICIAL_PROFILE}"


RUNNER = "QNN_EXECUTOR_RUNNER"


@dataclass(frozen=True, slots=True)
class Environment:
    profile: str
    target: str
    soc: str
    roots: dict[str, Root]
    variables: dict[str, str]
    """The variables that must be set; PATH-like values are whole, with what the user had already."""
    path_entries: tuple[str, ...]
    """The entries of `variables["PATH"]` before the user's own."""
    notes: tuple[Note, ...]
    """What was corrected or left out."""
    provision_flags: tuple[str, ...]
    """The flags of `provision` for the same selection."""
    executorch: Executorch = PROFILES_WHEEL
    """What stages run; `current` says whether it is what a variable names."""

    def merged(self, environ: Mapping[str, str]) -> dict[str, str]:
        return {**environ, **self.variables}

    def for_shell(self, environ: Mapping[str, str], dist: Path) -> Environment:
        """Adapt it to the user's own shell: it names the runner that was built for the target, and says which
        executorch Python finds if that is not the profile's wheel."""
        executorch, notes, variables = self.executorch, [*self.notes], {**self.variables}
        if executorch.refused:
            notes.append(Note(f"{executorch.refused}; stages end with that: {executorch.fix}"))
        elif executorch.build:
            notes.append(Note(f"Python's executorch was built of {executorch.build}"))
        program = runner_of(dist / self.target)
        if self.target == DEFAULT_TARGET:
            program = executorch.runner(dist / self.target)
        if program is not None and program.is_file():
            variables.update({} if environ.get(RUNNER) else {RUNNER: str(program)})
        elif not environ.get(RUNNER):
            is_of_host = self.target == DEFAULT_TARGET
            command = executorch.runner_command if is_of_host else session("build_runner")
            notes.append(Note(f"to run programs of {self.target} in this shell, first type {command}"))
        return replace(self, variables=variables, notes=tuple(notes))

    def explain(self, *, builds: bool = False) -> None:
        """Print on stderr which trees are the user's own, and what was corrected. Only a stage that `builds`
        takes the tree of ExecuTorch as it is."""
        for component, root in self.roots.items():
            if root.origin == "directory" and (builds or component != EXECUTORCH_SOURCE):
                sys.stderr.write(f"using your own {component}: {root.variable}={root.path}\n")
        for note in self.notes:
            sys.stderr.write(f"note: {note}\n")

    def root(self, component: str) -> Root:
        """The component's root; without one, an error that names the command which provisions it."""
        if component in self.roots:
            return self.roots[component]
        raise EnvironmentLacking(
            f"{component} is neither in the store nor named by {COMPONENT_VARIABLES[component]}",
            fix=session("provision", *self.provision_flags, "--component", component),
        )


def _is_needed_by_target(component: str, profile: Profile, selection: Selection) -> bool:
    is_of_profile = component in profile.pins and component not in profile.optional
    return selection.target in KINDS[component].needed_by and (component == QNN_SDK or is_of_profile)


def resolve(
    selection: Selection,
    environ: Mapping[str, str],
    *,
    trees: Trees | None = None,
    needs: Sequence[str] | None = None,
    overlay: Path = OVERLAY,
    refuses_changed: bool = True,
) -> Environment:
    """Find every component of the selection: the user's own first, then the store.

    `needs`: the components that the caller cannot do without, if they are not the target's own. One error
    names all that are missing. A tree of the store with other files than its inventory lists is refused,
    unless the caller reports that itself."""
    from provisioning.manifest import load_profile

    profile = load_profile(selection.profile)
    if trees is None:
        from provisioning.store import Store

        trees = Store(selection.store)
    flags = provision_flags(selection, environ)
    notes: list[Note] = []
    roots: dict[str, Root] = {}
    pins = profile.pins
    gaps: list[str] = []
    for component in COMPONENT_VARIABLES:
        pin = pins.get(component)
        is_needed = (
            _is_needed_by_target(component, profile, selection) if needs is None else component in needs
        )
        root = _users_root(component, is_needed, not refuses_changed, selection, environ, notes)
        if root is None:
            tree = _find_tree(component, pin, selection, trees) if pin is not None else None
            stored = _root_of(component, tree) if tree is not None else None
            root = _named_or_stored(component, stored, selection, environ, notes)
            if tree is not None and root == stored and refuses_changed:
                _require_listed(tree, trees)
        if root is not None:
            roots[component] = root
        elif is_needed:
            gaps.append(component)
    if gaps:
        raise _lacking(gaps, profile, selection, environ, notes)
    executorch = executorch_of(selection, environ, trees=trees, overlay=overlay)
    variables, path_entries = stage_variables(selection, roots, environ, notes, executorch)
    return Environment(
        profile=profile.name,
        target=selection.target,
        soc=selection.soc,
        roots=roots,
        variables=variables,
        path_entries=path_entries,
        notes=tuple(notes),
        provision_flags=tuple(flags),
        executorch=executorch,
    )


def executorch_of(
    selection: Selection, environ: Mapping[str, str], *, trees: Trees | None = None, overlay: Path = OVERLAY
) -> Executorch:
    """The executorch that stages run with this selection."""
    from provisioning.manifest import load_profile

    if trees is None:
        from provisioning.store import Store

        trees = Store(selection.store)
    pin, tree = load_profile(selection.profile).pins.get(EXECUTORCH_SOURCE), None
    if pin is not None:
        found = _find_tree(EXECUTORCH_SOURCE, pin, selection, trees)
        tree = _root_of(EXECUTORCH_SOURCE, found) if found is not None else None
    stored = _named_or_stored(EXECUTORCH_SOURCE, tree, selection, environ, [])
    named = users_own(EXECUTORCH_SOURCE, selection.store, environ, [])
    return choose(selection, environ, named, stored.path if stored else None, overlay=overlay)


def _lacking(
    gaps: Sequence[str],
    profile: Profile,
    selection: Selection,
    environ: Mapping[str, str],
    notes: Sequence[Note],
) -> EnvironmentLacking:
    pins = profile.pins
    labels = [f"{name} {pins[name].version}" if name in pins else name for name in gaps]
    message = (
        f"{_series(labels)} for {selection.target} {'is' if len(gaps) == 1 else 'are'} neither in the "
        f"store ({selection.store}) nor named by {_series([COMPONENT_VARIABLES[name] for name in gaps])}"
        + "".join(f"; {note}" for note in notes)
    )
    components = [word for name in gaps for word in ("--component", name)]
    absent = [name for name in gaps if name not in pins]
    why = profile.why_lacking(selection.target) if QNN_SDK in gaps else ""
    if absent:
        why = f"the profile {profile.name} has no {' and no '.join(absent)}"
    if why and profile.name != OFFICIAL_PROFILE:
        flags = provision_flags(replace(selection, profile=OFFICIAL_PROFILE), environ)
        fix = Fix("{}, and {} here as well", session("provision", *flags, *components), _OFFICIAL)
        return EnvironmentLacking(f"{message}; {why}", fix=fix)
    flags = provision_flags(selection, environ)
    if any(name in profile.optional for name in gaps):
        flags += components
    return EnvironmentLacking(message, fix=session("provision", *flags))


def require_somewhere(
    needs: Sequence[ComponentName], selection: Selection, environ: Mapping[str, str]
) -> None:
    """Refuse what a build from source needs and neither a variable names nor the store has.
    This needs no package; `resolve` judges what is there."""
    gaps = []
    for component in needs:
        if own := users_own(component, selection.store, environ, []):
            adopt(component, own[1], own[0])
        elif not any(selection.store.glob(f"trees/{component}-*/{_BUILD_READS.get(component, '')}")):
            gaps.append(component)
    if not gaps:
        return
    profile = OFFICIAL_PROFILE if selection.profile == DEFAULT_PROFILE else selection.profile
    targets = tuple(dict.fromkeys((DEFAULT_TARGET, selection.target)))
    flags = selecting_flags(replace(selection, profile=profile, named_targets=targets), environ)
    components = [word for component in gaps for word in ("--component", component)]
    command = session("provision", *flags, *components)
    raise EnvironmentLacking(
        f"{_series(gaps)} for {selection.target} {'is' if len(gaps) == 1 else 'are'} neither in the store "
        f"({selection.store}) nor named by {_series([COMPONENT_VARIABLES[gap] for gap in gaps])}",
        fix=command if profile == selection.profile else Fix("{}, and {} here as well", command, _OFFICIAL),
    )


_BUILD_READS = {QNN_SDK: "include/QNN/QnnInterface.h"}
"""A file that builds read and that some trees of the component lack: QNN's wheels have no headers."""


def _series(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def why_no_phone(selection: Selection, environ: Mapping[str, str]) -> str:
    """Say why this QNN has no libraries for Android; empty if it has, or if the user names none that
    exists."""
    from provisioning.manifest import load_profile

    if own := users_own(QNN_SDK, selection.store, environ, []):
        sdk = user_path(own[1], own[0])
        return "" if (sdk / "lib" / ANDROID).is_dir() or not sdk.is_dir() else f"{sdk} has no lib/{ANDROID}"
    return load_profile(selection.profile).why_lacking(ANDROID)


def provision_flags(selection: Selection, environ: Mapping[str, str]) -> list[str]:
    """The shortest flags that select the same for `provision`."""
    targets = () if selection.target == DEFAULT_TARGET else (DEFAULT_TARGET, selection.target)
    choice = replace(selection, named_targets=targets)
    return [*selecting_flags(choice, environ), *_consents(choice)]


def consenting(fix: str, selection: Selection) -> str:
    """The fix with the flags without which its `provision` would refuse."""
    if not isinstance(fix, Fix):
        return fix

    def accept_licence(command: Command) -> Command:
        if command[0] != "provision" or licences.FLAG in command:
            return command
        components = [word for flag, word in pairwise(command) if flag == "--component"]
        return (*command, *_consents(selection, components))

    return fix.map_commands(accept_licence)


def _consents(selection: Selection, only: Collection[str] = ()) -> list[str]:
    """The flags without which `provision` refuses what this selection lacks: licences, bytes on trust.
    `only`: of these components, where any are named."""
    from provisioning.manifest import load_profile
    from provisioning.store.trees import Trees

    profile, store = load_profile(selection.profile), Trees(selection.store)
    absent = [
        pin
        for name, pin in profile.pins.items()
        if (pin.licence is not None or not pin.pinned)
        and name not in profile.optional
        and (name in only if only else serves(name, selection.named_targets))
        and store.find_any(name, pin) is None
    ]
    return licences.flags(selection.store, absent)


def serves(component: str, targets: Collection[str]) -> bool:
    """Whether one of the targets needs it; none stands for all. One that names no target is for all."""
    users = KINDS[component].needed_by
    return not targets or not users or bool(set(targets).intersection(users))


def selecting_flags(selection: Selection, environ: Mapping[str, str]) -> list[str]:
    """The shortest flags that name the same profile, targets, chips and store."""
    flags = profile_flags(selection.profile, environ)
    for target in selection.named_targets:
        flags += ["--target", target]
    for soc in selection.named_socs:
        flags += ["--soc", soc]
    if selection.store != store_path(None, environ):
        flags += ["--store", str(selection.store)]
    return flags


def users_own(
    component: str, store: Path, environ: Mapping[str, str], notes: list[Note]
) -> tuple[str, str] | None:
    """The variable by which the user names a component of their own, and its value; `notes` gets the rest.

    A tree of the store is not the user's own.
    """
    variable = COMPONENT_VARIABLES[component]
    names = (variable, *KINDS[component].aliases)
    values = {name: environ[name] for name in names if name in environ}
    for name in [name for name, value in values.items() if not value]:
        notes.append(Note(f"{name} is set but empty, and taken as not set", name))
        del values[name]
    values = {name: value for name, value in values.items() if not _is_in_store(value, name, store)}
    if not values:
        return None
    name, value = next(iter(values.items()))
    for alias, other_value in values.items():
        if not is_same_folder(other_value, value):
            notes.append(
                Note(f"{alias}={other_value} contradicts {name}={value}, which is the one used", alias)
            )
    return name, value


def _is_in_store(value: str, variable: str, store: Path) -> bool:
    return Path(os.path.realpath(user_path(value, variable))).is_relative_to(os.path.realpath(store))


def _users_root(
    component: str,
    is_needed: bool,
    checks_all: bool,
    selection: Selection,
    environ: Mapping[str, str],
    notes: list[Note],
) -> Root | None:
    """What the user's variable names. It is compared with its first use if it is needed, or if the caller
    checks all."""
    from provisioning.store.own_trees import change_since_first_use

    own = users_own(component, selection.store, environ, notes)
    if own is None:
        return None
    variable, value = own
    try:
        adopted = adopt(component, value, variable)
    except EnvironmentLacking as error:
        if is_needed:
            error.fix = consenting(error.fix, selection)
            raise
        # Of what this target never takes it is no mistake.
        serves_target = selection.target in KINDS[component].needed_by
        text = f"{error.message}, so {component} is left out"
        notes.append(Note(text, variable if serves_target else ""))
        return None
    change = None
    if is_needed or checks_all:
        change = change_since_first_use(selection.store, component, adopted.path, adopted.version)
        if change:
            command = session("store", "adopt", adopted.path)
            notes.append(Note(f"{variable}={value} {change}; if that is right, type {command}"))
    # Not resolved: users may tell versions apart by the names of links.
    path = user_path(value, variable).absolute()
    return Root(path, "directory", variable, change=str(change or ""))


def _named_or_stored(
    component: str, tree: Root | None, selection: Selection, environ: Mapping[str, str], notes: list[Note]
) -> Root | None:
    """The profile's tree, or the other tree of the store that the user's variable names.

    `env` and `shell` set the variable together with QNN_CI_PROFILE. Then it is no choice of the user's, and
    another profile needs another tree.
    """
    variable = COMPONENT_VARIABLES[component]
    value = environ.get(variable)
    if not value or not _is_in_store(value, variable, selection.store):
        return tree
    if tree is not None and is_same_folder(value, str(tree.path)):
        return tree
    if profile := environ.get("QNN_CI_PROFILE"):
        use = f"uses {tree.path}" if tree else "has none"
        text = f"{variable}={value}, a tree of the store that was set for profile {profile}, is ignored;"
        notes.append(Note(f"{text} profile {selection.profile} {use}"))
        return tree
    return Root(adopt(component, value, variable).path, "directory", variable)


def _find_tree(component: str, pin: Component, selection: Selection, trees: Trees) -> Tree | None:
    # Every target needs the host's part to lower models. A tree without it is enough for building.
    for targets in ({DEFAULT_TARGET, selection.target}, {selection.target}):
        tree = trees.find(component, pin, targets)
        if tree is not None:
            return tree
    return None


def _root_of(component: str, tree: Tree) -> Root:
    variable = COMPONENT_VARIABLES[component]
    return Root(tree.root / KINDS[component].inside, "store", variable, tree.version)


def _require_listed(tree: Tree, trees: Trees) -> None:
    """Loaders take whatever lies in a folder, so a tree may hold only what its inventory lists."""
    wrong = trees.differing_names(tree)
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise EnvironmentLacking(
            f"{tree.root}: {wrong[0]}{more}",
            fix=Fix("restore it: {}", ("store", "repair", *_other_store(trees.path))),
        )


def _other_store(path: Path) -> tuple[str, ...]:
    return () if path == store_path(None, os.environ) else ("--store", str(path))
