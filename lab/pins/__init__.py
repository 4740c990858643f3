"""`pins`: pass newer pins from a job without write access to one with it, as files that are judged.

Computing newer pins runs packages that nobody has reviewed, and the job that may write installs some of what
is pinned. So it takes only files that `lock` and `image_pins` write, and of each only what its kind may say.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from provisioning.base.commands import capture, session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import replace_text, write_named
from provisioning.base.flags import add_valued
from provisioning.base.foreign import visible
from provisioning.base.settings import ROOT

EXAMPLES = """\
  nox -s lab -- pins write dist/pins
  nox -s lab -- pins apply dist/pins --text reports/pins/table.md
  nox -s lab -- pins releases reports/pins/table.md
  nox -s lab -- pins messages reports/pins/table.md --list reports/pins/messages.json
"""

FOLDER = "manifests"
LARGEST = 2 << 20
"""Of a file, in bytes: the longest lock has a tenth of that."""
LARGEST_TEXT = 64 << 10
"""Of the pull request's text: GitHub takes 65,536 characters."""
MOST_SHOWN = 40

_PIN = re.compile(
    r"(?P<name>[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)==(?P<version>[0-9][A-Za-z0-9.!+_-]*)"
    r"(?: ; [a-z_]+ (?:==|!=|>=|<=|<|>) '[A-Za-z0-9.*_ -]+'"
    r"(?: (?:and|or) [a-z_]+ (?:==|!=|>=|<=|<|>) '[A-Za-z0-9.*_ -]+')*)? \\"
)
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?P<more> \\)?")
_TORCH = re.compile(r"# torch: torch==[0-9][A-Za-z0-9.!+_-]*")
_SNAPSHOT = re.compile(r"# snapshot: \d{8}T\d{6}Z")
_DEBIAN = re.compile(r"(?P<name>[a-z0-9][a-z0-9.+-]+) (?P<version>[A-Za-z0-9.+~:-]+) [0-9a-f]{64}")
_DATE = re.compile(r"-\d{8}(?=[-\"])")


