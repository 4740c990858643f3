"""`pins`: pass newer pins from a job without write access to one with it, as a checked patch.

Computing newer pins runs packages that nobody has reviewed. So the job that may write takes only a patch, and
refuses everything but changed lines in files of manifests/.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from provisioning.base.commands import captured
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import write_named
from provisioning.base.settings import ROOT

EXAMPLES = """\
  nox -s pins -- write dist/pins/pins.patch
  nox -s pins -- apply pins/pins.patch
  nox -s pins -- releases reports/compare/table.md
"""

FOLDER = "manifests"
LARGEST = 8 << 20
"""The largest patch, in bytes. All locks together are a tenth of that."""

_NAME = rf"{FOLDER}/(?:[A-Za-z0-9][A-Za-z0-9._+-]*/)*[A-Za-z0-9][A-Za-z0-9._+-]*"
_HEAD = re.compile(rf"diff --git a/(?P<name>{_NAME}) b/(?P=name)")
_INDEX = re.compile(r"index [0-9a-f]{7,64}\.\.[0-9a-f]{7,64} 100644")
_HUNK = re.compile(r"@@ -\d+(?:,(?P<old>\d+))? \+\d+(?:,(?P<new>\d+))? @@.*")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        choices=("write", "apply", "releases"),
        help="write what changed as a patch, judge one and apply it, or add newer releases to a page",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE", help="the patch (empty: change nothing), or the page"
    )


def run(args: argparse.Namespace) -> int:
    if args.what == "releases":
        from ci.dev.releases import table

        text = table()
        if args.file.is_file():  # no page, no pull request: then it is only printed
            write_named(args.file, f"\n{text}", append=True, fix="name another file")
        sys.stdout.write(text)
        return 0
    if args.what == "write":
        write(args.file, ROOT)
        return 0
    try:
        patch = args.file.read_bytes()
    except OSError as error:
        raise UsageError(f"{args.file}: {error.strerror}", fix="nox -s pins -- write FILE") from error
    apply(patch, ROOT)
    return 0


def write(file: Path, root: Path) -> None:
    """Write what changed in a clone as a patch."""
    command = ["git", "diff", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--", FOLDER]
    done = captured(command, cwd=root, encoding="utf-8")
    if done.returncode:
        raise UsageError(f"git diff: {done.stderr.strip()}", fix="run it in a clone")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(done.stdout, encoding="utf-8", newline="")
    sys.stdout.write(f"{file}: {len(judged(done.stdout.encode()))} files\n")


def apply(patch: bytes, root: Path) -> None:
    """Change the files of a clone by a checked patch."""
    names = judged(patch)
    for name in names:
        file = root / name
        listed = captured(["git", "ls-files", "--stage", "--", name], cwd=root).stdout
        if not listed.startswith("100644 ") or file.resolve() != root.resolve() / name:
            raise _refused(f"{name} is not an ordinary file of this clone")
    if names:
        # Exactly the checked bytes: git reads them from the pipe.
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = captured(command, cwd=root, input=patch.decode(), encoding="utf-8")
        if done.returncode:
            raise CheckFailed(f"git apply: {done.stderr.strip()}", fix="make the patch again, of this commit")
    sys.stdout.writelines(f"{name}\n" for name in names or ["nothing changed"])


def judged(patch: bytes) -> list[str]:
    """The files that a patch changes.

    Raises CheckFailed if it does more than change lines of ordinary files in manifests/: if it creates,
    removes, renames or links files, or changes their modes."""
    if len(patch) > LARGEST:
        raise _refused(f"it has {len(patch)} bytes, more than {LARGEST}")
    try:
        lines = patch.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise _refused("it is not UTF-8") from error
    if lines.pop() != "":
        raise _refused("its last line has no end")
    names: list[str] = []
    at = 0
    while at < len(lines):
        head = _HEAD.fullmatch(lines[at])
        if head is None or head["name"] in names:
            raise _refused(f"line {at + 1}: {lines[at][:100]!r}")
        name = head["name"]
        names.append(name)
        expected = [_INDEX, re.compile(re.escape(f"--- a/{name}")), re.compile(re.escape(f"+++ b/{name}"))]
        for pattern in expected:
            at += 1
            if at >= len(lines) or not pattern.fullmatch(lines[at]):
                raise _refused(f"line {at + 1}: {lines[at][:100]!r}" if at < len(lines) else "it ends early")
        at = _end_of_hunks(lines, at + 1)
    return names


def _end_of_hunks(lines: list[str], at: int) -> int:
    begun = at
    while at < len(lines) and (hunk := _HUNK.fullmatch(lines[at])):
        remaining = {"-": int(hunk["old"] or 1), "+": int(hunk["new"] or 1)}
        at += 1
        while any(remaining.values()):
            if at >= len(lines) or lines[at][:1] not in (" ", "-", "+", "\\"):
                raise _refused(f"line {at + 1}: a hunk ends early")
            for side in {" ": "-+", "-": "-", "+": "+"}.get(lines[at][0], ""):
                remaining[side] -= 1
            if min(remaining.values()) < 0:
                raise _refused(f"line {at + 1}: a hunk has more lines than it says")
            at += 1
        while at < len(lines) and lines[at] == "\\ No newline at end of file":
            at += 1
    if at == begun:
        raise _refused(f"line {at + 1}: expected a hunk")
    return at


def _refused(why: str) -> CheckFailed:
    return CheckFailed(
        f"the patch is refused: {why}",
        fix=f"it may only change lines of ordinary files in {FOLDER}/; look at the job that made it",
    )
