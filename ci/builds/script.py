"""A build as a shell script: what --dry-run prints, and what runs without this project."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from ci.builds import overlay, shadow
from ci.builds.install import patterns
from ci.builds.plan import STEERING, Command, Plan
from ci.builds.recipes import Output
from ci.builds.tree import OWN_NAME, adaptors

_HEAD = """\
#!/bin/sh
# {summary}
# shellcheck disable=SC2016  # $ORIGIN is the loader's.
set -eu

# take FOLDER FILE…: copy the first of the files that is there
take() {{
  folder=$1
  shift
  for file in "$@"; do
    if [ -f "$file" ]; then
      mkdir -p "$folder"
      cp -f "$file" "$folder/"
      return
    fi
  done
  echo "expected the build to make one of: $*" >&2
  exit 1
}}
"""


def script(plan: Plan, *, target_only: bool, python_path: Path | None, install: bool) -> str:
    """`python_path`: where the overlay goes; None for a target without Python."""
    lines = [_HEAD.format(summary=plan.recipe.summary), f"unset {' '.join(STEERING)}"]
    lines += [f"export {name}={_quoted(value)}" for name, value in plan.variables().items()]
    lines += ["", f"mkdir -p {_quoted(plan.build)}"]
    lines += [f"cat > {_quoted(plan.flags_file)} <<'END'", plan.flags() + "END"]
    if plan.written:
        lines += ["", *_shadowed(plan)]
    for project in plan.recipe.projects:
        lines += ["", f"# {project.name}", _a_line_each(plan.configure(project)), str(plan.compile(project))]
    lines += ["", f"# into {plan.dist.name}/", *_takes(plan, target_only)]
    if python_path is not None and not target_only:
        lines += ["", *(_installed(plan) if install else _overlaid(plan, python_path))]
    return "\n".join(lines) + "\n"


def _shadowed(plan: Plan) -> Iterator[str]:
    made = shadow.layout(plan.tree.root, plan.written)
    yield "# the tree for CMake: links, but for copies of the folders that its build writes into"
    yield f"rm -rf {_quoted(plan.source)}"
    yield from _linked(plan.tree.root, made, plan.source)
    for folder in made.copies:
        yield f"cp -Rp {_quoted(plan.tree.root / folder)} {_quoted(plan.source / folder)}"
        yield f"chmod -R u+w {_quoted(plan.source / folder)}"


def _linked(tree: Path, made: shadow.Layout | overlay.Farm, into: Path) -> Iterator[str]:
    for folder in made.folders:
        yield f"mkdir -p {_quoted(into / folder)}"
    for link in made.links:
        yield f"ln -s {_quoted(tree / link)} {_quoted(into / link)}"


def _takes(plan: Plan, target_only: bool) -> Iterator[str]:
    for output in _wanted(plan, target_only):
        for name in adaptors(output, plan.tree.root):
            files = " ".join(_globbed(f"{plan.build}/{pattern}") for pattern in patterns(output, name))
            yield f"take {_quoted(plan.dist / output.to)} {files}"
    if plan.build_type == "Release":
        yield f"strip=$(sed -n 's/^CMAKE_STRIP:[A-Z]*=//p' {_quoted(plan.build / 'CMakeCache.txt')})"
        for folder in sorted({output.to for output in _wanted(plan, target_only)}):
            yield f'[ ! -x "$strip" ] || "$strip" --strip-unneeded {_quoted(plan.dist / folder)}/*'


def _wanted(plan: Plan, target_only: bool) -> list[Output]:
    return [each for each in plan.recipe.outputs if not (target_only and each.kind == "adaptor")]


def _installed(plan: Plan) -> Iterator[str]:
    yield "# into the tree"
    for folder in python_folders(plan):
        yield f"mkdir -p {_quoted(plan.tree.root / folder)}"
        yield f"rm -f {_globbed(f'{plan.tree.root / folder}/{overlay.STALE[0]}')}"
    yield from _copied(plan, plan.tree.root)


def _overlaid(plan: Plan, into: Path) -> Iterator[str]:
    root = into / OWN_NAME
    made = overlay.farm(plan.tree.root, python_folders(plan))
    yield f"# an overlay of the tree: export PYTHONPATH={into}"
    yield f"rm -rf {_quoted(into)}"
    yield from _linked(plan.tree.root, made, root)
    for package in made.packages:
        yield f": > {_quoted(root / package / '__init__.py')}"
    yield f"echo {_quoted(plan.tree.root)} > {_quoted(into / overlay.MARKER)}"
    yield from _copied(plan, root)


def _copied(plan: Plan, root: Path) -> Iterator[str]:
    yield f"cp -Rf {_quoted(plan.dist / 'python')}/. {_quoted(root)}/"
    for copy in plan.recipe.copies:
        yield f"cp -f {_quoted(plan.tree.root / copy.file)} {_quoted(root / copy.to)}/"


def python_folders(plan: Plan) -> list[str]:
    """Folders of the Python package that get files of ours."""
    outputs = [each.to.removeprefix("python/") for each in plan.recipe.outputs if each.kind == "adaptor"]
    return sorted({*outputs, *(copy.to for copy in plan.recipe.copies)})


def _a_line_each(command: Command) -> str:
    return " \\\n  ".join(map(shlex.quote, command.argv))


def _quoted(value: object) -> str:
    return shlex.quote(str(value))


def _globbed(pattern: str) -> str:
    return "*".join(shlex.quote(part) if part else "" for part in pattern.split("*"))
