"""Find the user's Python project and environment, which may have a package that the locked environment
lacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from provisioning.base import toml
from provisioning.base.settings import ROOT

PROJECT = "pyproject.toml"
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""These variables name the user's active environment."""
OF_TORCH = ("torchvision", "torchaudio")
"""The version of these packages follows from torch's."""


def nearest_project(folder: Path) -> Path | None:
    """Return the folder of the nearest pyproject.toml that describes a project; None if that is this
    toolkit's own."""
    for place in (folder, *folder.parents):
        if (place / PROJECT).is_file() and "project" in _document(place):
            return None if place == ROOT else place
    return None


def dependencies_of(project: Path) -> list[str]:
    """Return the dependencies in the project's pyproject.toml; none if they are known only to its build."""
    table = _document(project).get("project", {})
    names = table.get("dependencies", []) if isinstance(table, dict) else []
    return [str(name) for name in names] if isinstance(names, list) else []


def _document(project: Path) -> dict[str, object]:
    file = project / PROJECT
    try:
        return dict(toml.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    except (toml.TOMLDecodeError, UnicodeDecodeError):
        # What builds it says what is wrong.
        return {}


def contradictions(texts: Iterable[str], pins: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each requirement that excludes the locked version of a package, with the locked name and
    version. Requirements of another Python, system or extra do not count."""
    for text in texts:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in pins and not requirement.specifier.contains(pins[name], prereleases=True):
            yield text, name, pins[name]


PACKAGES = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "git": "gitpython",
    "google": "protobuf",
    "hydra": "hydra-core",
    "open_clip": "open-clip-torch",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "whisper": "openai-whisper",
    "yaml": "pyyaml",
}
"""Maps modules to packages of another name. A package of the module's name may be a stranger's."""


def version_at_hand(module: str, project: Path | None, environ: Mapping[str, str]) -> str:
    """Return the requirement of the package that has this module, in the version of the user's environment;
    empty if there is none."""
    homes = [environ[name] for name in ACTIVE if environ.get(name)]
    homes += [str(project / ".venv")] if project else []
    for home in homes:
        for folder in sorted(Path(home).glob("lib/python*/site-packages")):
            for distribution in distributions(path=[str(folder)]):
                if module in _modules_of(distribution):
                    return _requirement_of(distribution)
    return ""


def _modules_of(distribution: Distribution) -> set[str]:
    """Return the names under which the package is imported."""
    listed = (distribution.read_text("top_level.txt") or "").split()
    if listed:
        return set(listed)
    code = [file for file in distribution.files or () if file.suffix in (".py", ".so")]
    return {file.parts[0].partition(".")[0] for file in code}


def _requirement_of(distribution: Distribution) -> str:
    name = distribution.metadata["Name"]
    version = distribution.version.partition("+")[0]
    return name if name in OF_TORCH else f"{name}=={version}"
