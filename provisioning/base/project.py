"""What this project's own metadata say: pyproject.toml in a clone, the installed distribution elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from provisioning.base import toml
from provisioning.base.settings import ROOT

PLACEHOLDER = "OWNER/qnn-ci"
"""Where nobody has set an address yet."""


@dataclass(frozen=True, slots=True)
class Project:
    version: str
    repository: str
    """Its address on GitHub, `[project.urls]` of pyproject.toml; empty where it has none."""

    @property
    def name(self) -> str:
        """OWNER/NAME, as workflows spell it."""
        return self.repository.removeprefix("https://github.com/") or PLACEHOLDER


def project(root: Path = ROOT) -> Project:
    file = root / "pyproject.toml"
    if file.is_file():
        own = toml.loads(file.read_text(encoding="utf-8"))["project"]
        return Project(str(own["version"]), str(own.get("urls", {}).get("Repository", "")))
    # Imported late: each start of the command would pay for it.
    from importlib import metadata

    # Of the Python that this command was installed into, in which verbs do not run.
    for installed in metadata.distributions(name="qnn-ci", path=[str(root.parent)]):
        urls = dict(line.split(", ", 1) for line in installed.metadata.get_all("Project-URL") or ())
        return Project(installed.version, urls.get("Repository", ""))
    return Project("unknown", "")
