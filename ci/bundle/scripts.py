"""The two shell scripts of a bundle: push.sh for the host, run.sh for the device."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath

from provisioning.environment import DEVICE_DIRECTORIES, DEVICE_DSP_DIRECTORIES

RUN = "run.sh"
PUSH = "push.sh"
WRAPPER = "QNN_CI_WRAPPER"

_RUN = """\
#!/bin/sh
# Runs on the device, from the folder it is in: sh run.sh --model_path models/NAME.pte …
here=$(cd "$(dirname "$0")" && pwd) || exit 1
cd "$here" || exit 1
chmod +x bin/qnn_executor_runner
export LD_LIBRARY_PATH="$here/lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
# Separated by semicolons; our own first, or a skel of the system's answers.
export ADSP_LIBRARY_PATH="$here/dsp;{system}"
mkdir -p outputs
# What the runner is run with, for a device that is emulated.
exec ${{{wrapper}:-}} ./bin/qnn_executor_runner "$@"
"""

_PUSH_ADB = """\
#!/bin/sh
# Copies the bundle to a phone: sh push.sh [-s SERIAL]; DEVICE_DIR says where to.
set -eu
device=${{DEVICE_DIR:-{folder}}}
cd "$(dirname "$0")"
adb "$@" shell mkdir -p {folders}
{pushes}
echo "adb shell sh $device/run.sh --model_path models/NAME.pte"
"""

_PUSH_SSH = """\
#!/bin/sh
# Copies the bundle to a device: sh push.sh USER@HOST; DEVICE_DIR says where to.
set -eu
device=${{DEVICE_DIR:-{folder}}}
cd "$(dirname "$0")"
tar -cf - {files} | ssh "$@" "mkdir -p '$device' && tar -C '$device' -xf -"
echo "ssh $* sh $device/run.sh --model_path models/NAME.pte"
"""


def run_script(target: str) -> str:
    return _RUN.format(system=";".join(DEVICE_DSP_DIRECTORIES[target]), wrapper=WRAPPER)


def push_script(target: str, places: Sequence[str]) -> str:
    """`places`: every file that goes to the device."""
    folder = DEVICE_DIRECTORIES[target]
    if target != "aarch64-android":
        return _PUSH_SSH.format(folder=folder, files=" ".join(shlex.quote(place) for place in places))
    by_folder: dict[str, list[str]] = {}
    for place in places:
        by_folder.setdefault(str(PurePosixPath(place).parent), []).append(shlex.quote(place))
    pushes = [
        f'adb "$@" push {" ".join(files)} "$device/{name}/"' for name, files in sorted(by_folder.items())
    ]
    folders = " ".join(f'"$device/{name}"' for name in sorted(by_folder))
    return _PUSH_ADB.format(folder=folder, folders=folders, pushes="\n".join(pushes))
