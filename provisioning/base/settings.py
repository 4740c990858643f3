"""The toolkit's places, its defaults for what the user does not name, and what this project is called."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from provisioning.base.errors import UnknownName, UsageError

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "manifests"
CLONE = (ROOT / "noxfile.py").is_file()
"""Whether this is a clone. In an installed copy build/, dist/ and Python environments are in the user's
cache."""

TARGETS = ("x86_64-linux", "aarch64-android", "aarch64-linux", "aarch64-windows")
ANDROID = "aarch64-android"
WINDOWS = "aarch64-windows"
DEFAULT_PROFILE = "wheels"
OFFICIAL_PROFILE = "qnn-2.37"
"""This profile has what the package index cannot give: Android's libraries, for example."""
DEFAULT_TARGET = "x86_64-linux"
DEFAULT_SOC = "SM8650"


WHEEL = "wheel"
"""`--executorch wheel` takes the profile's wheel, whichever tree a variable names."""
BUILDS_TREE = "QNN_CI_BUILDS_TREE"
"""The noxfile sets this variable after a build for a device: what then runs here is built of the same tree
first."""
ALL = "all"
"""`--target all` names every target."""


@dataclass(frozen=True, slots=True)
class Selection:
    profile: str
    target: str
    soc: str
    store: Path
    reports: Path
    named_socs: tuple[str, ...] = ()
    """The chips that the user named; empty when none was, and a stage then takes its own default."""
    named_targets: tuple[str, ...] = ()
    """The targets that the user named; empty when none was, and a stage then takes its own default."""
    executorch: str = ""
    """WHEEL where the user says so; empty for the tree that a variable names, else the wheel."""

    @property
    def socs(self) -> tuple[str, ...]:
        """The chips that were named, else the default; there is at least one."""
        return self.named_socs or (self.soc,)

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets that were named, else the default; there is at least one."""
        return self.named_targets or (self.target,)


def profile_flags(profile: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The flags that name this profile, where a command without them would take another."""
    profiles = {profile, environ.get("QNN_CI_PROFILE") or profile}
    return [] if profiles == {DEFAULT_PROFILE} else ["--profile", profile]


def selection_flags(selection: Selection, soc: str, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The flags with which a command selects the same for this chip. Store and reports decide no result."""
    executorch = ["--executorch", selection.executorch] if selection.executorch else []
    return ["--soc", soc, *profile_flags(selection.profile, environ), *executorch]


ADDRESS = re.compile(r"(?i)[a-z]\w+://")
"""Matches the beginning of what a browser or curl takes."""


def refuse_address(text: str, name: str = "") -> None:
    """Refuse the address of a file: nothing of ours downloads what a user names."""
    if ADDRESS.match(text):
        raise UsageError(
            f"{name} {text}: expected a path on this machine, found an address".lstrip(),
            fix=f"download it first: {shlex.join(['curl', '-LO', text])}",
        )


def user_path(text: str | Path, name: str, base: str = "") -> Path:
    """A path as the user wrote it, `~` expanded; a relative one begins in `base`. `name` is for errors."""
    if not str(text):
        raise UsageError(f"{name}: expected a path, found nothing", fix=f"leave {name} out, or set it")
    refuse_address(str(text), name)
    try:
        return Path(base, Path(text).expanduser())
    except RuntimeError:
        raise UsageError(
            f"{name} {text}: there is no home directory of that user", fix="write the path in full"
        ) from None


def outputs_path() -> Path:
    """The folder of build/ and dist/."""
    if CLONE:
        return ROOT
    return cache_folder().absolute() / "installed" / root_digest()


def dist_path() -> Path:
    """Return the folder of what stages make for later stages: builds, overlays, signed libraries, bundles,
    images."""
    return outputs_path() / "dist"


def cache_folder() -> Path:
    return user_path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "XDG_CACHE_HOME") / "qnn-ci"


def root_digest() -> str:
    """Identify this copy's folder: two versions that are installed side by side differ in it."""
    import hashlib

    return hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]


def store_path(flag: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    if flag is not None or environ.get("QNN_CI_STORE"):
        name = "QNN_CI_STORE" if flag is None else "--store"
        return user_path(environ["QNN_CI_STORE"] if flag is None else flag, name).absolute()
    return cache_folder().absolute() / "store"


def reports_path(flag: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    return user_path(flag or environ.get("QNN_CI_REPORTS") or "reports", "QNN_CI_REPORTS")


def profile_names() -> list[str]:
    return sorted(path.stem for path in (MANIFESTS / "profiles").glob("*.toml"))


def unknown_profile(name: str) -> UnknownName:
    """Return the error for a profile that is not there. Whoever typed no flag looks for the name in vain."""
    by_variable = ", which QNN_CI_PROFILE names" if os.environ.get("QNN_CI_PROFILE") == name else ""
    return UnknownName(f"there is no profile {name!r}{by_variable}", name, profile_names())


PLACEHOLDER = "OWNER/qnn-ci"
"""This stands for the repository's name until somebody sets an address."""


@dataclass(frozen=True, slots=True)
class Project:
    version: str
    repository: str
    """The repository's address, `[project.urls]` of pyproject.toml; empty if it has none."""
    commit: str = ""
    """The commit that an installed copy was installed from, if it came from a repository."""

    @property
    def name(self) -> str:
        """OWNER/NAME, as workflows spell it."""
        return "/".join(self.repository.split("/")[-2:]) or PLACEHOLDER


def project(root: Path = ROOT) -> Project:
    """Read the project's metadata: from pyproject.toml in a clone, from the installed distribution
    elsewhere."""
    file = root / "pyproject.toml"
    if file.is_file():
        # Late: a bare Python 3.10, which runs the noxfile, has no reader of TOML.
        from provisioning.base import toml

        own = toml.loads(file.read_text(encoding="utf-8"))["project"]
        return Project(str(own["version"]), str(own.get("urls", {}).get("Repository", "")))
    # Imported late: each start of the command would pay for it.
    import json
    from importlib import metadata

    # Of the Python that this command was installed into, in which verbs do not run.
    for copy in metadata.distributions(name="qnn-ci", path=[str(root.parent)]):
        urls = dict(line.split(", ", 1) for line in copy.metadata.get_all("Project-URL") or ())
        origin = json.loads(copy.read_text("direct_url.json") or "{}")
        commit = origin.get("vcs_info", {}).get("commit_id", "")
        address = str(origin.get("url", "")).removesuffix(".git")
        if not commit or not address.startswith("https://"):
            address = urls.get("Repository", "")
        return Project(copy.version, address, commit)
    return Project("unknown", "")