def configure(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    writer = commands.add_parser("write", help="copy the manifests that changed to a folder")
    writer.add_argument("folder", type=Path, metavar="FOLDER")
    add_valued(writer, "--only", "PATH", "of this file or folder [%(default)s]", default=FOLDER)
    applier = commands.add_parser("apply", help="judge what such a folder has, and put it into this clone")
    applier.add_argument("folder", type=Path, metavar="FOLDER")
    add_valued(applier, "--text", "FILE", "the pull request's text: judged, and told new packages", type=Path)
    commands.add_parser("denied", help="say what to allow where GitHub opened no pull request")
    teller = commands.add_parser(
        "messages", help="add how many messages the newest QNN build gained and lost to a page"
    )
    teller.add_argument("file", type=Path, metavar="FILE", help="the page (none: only print)")
    add_valued(teller, "--list", "FILE", "write the messages there, as JSON", type=Path)
    lister = commands.add_parser("releases", help="add newer releases, which a person decides on, to a page")
    lister.add_argument("file", type=Path, metavar="FILE", help="the page (none: only print)")


def run(args: argparse.Namespace) -> int:
    if args.what == "releases":
        from lab.pins.releases import table

        _add(args.file, table())
    elif args.what == "messages":
        from lab.pins.message_changes import changes, markdown

        older, newer, found = changes()
        if args.list:
            write_named(args.list, json.dumps(found, indent=1) + "\n", fix="name another file")
        _add(args.file, markdown(older, newer, found))
    elif args.what == "denied":
        raise CheckFailed(
            "no pull request was opened: the step above says why; GitHub refuses those of a workflow unless"
            " repository and organisation allow them",
            fix="Settings, Actions, General: Allow GitHub Actions to create and approve pull requests",
        )
    elif args.what == "write":
        write(args.folder, ROOT, args.only)
    else:
        apply(args.folder, ROOT, args.text)
    return 0


def _add(page: Path, text: str) -> None:
    """Print it, and add it to the page of a pull request if there is one."""
    if page.is_file():
        write_named(page, f"\n{text}", append=True, fix="name another file")
    sys.stdout.write(text)


def write(folder: Path, root: Path, only: str = FOLDER) -> None:
    """Copy the changed files of a clone."""
    command = ["git", "diff", "--name-only", "-z", "--no-renames", "--diff-filter=M", "--", only]
    done = capture(command, cwd=root, encoding="utf-8")
    if done.returncode:
        raise UsageError(f"git diff: {done.stderr.strip()}", fix="run it in a clone")
    names = [name for name in done.stdout.split("\0") if name]
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", fix="name another folder, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    # An artifact needs a file, also when nothing is newer.
    (folder / NOTHING).touch()
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((root / name).read_bytes())
    sys.stdout.write(f"{folder}: {len(names)} files\n")


NOTHING = "pins"


def apply(folder: Path, root: Path, text: Path | None) -> None:
    """Change the files of a clone to those of a folder. All are judged before one is written."""
    judged = {name: _judge(name, file, root) for name, file in sorted(_files(folder).items())}
    page = _page(text) if text else ""
    for name, (new, _) in judged.items():
        replace_text(root / name, new)
    news = [line for _, said in judged.values() for line in said]
    if text and news:
        shown = [*news[:MOST_SHOWN], *([f"… and {len(news) - MOST_SHOWN} more"] if news[MOST_SHOWN:] else [])]
        page = "\n".join(
            [page.rstrip(), "", "## Packages that come or go", "", *(f"- {line}" for line in shown), ""]
        )
    if text:
        replace_text(text, page)
    sys.stdout.writelines(f"{line}\n" for line in [*news, *(judged or ["nothing changed"])])


def _files(folder: Path) -> dict[str, Path]:
    """By name from `folder`. No link is followed."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder", fix=session("lab", "pins", "write", "FOLDER"))
    found: dict[str, Path] = {}
    for place, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(place, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                found[path.relative_to(folder).as_posix()] = path
            elif not stat.S_ISDIR(mode):
                raise _refused(path.relative_to(folder).as_posix(), "it is no regular file")
    found.pop(NOTHING, None)
    return found


def _judge(name: str, file: Path, root: Path) -> tuple[str, list[str]]:
    """The text that may take the place of the clone's, and what the pull request's text must say of it."""
    kind = next((judge for pattern, judge in KINDS.items() if re.fullmatch(pattern, name)), None)
    if kind is None:
        raise _refused(name, "none of `lock`, `image_pins` and `faults` writes it")
    listed = capture(["git", "ls-files", "--stage", "--", name], cwd=root, encoding="utf-8").stdout
    before = root / name
    if not listed.startswith("100644 ") or before.is_symlink() or before.resolve() != root.resolve() / name:
        raise _refused(name, "it is not an ordinary file of this clone")
    new = _text(name, file)
    return new, kind(name, before.read_text(encoding="utf-8"), new)


def _bytes(name: str, file: Path, largest: int, fix: str) -> bytes:
    try:
        with file.open("rb") as stream:
            data = stream.read(largest + 1)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}", fix=fix) from error
    if len(data) > largest:
        raise _refused(name, f"it has more than {largest} bytes")
    return data


def _text(name: str, file: Path) -> str:
    try:
        text = _bytes(name, file, LARGEST, session("lab", "pins", "write", "FOLDER")).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(name, "it is not UTF-8") from error
    if text != visible(text) or (text and not text.endswith("\n")):
        raise _refused(name, "it has characters that hide or steer, or its last line has no end")
    return text


def _page(text: Path) -> str:
    """Only a table: what would be HTML, or call somebody, is shown as text."""
    data = _bytes(text.name, text, LARGEST_TEXT, "name the table of the report")
    shown = visible(data.decode("utf-8", "replace"))
    return shown.replace("<", "&lt;").replace("@", "@\u200b").replace("](", "]\\(")


def _lock(name: str, before: str, after: str) -> list[str]:
    """Pins with hashes, and the comments that were there."""
    comments = [line for line in before.splitlines() if line.startswith("#")]
    found: dict[str, set[str]] = {}
    expecting = False
    for number, line in enumerate(after.splitlines(), 1):
        if match := _PIN.fullmatch(line):
            if expecting:
                raise _wrong_line(name, number, line)
            found.setdefault(match["name"], set()).add(match["version"])
            expecting = True
        elif expecting and (match := _HASH.fullmatch(line)):
            expecting = bool(match["more"])
        elif line.startswith("#") and not expecting:
            if not comments or not (
                line == comments[0] or (_TORCH.fullmatch(line) and _TORCH.fullmatch(comments[0]))
            ):
                raise _wrong_line(name, number, line)
            comments.pop(0)
        else:
            raise _wrong_line(name, number, line)
    if expecting or comments:
        raise _refused(name, "it ends early")
    known = {match["name"] for line in before.splitlines() if (match := _PIN.fullmatch(line))}
    return _come_and_go(name, known, set(found))


def _packages(name: str, before: str, after: str) -> list[str]:
    """Debian's, of one snapshot."""
    old, new = before.splitlines(), after.splitlines()
    heads = [[line for line in lines if line.startswith("#")] for lines in (old, new)]
    for was, line in zip(*heads, strict=False):
        if line != was and not (_SNAPSHOT.fullmatch(line) and _SNAPSHOT.fullmatch(was)):
            raise _refused(name, f"{line[:100]!r}")
    if len(heads[0]) != len(heads[1]) or new[: len(heads[1])] != heads[1]:
        raise _refused(name, "it has other comments")
    for number, line in enumerate(new[len(heads[1]) :], len(heads[1]) + 1):
        if not _DEBIAN.fullmatch(line):
            raise _wrong_line(name, number, line)
    names = [{line.split()[0] for line in lines if not line.startswith("#")} for lines in (old, new)]
    return _come_and_go(name, *names)


def _same_but(may: Callable[[str, str], bool], name: str, before: str, after: str) -> list[str]:
    """Every line is as it was, or `may` be another."""
    old, new = before.splitlines(), after.splitlines()
    for number, (was, line) in enumerate(zip(old, new, strict=False), 1):
        if was != line and not may(was, line):
            raise _wrong_line(name, number, line)
    if len(old) != len(new):
        raise _refused(name, "it has more lines, or fewer")
    return []


def _is_about_system(was: str, line: str) -> bool:
    """The date, the digest or the time of the system's image."""
    known = any(pattern.fullmatch(was) and pattern.fullmatch(line) for pattern in SYSTEM)
    return known and not (IMAGE.fullmatch(line) and _undated(was) != _undated(line))


def _ends(was: str, line: str) -> bool:
    """Versions that end."""
    return bool(_ENDED.fullmatch(line)) and line.startswith(was[:-1])


_ENDED = re.compile(r'versions = "[0-9.<>=,]+,<[0-9.]+"')


def _undated(line: str) -> str:
    return _DATE.sub("", line)


IMAGE = re.compile(r'image = "[a-z0-9:.-]+"')
SYSTEM = (
    IMAGE,
    re.compile(r'digest = "sha256:[0-9a-f]{64}"'),
    re.compile(r"epoch = \d{1,11}"),
)
KINDS: Mapping[str, Callable[[str, str, str], list[str]]] = {
    rf"{FOLDER}/(locks|torch)/[a-z0-9-]+\.txt": _lock,
    rf"{FOLDER}/image-packages\.txt": _packages,
    rf"{FOLDER}/images\.toml": functools.partial(_same_but, _is_about_system),
    rf"{FOLDER}/known_faults\.toml": functools.partial(_same_but, _ends),
}
"""How each file that `lock`, `image_pins` and `faults` write is judged: what changed beside versions."""


def _come_and_go(name: str, before: set[str], after: set[str]) -> list[str]:
    words = {"new": after - before, "gone": before - after}
    return [f"{name}: {word}: {', '.join(sorted(some))}" for word, some in words.items() if some]


def _wrong_line(name: str, number: int, line: str) -> CheckFailed:
    return _refused(name, f"line {number}: {line[:100]!r}")


def _refused(name: str, why: str) -> CheckFailed:
    return CheckFailed(
        f"{visible(name)} is refused: {why}",
        fix="only versions and hashes of what is pinned may change: look at the job that made it",
    )
