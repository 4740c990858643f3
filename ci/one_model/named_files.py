"""Check the files and folders that a command for one model names: what does not exist is refused before
anything costly happens. Imports nothing heavy."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from ci.models.not_models import programs_in, refuse_no_program
from ci.models.sample_files import sample_files
from ci.models.user_model import SAMPLE_FILES, BadFactory
from provisioning.base.commands import Fix, session
from provisioning.base.errors import UnknownName, UsageError
from provisioning.base.parser import Parser
from provisioning.base.settings import refuse_address, user_path

PROJECT_FILES = ("pyproject.toml", "setup.cfg", "setup.py")
ARCHIVES = (".whl", ".zip", ".tar.gz")
PROGRAMS = (".bin", ".dlc", ".onnx", ".pt2", ".pte")
SHOWN = 5
"""A message names at most this many files of a folder."""
WRITE_SAMPLES = (
    'write a file for each sample into a folder, as `numpy.save("samples/0.npy", x)`, and name the folder:'
    " --calibrate samples"
)
RECORD = "run.json"
"""The file that `run` writes beside the outputs of a program."""


def require_program(path: Path, typed: str) -> None:
    refuse_address(typed)
    if path.is_dir() and (programs := programs_in(path)):
        fix = f"name a program in it: {', '.join(str(Path(typed, name)) for name in programs)}"
        raise UsageError(f"{typed}: expected a compiled program, found a folder", fix=fix)
    programs = programs_in(path.parent)
    if not path.exists() and get_close_matches(path.name, programs, n=1):
        raise UnknownName(f"{typed}: there is no such file", path.name, programs)
    if path.is_dir():
        raise UsageError(
            f"{typed}: expected a compiled program, found a folder without one, nor with a language model",
            fix=Fix(
                "name a .pte, an .onnx or a context, as {} makes them; or the folder that {} wrote",
                ("compile", "MODEL", "-o", "out"),
                ("compile", "CHECKPOINT/", "-o", "out"),
            ),
        )
    if not path.is_file():
        model = typed if ":" in typed else "MODEL"
        fix = Fix(
            "name a .pte, an .onnx or a context, as {} makes them", session("compile", model, "-o", "out")
        )
        raise UsageError(f"{typed}: there is no such file", fix=fix)
    refuse_no_program(path, Path(typed))


def require_no_file_name(folder: Path) -> None:
    """Refuse a file, and the name of one, for a folder that is to be made."""
    if folder.is_file():
        raise UsageError(
            f"-o {folder.name}: expected a folder, found a file", fix=Fix("name a new one: {}", ("-o", "out"))
        )
    if folder.suffix in PROGRAMS and not folder.is_dir():
        raise UsageError(
            f"-o {folder.name}: expected a folder, found the name of a file",
            fix=Fix("the program in it gets a name of its own: {}", ("-o", folder.stem)),
        )


def require_outputs(folder: Path) -> None:
    if not (folder / RECORD).is_file():
        raise UsageError(f"{folder} has no {RECORD}", fix="name the folder that `run PROGRAM -o` wrote")


def require_inputs(texts: Iterable[str]) -> None:
    """Require that each text is a file, or NAME=FILE."""
    for text in texts:
        require_file(text.partition("=")[2] or text, "--input", "name a file of arrays that is there")


def require_file(text: str | Path, flag: str, fix: str) -> None:
    folder = Parser.user_folder()
    path = user_path(text, flag, str(folder))
    if path.is_dir():
        names = [str(Path(text, file.name)) for file in sorted(path.iterdir()) if file.is_file()]
        inside = f"name a file in it: {', '.join(names[:SHOWN])}" if names else fix
        raise UsageError(f"{flag} {text}: expected a file, found a folder", fix=inside)
    if not path.is_file():
        raise UsageError(f"{flag} {text}: there is no such file", fix=_file_like(path, folder) or fix)


def _file_like(path: Path, folder: Path) -> str:
    """Say which file may be meant: one of a near name, or of the same name in a folder here; else empty."""
    files = sorted(folder.glob(f"*/{glob.escape(path.name)}"))
    names = [file.name for file in path.parent.glob(f"*{glob.escape(path.suffix)}") if file.is_file()]
    files += [path.with_name(name) for name in get_close_matches(path.name, names, n=1)]
    found = [str(file.relative_to(folder) if file.is_relative_to(folder) else file) for file in files]
    return f"did you mean {found[0]}?" if found else ""


def path_of_package(text: str) -> Path | None:
    """The path that `--with` names; None if the text is a requirement."""
    path = user_path(text, "--with", str(Parser.user_folder())).absolute()
    is_path = text.startswith((".", "/", "~")) or text.endswith(ARCHIVES)
    if not is_path and ("/" not in text or "@" in text):
        return None
    if path.is_dir():
        require_project(path, f"--with {text}")
    elif not path.is_file():
        raise UsageError(f"--with {text}: there is no such file or folder", fix="name a wheel or a project")
    return path


def require_project(folder: Path, typed: str) -> None:
    if not any((folder / name).is_file() for name in PROJECT_FILES):
        message = f"{typed}: {folder} is no project: it has none of {', '.join(PROJECT_FILES)}"
        raise UsageError(message, fix="name the folder of pyproject.toml")


def samples_in(text: str) -> Path:
    """The folder of samples that --calibrate names."""
    folder = user_path(text, "--calibrate", str(Parser.user_folder())).absolute()
    if folder.is_dir():
        try:
            sample_files(folder)
        except BadFactory as error:
            raise UsageError(str(error), fix=error.fix) from None
        return folder
    if folder.is_file():
        beside = folder.suffix in SAMPLE_FILES and folder.parent != Parser.user_folder()
        fix = Fix("name its folder: {}", ("--calibrate", str(Path(text).parent))) if beside else WRITE_SAMPLES
        raise UsageError(f"--calibrate {text}: expected a folder of samples, found a file", fix=fix)
    message = f"--calibrate {text} is not a folder"
    folders = [path.name for path in folder.parent.glob("*/")]
    if get_close_matches(folder.name, folders, n=1):
        raise UnknownName(message, folder.name, folders)
    raise UsageError(message, fix=WRITE_SAMPLES)
