"""Read the argument MODEL of the everyday commands: a .pt2, `file.py:function`, `module:function`, or an
.onnx; and put the modules of its author first on the search path."""

from __future__ import annotations

import builtins
import os
import re
import sys
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from traceback import walk_tb
from types import ModuleType

from ci.artifacts.torch_files import fix_for_torch_file, torch_kind_of
from ci.models.not_models import ADDRESS, EXPORT, FUNCTION, MODEL_HELP, refusal, what_to_write
from provisioning.base.errors import CheckFailed, UnknownName, UsageError
from provisioning.base.guard import OWN_PACKAGES
from provisioning.base.settings import ROOT

EXPORTED = "range_constraints"
"""This attribute marks a module of torch.export."""

SAMPLE_FILES = (".npy", ".npz", ".pt")

USUAL = ("make", "model")
"""So many files have functions with these names that they do not identify a model."""
DOTTED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
SIBLING = re.compile(r"^\s*(?:from|import)\s+(\w+)\b", re.MULTILINE)
"""It finds the first name of an absolute import."""
SOURCES, PROJECT = "src", "pyproject.toml"
QUANTIZING = b"quantized_decomposed."
POINTER = b"version https://git-lfs.github.com/spec/"
PAGE = re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE)
WORD = re.compile(r"[^a-z0-9_.-]+")


class BadFactory(Exception):
    """The model cannot be used. The message says why, for the author of the factory."""

    def __init__(self, message: str, fix: str) -> None:
        super().__init__(message)
        self.fix = fix

    @property
    def missing(self) -> str:
        """It is the module that is not installed, if that is why the model cannot be used; else empty."""
        cause = self.__cause__
        return (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""


def where_paths_begin(error: Exception) -> str:
    """Return a fix for user code that did not find a file by a relative path; empty for other errors."""
    if not isinstance(error, FileNotFoundError) or not error.filename or _is_of_subprocess(error):
        return ""
    if Path(os.fsdecode(error.filename)).is_absolute():
        return ""
    return (
        f"put it below {Path.cwd()}, where relative paths begin: the suite's folder, or yours for a single"
        " model; Path(__file__).parent is the module's own"
    )


def _is_of_subprocess(error: Exception) -> bool:
    """Whether the missing file is a program that subprocess searched on PATH."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals.get("__name__") == "subprocess"


@dataclass(frozen=True, slots=True)
class UserModel:
    name: str
    """Names the model's case in a suite, its evidence and the files that are written: the file's name,
    with the function's if that says more."""
    factory: str
    """A suite in `search_path` names the model so: `module:function` or a .pt2's name; empty for an .onnx."""
    search_path: Path
    file: Path | None = None
    """The .pt2, .onnx or .py; None for a module."""
    quantized: bool = False
    """Whether it is a .pt2 with quantizing operators in it."""


def user_model(text: str, folder: Path) -> UserModel:
    """Find the model that MODEL names, searching relative paths and modules in `folder`. Imports nothing
    heavy."""
    head, colon, function = text.rpartition(":")
    if colon and head.endswith(".py") and function.isidentifier():
        path = _file(folder / head, text)
        if not path.stem.isidentifier():
            renamed = path.with_stem(re.sub(r"\W", "_", path.stem)).name
            message = f"{text}: Python cannot import a module that is called {path.stem}"
            raise UsageError(message, fix=f"rename {path.name}, for example to {renamed}")
        code = _source_of(path, text)
        if not re.search(rf"\b{function}\b|import \*", code):
            functions = FUNCTION.findall(code)
            message = f"{text}: nothing in {head} is called {function}"
            if not functions:
                raise UsageError(message, fix=what_to_write(path, head))
            raise UnknownName(message, function, functions)
        search_path, module = _imported_as(path, code)
        if module in sys.stdlib_module_names:
            message = f"{text}: Python has a module of its own that is called {module}, and imports that one"
            raise UsageError(message, fix=f"rename {path.name}, for example to {path.stem}_net.py")
        return UserModel(_name(path.stem, function), f"{module}:{function}", search_path, path)
    if DOTTED.fullmatch(text) and not (folder / text).exists():
        source = folder / SOURCES
        in_source = not module_file(head, [folder]) and module_file(head, [source])
        search_path = source if in_source else folder
        return UserModel(_name(head.rpartition(".")[2], function), text, search_path.absolute())
    if ADDRESS.match(text):
        raise refusal(text, folder)
    path = folder / text
    if path.suffix == ".pt2":
        is_quantized = _is_quantized(_file(path, text))
        return UserModel(_word(path.stem), path.name, path.absolute().parent, path.absolute(), is_quantized)
    if path.suffix == ".onnx":
        return UserModel(_word(path.stem), "", path.absolute().parent, _file(path, text))
    if kind := torch_kind_of(path):
        message = f"{text}: expected {MODEL_HELP}, found {kind}"
        raise UsageError(message, fix=fix_for_torch_file(kind, Path(text)))
    raise refusal(text, folder)


def _source_of(path: Path, text: str) -> str:
    """Read Python source. Python imports a file whose comments have other bytes than UTF-8, but torch.export
    cannot read it."""
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise CheckFailed(
            f"{text}: expected Python source in UTF-8, found other bytes",
            fix=f"save {path.name} as UTF-8, or name its encoding in its first line: `# coding: latin-1`",
        ) from error


def _imported_as(path: Path, code: str) -> tuple[Path, str]:
    """Return the folder that is searched for a file's module, and the module's name there. A module of a
    package gets the package in its name, or its relative imports would fail."""
    beside = {file.stem for file in path.parent.glob("*.py")} - {"__init__"}
    if beside & set(SIBLING.findall(code)):
        # It is written to be run as a script.
        return path.parent, path.stem
    top = path.parent
    while (top / "__init__.py").is_file() and top.name.isidentifier():
        top = top.parent
    below = [
        folder for folder in path.parents if folder.name == SOURCES and (folder.parent / PROJECT).is_file()
    ]
    if below and not (below[0] / "__init__.py").is_file():
        top = below[0]
    words = path.relative_to(top).with_suffix("").parts
    return (top, ".".join(words)) if all(map(str.isidentifier, words)) else (path.parent, path.stem)


def _file(path: Path, text: str) -> Path:
    if not path.is_file():
        problem = "it is a directory" if path.is_dir() else "there is no such file"
        names = [file.name for file in path.parent.glob(f"*{path.suffix}")]
        if not path.is_dir() and get_close_matches(path.name, names, n=1):
            raise UnknownName(f"{text}: {problem}", path.name, names)
        fix = f"write its path in full; {path.absolute()} does not exist"
        if names:
            fix = f"name one that is there: {', '.join(sorted(names)[:8])}"
        raise UsageError(f"{text}: {problem}", fix=fix)
    return path.absolute()


def _name(module: str, function: str) -> str:
    return _word(module if function in (*USUAL, module) else f"{module}-{function}")


def _word(name: str) -> str:
    return WORD.sub("-", name.lower()).strip("-_.") or "model"


def fix_of_content(path: Path, fix: str) -> str:
    """Return the fix for a file with unexpected content. A pointer of Git LFS and a web page have their
    own."""
    with path.open("rb") as file:
        start = file.read(len(POINTER))
    if start == POINTER:
        return "fetch what Git LFS has of it: git lfs pull; in gate.yml: `lfs: true`"
    if PAGE.match(start):
        return f"it is a web page: read it (`head {path.name}`), and download the file by its own address"
    return fix


def _is_quantized(path: Path) -> bool:
    """Whether an exported program has quantizing operators. A .pt2 that is no archive of an exported program
    is an error."""
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            programs = [name for name in names if name.endswith("/models/model.json")]
            quantized = any(QUANTIZING in archive.read(name) for name in programs)
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, RuntimeError) as error:
        raise CheckFailed(
            f"{path}: expected what torch.export.save writes, found {path.stat().st_size} bytes that are not"
            f" one or only a part of one ({error})",
            fix=fix_of_content(path, "save or copy it again"),
        ) from error
    if not programs:
        kind = torch_kind_of(path)
        message = f"{path}: expected what torch.export.save writes, found {kind or 'another archive'}"
        raise CheckFailed(message, fix=fix_for_torch_file(kind, path) if kind else EXPORT)
    return quantized


