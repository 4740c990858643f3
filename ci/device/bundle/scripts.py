"""The two shell scripts of a bundle: push.sh for the host, run.sh for the device."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from provisioning.dist import RUNNER
from provisioning.environment import DEVICE_DIRECTORIES, DEVICE_DSP_DIRECTORIES

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
