"""Say what a suite needs beside the locked packages: requirements, a project of the user's, variables, pinned
wheels.

`needs_of` reads it from a suite; `own_packages` installs it. `texts_of` has every file that decides what is
installed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement

from ci.models.wheels import PinnedWheel
from ci.work import declared_variables
from provisioning.base.errors import (
    UsageError,
)
from provisioning.base.files import hash_file

VARIABLE = "QNN_CI_REQUIREMENTS"
"""The variable names the requirements for suites that name none."""

LOCAL = re.compile(r"^(?:-e\b|--editable\b|\.|/|file:|[^#]*@\s*(?:file:|\.|/))")

INCLUDE = re.compile(r"^(?:-r|--requirement|-c|--constraint)[\s=]+(\S+)")

PROJECT_FILES = ("pyproject.toml", "setup.cfg", "setup.py")


@dataclass(frozen=True, slots=True)
class Needs:
    """What a suite, or the model of a command line, needs beside the locked packages."""

    requirements: Path | None = None
    project: Path | None = None
    """The project is installed editable, as `folders` are."""
    variables: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    wheels: Mapping[str, PinnedWheel] = field(default_factory=dict, hash=False)
    packages: tuple[str, ...] = ()
    """Requirements from the command line, or paths of wheels and source archives."""
    folders: tuple[Path, ...] = ()
    is_lenient: bool = False
    """Whether the project's own pins of torch and executorch are ignored."""
    model: Path | None = None
    """The file of the command line's model, whose project may have a package that is missing."""
    takes_nearest: bool = False
    """Whether the project around `model` is used if an import fails."""

    def __bool__(self) -> bool:
        """Whether anything has to be installed."""
        return bool(self.requirements or self.packages or self.editable)

    @property
    def editable(self) -> tuple[Path, ...]:
        return (*([self.project] if self.project else []), *self.folders)

    @property
    def origin(self) -> str:
        """The file, project or package that asks for the packages, to be named in messages."""
        places = (self.requirements, *self.editable, *self.packages)
        return next(str(place) for place in places if place)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        return declared_variables((*self.variables, *self.secrets), environ)


NONE = Needs()


def needs_of(
    suite: Path,
    requirements: str,
    project: str,
    *,
    variables: Iterable[str] = (),
    secrets: Iterable[str] = (),
    wheels: Mapping[str, PinnedWheel] = MappingProxyType({}),
) -> Needs:
    """Return the suite's needs, with paths relative to the suite, or with the requirements that
    QNN_CI_REQUIREMENTS names if the suite names none."""
    file = suite.parent / requirements if requirements else None
    if file is None and os.environ.get(VARIABLE):
        file = Path(os.environ[VARIABLE]).absolute()
    folder = (suite.parent / project).resolve() if project else None
    if file is not None and not file.is_file():
        message = f"{suite}: there are no requirements {file}"
        raise UsageError(message, fix="name a file, relative to the suite")
    if folder is not None and not any((folder / name).is_file() for name in PROJECT_FILES):
        message = f"{suite}: {folder} is no project: it has none of {', '.join(PROJECT_FILES)}"
        raise UsageError(message, fix="name the folder of pyproject.toml, relative to the suite")
    return Needs(file, folder, tuple(variables), tuple(secrets), wheels)


def texts_of(needs: Needs) -> Iterator[tuple[str, str]]:
    """Yield every file that decides what is installed, including files that it includes."""
    queue = [needs.requirements] if needs.requirements else []
    for file in project_files(needs):
        yield file.name, file.read_text(encoding="utf-8")
    for package in needs.packages:
        named = file_of(package)
        yield package, hash_file(named) if named else ""
    files: set[Path] = set()
    while queue:
        file = queue.pop()
        if file in files:
            continue
        files.add(file)
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file}: {error}", fix="name a text file of requirements") from error
        for line in map(str.strip, text.splitlines()):
            if LOCAL.match(line):
                message = f"{file}: {line}: a package of this machine, whose changes nobody would see"
                fix = 'say project = "FOLDER" in the suite, which installs it editable'
                raise UsageError(message, fix=fix)
            if include := INCLUDE.match(line):
                queue.append(file.parent / include[1])
        yield str(file.name), text


def file_of(package: str) -> Path | None:
    """Return the file of this machine that a requirement names; None if it names none."""
    if Path(package).is_absolute():
        return Path(package)
    address = urlsplit(Requirement(package).url or "")
    return Path(unquote(address.path)) if address.scheme == "file" else None


def project_files(needs: Needs) -> list[Path]:
    files = [project / name for project in needs.editable for name in PROJECT_FILES]
    return [file for file in files if file.is_file()]
