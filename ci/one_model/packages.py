"""Find the packages of one model: `--with`, `--project`, QNN_CI_REQUIREMENTS, or those of its suite."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement

from ci.models.package_needs import NONE, VARIABLE, Needs, file_of
from ci.models.projects import contradictions, dependencies_of
from ci.models.uv_packages import locked_versions
from ci.one_model.model import OneModel
from ci.one_model.named_files import path_of_package, require_project
from ci.suite.programs import P, Suites
from ci.suite.suite_file import parse_suite
from provisioning.base import toml
from provisioning.base.commands import leave_out
from provisioning.base.errors import UsageError
from provisioning.base.parser import Parser


def needs_of_model(model: OneModel, suites: Suites[P], suite: Path | None = None) -> Needs:
    """The packages of the model, or of the suite that it is added to."""
    options = model.options
    if suite is not None:
        _refuse_beside_a_suite(model)
        if not suite.is_file():
            return NONE
        document = toml.loads(suite.read_text(encoding="utf-8"))
        return suites.needs_of(parse_suite(document, suite, suites))
    if options.project:
        require_project(options.project, f"--project {options.project}")
    packages, folders = list[str](), list[Path]()
    for text in options.packages:
        path = path_of_package(text)
        if path is None:
            packages.append(_requirement(text))
        elif path.is_dir():
            folders.append(path)
        else:
            packages.append(str(path))
    file = os.environ.get(VARIABLE)
    named = bool(packages or folders or options.project)
    if file and named:
        sys.stderr.write(f"note: {VARIABLE}={file} is left out beside --with and --project\n")
    requirements = Path(file).absolute() if file and not named else None
    if requirements is not None and not requirements.is_file():
        raise UsageError(f"{VARIABLE}={file}: there is no such file", fix=f"name a file, or unset {VARIABLE}")
    requirements_with_origin = [(f"--with {text}", text) for text in packages if not Path(text).is_absolute()]
    projects = [("--with", folder) for folder in folders]
    projects += [("--project", options.project.absolute())] if options.project else []
    for flag, folder in projects:
        requirements_with_origin += [
            (f"{flag} {folder} asks for {text}", text) for text in dependencies_of(folder)
        ]
    # Reading what each installed package says of itself takes half a second.
    if requirements_with_origin:
        _refuse_contradictions(requirements_with_origin, locked_versions())
    place = model.file.file.parent if model.typed and model.file.file else Parser.user_folder().absolute()
    return Needs(
        requirements,
        options.project.absolute() if options.project else None,
        packages=tuple(packages),
        folders=tuple(folders),
        model=place,
        takes_nearest=options.takes_project and not named and requirements is None,
    )


def _refuse_beside_a_suite(model: OneModel) -> None:
    for flag, value in (("--with", model.options.packages), ("--project", model.options.project)):
        if value:
            raise UsageError(
                f"{flag} beside --suite: a suite names its own packages",
                fix=leave_out(flag, ', and write requirements = "FILE" or project = "FOLDER" into the suite'),
            )


def _requirement(text: str) -> str:
    try:
        requirement = str(Requirement(text))
    except InvalidRequirement as error:
        message = f"--with {text}: expected a requirement such as timm==1.0.20, or a path; {error}"
        raise UsageError(message.partition("\n")[0], fix="--with NAME==VERSION") from error
    if (file := file_of(requirement)) and not file.is_file():
        raise UsageError(
            f"--with {text}: there is no file {file}", fix="name a wheel; --with FOLDER a project"
        )
    return requirement


def _refuse_contradictions(
    requirements_with_origin: Iterable[tuple[str, str]], pins: Mapping[str, str]
) -> None:
    """Refuse another version of a locked package: users would not run what is tested here."""
    for origin, text in requirements_with_origin:
        for _text, name, version in contradictions([text], pins):
            raise UsageError(
                f"{origin}, and qnn-ci has {name} {version}, which stays as it is",
                fix=f"leave the version of {name} out, or take one that {version} fits",
            )
