"""What a bundle says of itself: manifest.json, with what it is for and every file that goes to the device
with its hash; and its two shell scripts, push.sh for the host, run.sh for the device."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from provisioning.base.commands import Fix
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file
from provisioning.dist import RUNNER
from provisioning.environment import DEVICE_DIRECTORIES, DEVICE_DSP_DIRECTORIES

NAME = "manifest.json"
SCHEMA = 1
AGAIN = Fix("make it again: {}", ("bundle",))


@dataclass(frozen=True, slots=True)
class BundledFile:
    path: str
    kind: str
    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Bundle:
    target: str
    soc: str
    profile: str
    qnn_build_id: str
    files: tuple[BundledFile, ...]
    runner: str = RUNNER.name
    schema: int = SCHEMA

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(file.path for file in self.files if file.kind == "model")

    def encode(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"


def read_bundle(folder: Path) -> Bundle:
    """Raises UsageError if it is no bundle, CheckFailed if a file differs from its manifest."""
    path = folder / NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise ValueError(f"schema {data['schema']}, expected {SCHEMA}")
        bundle = Bundle(**{**data, "files": tuple(BundledFile(**file) for file in data["files"])})
        if bundle.target not in DEVICE_DIRECTORIES:
            raise ValueError(f"target {bundle.target}, expected {' or '.join(DEVICE_DIRECTORIES)}")
        for file in bundle.files:
            if PurePosixPath(file.path).is_absolute() or ".." in PurePosixPath(file.path).parts:
                raise ValueError(f"{file.path} is outside the bundle")
    except FileNotFoundError as error:
        raise UsageError(f"{folder} holds no {NAME}", fix=AGAIN) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: not a bundle's manifest: {error}", fix=AGAIN) from error
    check_files(folder, {file.path: file.sha256 for file in bundle.files}, AGAIN)
    return bundle


def check_files(folder: Path, recorded: Mapping[str, str], fix: str) -> None:
    """Raise CheckFailed for a file that is missing, or has another hash than its manifest says."""
    for place, sha256 in recorded.items():
        path = folder / place
        actual = hash_file(path) if path.is_file() else "no such file"
        if actual != sha256:
            message = f"{path}: expected {sha256} as {folder / NAME} says, found {actual}"
            raise CheckFailed(message, fix=fix)


# Scripts


RUN = "run.sh"
PUSH = "push.sh"
WRAPPER = "QNN_CI_WRAPPER"
OURS = ".qnn-ci"
"""Marks a folder on the device that a bundle was pushed to: its files may be removed."""

LOCK = f"{OURS}/lock"
"""Exists while a run has the folder."""

EXAMPLE = "--model_path models/NAME.pte …"
"""The arguments of run.sh in its comment."""

KEPT_CLEAN = ("bin", "lib", "dsp")
"""Folders where a file of an earlier bundle would be loaded."""

_RUN = """\
#!/bin/sh
# Runs on the device, from the folder it is in: sh run.sh {arguments}
here=$(cd "$(dirname "$0")" && pwd) || exit 1
cd "$here" || exit 1
chmod +x {runner}
export LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
# Separated by semicolons. Our folder comes first, or the system's skel is loaded.
export ADSP_LIBRARY_PATH="$here/dsp;{system}"
mkdir -p outputs
# A program and its arguments that the runner is run with: an emulator, for example.
# shellcheck disable=SC2086
exec ${{{wrapper}:-}} ./{runner} "$@"
"""

_PUSH = """\
#!/bin/sh
# Copies the bundle to {device}: sh push.sh {usage}; DEVICE_DIR says where to.
set -eu
device=${{DEVICE_DIR:-{folder}}}
# Quote any text as one word of a shell.
quote() {{ printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\\\\\''/g")"; }}
folder=$(quote "$device")
cd "$(dirname "$0")"
# Files of an earlier bundle would be loaded, so they go; in a folder with other files nothing is removed.
clean="if [ -d {lock} ]; then echo 'a run has this folder' >&2; exit 3; fi
if [ -d {ours} ]; then rm -rf {clean}
elif [ -z \\"\\$(ls -A)\\" ]; then mkdir {ours} || exit 1
else echo 'the folder holds other files: nothing of an earlier bundle is removed' >&2
fi"
make="mkdir -p $folder && cd $folder || exit 1
$clean
mkdir -p {folders}"
{copy}
run="sh $folder/run.sh {arguments}"
echo "to run it: {shell} $(quote "$run")"
"""


def run_script(target: str, runner: str = RUNNER.name, arguments: str = "") -> str:
    program = shlex.quote(f"{RUNNER.parent}/{runner}")
    system = ";".join(DEVICE_DSP_DIRECTORIES[target])
    return _RUN.format(system=system, wrapper=WRAPPER, runner=program, arguments=arguments or EXAMPLE)


def push_script(target: str, places: Sequence[str], arguments: str = "") -> str:
    """`places`: every file that goes to the device; `arguments`: run.sh's [the first model]."""
    by_folder: dict[str, list[str]] = {}
    for place in places:
        by_folder.setdefault(str(PurePosixPath(place).parent), []).append(shlex.quote(place))
    by_adb = target == "aarch64-android"
    model = next((place for place in places if place.startswith("models/")), "models/NAME.pte")
    return _PUSH.format(
        device="a phone" if by_adb else "a device",
        usage="[-s SERIAL]" if by_adb else "USER@HOST",
        folder=DEVICE_DIRECTORIES[target],
        ours=OURS,
        lock=LOCK,
        clean=" ".join(KEPT_CLEAN),
        folders=" ".join(sorted(by_folder)),
        copy="\n".join(_adb(by_folder) if by_adb else _ssh(places)),
        shell="adb $* shell" if by_adb else "ssh $*",
        arguments=arguments or f"--model_path $(quote {shlex.quote(model)})",
    )


def _adb(by_folder: dict[str, list[str]]) -> list[str]:
    pushes = [
        f'adb "$@" push {" ".join(files)} "$device/{name}/"' for name, files in sorted(by_folder.items())
    ]
    return ['adb "$@" shell "$make"', *pushes]


def _ssh(places: Sequence[str]) -> list[str]:
    files = " ".join(map(shlex.quote, places))
    return [
        # A pipe has the exit code of its last program, so look for the files first.
        f'for file in {files}; do [ -f "$file" ] || {{ echo "there is no $file" >&2; exit 1; }}; done',
        "# shellcheck disable=SC2029",
        f'tar -cf - {files} | ssh "$@" "$make && tar -xf -"',
    ]