OURS = tuple(f"{ROOT / name}/" for name in OWN_PACKAGES)

_first: Path | None = None
_end_sharing: Callable[[], None] | None = None


def search_first(folder: Path) -> None:
    """Import from this folder first from now on, also in factories and models that are called later.

    If it has packages with our names, such as `ci`, these names mean the user's packages from now on, except
    in our own imports. A process that serves suites of several folders forgets the modules of the previous
    one, because modules of equal names would be confused."""
    global _first, _end_sharing
    if _first == folder:
        return
    if _end_sharing is not None:
        _end_sharing()
    if _first is not None:
        sys.path.remove(str(_first))
        if _first != ROOT:
            _forget(_first)
    sys.path.insert(0, str(folder))
    names = [name for name in OWN_PACKAGES if folder != ROOT and (folder / name).is_dir()]
    _end_sharing = _share(names) if names else None
    _first = folder


def _share(packages: Sequence[str]) -> Callable[[], None]:
    """Hide our packages from all code but ours. Return a function that shows them again."""
    is_shown, hidden, original = False, _hide(packages), builtins.__import__

    def swap() -> None:
        nonlocal is_shown, hidden
        replaced = _hide(packages)
        sys.modules.update(hidden)
        is_shown, hidden = not is_shown, replaced

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        own = str((globals or {}).get("__file__")).startswith(OURS)
        if own == is_shown or not (level or name.partition(".")[0] in packages):
            return original(name, globals, locals, fromlist, level)
        swap()
        try:
            return original(name, globals, locals, fromlist, level)
        finally:
            swap()

    def end() -> None:
        builtins.__import__ = original
        _hide(packages)
        sys.modules.update(hidden)

    builtins.__import__ = import_
    return end


def _hide(packages: Sequence[str]) -> dict[str, ModuleType]:
    """Remove the modules of these packages from sys.modules, so that nobody finds them, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] in packages]
    return {name: sys.modules.pop(name) for name in names}


def _forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "/")
        if file.is_relative_to(folder) and file == module_file(name, [folder]):
            del sys.modules[name]


def module_file(name: str, roots: Sequence[Path]) -> Path | None:
    """Return the file of a module in the first root that has it; None for installed and built-in modules."""
    relative = name.replace(".", "/")
    for root in roots:
        for path in (root / f"{relative}.py", root / f"{relative}/__init__.py"):
            if path.is_file():
                return path
    return None


def modules_in(folder: Path) -> list[str]:
    """Return the files of modules below a folder that this process has imported, except this toolkit's own
    and packages installed into a virtual environment there."""
    ours = () if f"{folder}/".startswith(OURS) else OURS
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    below = {
        file for file in files if file and Path(file).is_relative_to(folder) and not file.startswith(ours)
    }
    return sorted(file for file in below if "site-packages" not in Path(file).relative_to(folder).parts)
