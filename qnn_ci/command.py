"""`qnn-ci VERB`: each verb of `ci` and `provisioning`, in the locked environment that it needs.

In the wheel our packages and manifests lie beside this file, in the package `qnn_ci`. So a package of the
user's that is called `ci` or `provisioning` is never in our way, nor ours in theirs: nothing but the command
imports this module.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / "ci").is_dir() else HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from ci.__main__ import VERBS as CI  # noqa: E402
from ci.pipeline.compile_flags import LANES, lane_of  # noqa: E402
from provisioning.__main__ import VERBS as PROVISIONING  # noqa: E402
from provisioning.base import answer, command_line  # noqa: E402
from provisioning.base.errors import UsageError  # noqa: E402
from provisioning.base.secrets import handed_on, hide  # noqa: E402
from provisioning.base.settings import CLONE  # noqa: E402

VERBS = {**PROVISIONING, **CI, "shell": PROVISIONING["shell"]}
NEEDS_CLONE = ("bench", "generate", "github", "image", "lint", "lock", "pins", "site")
"""They work on our own sources, git history or Dockerfile."""


ONE_MODEL = (
    "dump",
    "compile",
    "quantize",
    "audit",
    "timing",
    "forecast",
    "divergence",
    "reduce",
    "repair",
    "tune",
    "run",
)
"""They take a model of any lane, and run in that lane's environment."""


def program_of(verb: str, arguments: Sequence[str], folder: Path) -> tuple[str, str]:
    """The package of a verb and the environment it runs in, for a user who typed this in `folder`."""
    if verb == "shell":
        in_image = bool(arguments) and arguments[0].startswith("--image")
        return ("ci", "tools") if in_image else ("provisioning", "executorch")
    if verb in ("compare", "test_golden"):
        return "ci", command_line.parsed(CI[verb], arguments).lane
    if verb == "forecast" and arguments[:1] == ["fit"]:
        return "ci", "forecast"
    if verb in ONE_MODEL:
        typed = command_line.parsed(CI[verb], arguments)
        if verb == "dump" and typed.form == "program":
            return "ci", "executorch"
        if not typed.model and (lane := getattr(typed, "lane", None)):
            return "ci", lane
        return "ci", LANES[lane_of(typed.model, folder)].environment
    package, table = ("ci", CI) if verb in CI else ("provisioning", PROVISIONING)
    return package, table[verb].environment


def main() -> int:
    argv = sys.argv[1:]
    verbs = {name: verb for name, verb in VERBS.items() if CLONE or name not in NEEDS_CLONE}
    # Help needs none of the packages; on a new machine they are minutes away.
    helps = argv[-1:] in (["-h"], ["--help"]) and (len(argv) == 2 or argv[0] != "shell")
    if helps or not argv or argv[0] not in verbs:
        return command_line.main("qnn-ci", "CI and provisioning for Qualcomm's NPUs.", verbs, argv)
    # The verb itself writes its answer: what is written here is why it did not start.
    words, place = answer.taken(argv[1:])
    return command_line.answering(argv[0], words, place, lambda: _start(argv[0], argv[1:]), starts=True)


def _start(verb: str, arguments: Sequence[str]) -> int:
    """Replace this process: signals, the terminal and the exit code are then the verb's own."""
    from provisioning.python_environments import PythonEnvironments, environments_folder, uv_program

    hide()
    package, environment = program_of(verb, arguments, Path.cwd())
    if package == "ci" and verb == "shell" and not CLONE:
        raise UsageError(
            "shell --image works on the images of a clone",
            fix="clone the repository: nox -s shell -- --image",
        )
    python = PythonEnvironments(environments_folder(), _log).interpreter(environment)
    here = str(Path.cwd())
    os.environ[command_line.STARTED_IN] = here
    os.environ[command_line.STARTED_BY] = sys.executable
    if uv := os.environ.get("QNN_CI_UV") or uv_program():
        os.environ["QNN_CI_UV"] = uv
    os.environ["QNN_CI_REPORTS"] = os.environ.get("QNN_CI_REPORTS") or str(Path(here, "reports"))
    # Python looks for -m in the working directory first: it must be ours, not the user's.
    os.chdir(ROOT)
    os.execve(python, [python, "-m", package, verb, *arguments], handed_on(os.environ))


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
