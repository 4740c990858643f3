"""`qnn-ci VERB`: each verb of `ci` and `provisioning`, in the locked environment that it needs.

In the wheel our packages and manifests lie beside this file, in the package `qnn_ci`. So a package of the
user's that is called `ci` or `provisioning` is never in our way, nor ours in theirs: nothing but the command
imports this module.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE if (HERE / "ci").is_dir() else HERE.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from ci.__main__ import VERBS as CI  # noqa: E402
from ci.lanes.registry import lanes_by_stage  # noqa: E402
from ci.model_commands.typed_model import check_model, lane_of  # noqa: E402
from ci.suite import options  # noqa: E402
from ci.suite.lane_head import ONE_MODEL  # noqa: E402
from ci.suite.precision import SCHEMES  # noqa: E402
from provisioning.__main__ import VERBS as PROVISIONING  # noqa: E402
from provisioning.base import answer, command_line  # noqa: E402
from provisioning.base.command_line import Verb  # noqa: E402
from provisioning.base.commands import OF_CLONE  # noqa: E402
from provisioning.base.errors import UsageError  # noqa: E402
from provisioning.base.guard import guard  # noqa: E402
from provisioning.base.parser import Parser  # noqa: E402
from provisioning.base.selection import known_chips, selection_of  # noqa: E402
from provisioning.base.settings import CLONE, profile_names, unknown_profile  # noqa: E402
from provisioning.base.units import align, columns  # noqa: E402

VERBS = {**PROVISIONING, **CI, "shell": PROVISIONING["shell"]}
MAP = {
    "one model": ("example", "compile", "audit", "run", "divergence", "tune", "repair", "forecast"),
    "a gate": ("gate", "report", "diagnose"),
    "devices and builds": ("build_android", "bundle"),
    "environment": ("provision", "validate"),
}
"""The verbs that `qnn-ci` alone prints; `qnn-ci help all` has the others."""

SHELLS = ("bash", "zsh", "fish")
"""The shells that `completion` knows."""
COMPLETING = 'eval "$(qnn-ci completion bash)"'

BARE = ("example",)
"""They need no package: this Python runs them."""


def check(verb: str, arguments: Sequence[str], folder: Path) -> None:
    """Refuse what the words alone show to be wrong, before minutes go into an environment."""
    if verb == "shell":
        return
    Parser.started_in = str(folder)
    try:
        _check(verb, arguments)
    finally:
        Parser.started_in = ""


def _check(verb: str, arguments: Sequence[str]) -> None:
    args = command_line.check_words("qnn-ci", verb, VERBS[verb], arguments)
    module = command_line.module_of(VERBS[verb])
    if isinstance(module, command_line.ChecksWords):
        module.check(args)
    if verb in (*options.COMMANDS, options.GATE) or verb in lanes_by_stage():
        options.choice_of(args)
    # The verb itself says which chip it is where the user named one otherwise.
    with redirect_stderr(io.StringIO()):
        if hasattr(args, "soc") and (profile := selection_of(args).profile) not in profile_names():
            raise unknown_profile(profile)
        if verb in ONE_MODEL:
            check_model(args, verb)


def program_of(verb: str, arguments: Sequence[str], folder: Path) -> tuple[str, str]:
    """The package of a verb and the environment it runs in, for a user who typed this in `folder`."""
    if verb == "shell":
        in_image = bool(arguments) and arguments[0].startswith("--image")
        return ("ci", "tools") if in_image else ("provisioning", "executorch")
    if verb in ONE_MODEL:
        return "ci", lane_of(command_line.arguments_of(CI[verb], arguments), verb, folder).environment
    package, table = ("ci", CI) if verb in CI else ("provisioning", PROVISIONING)
    module = command_line.module_of(table[verb])
    if isinstance(module, command_line.ChoosesEnvironment):
        args = command_line.arguments_of(table[verb], arguments)
        return package, module.environment_of(args, table[verb].environment)
    return package, table[verb].environment


def _map(verbs: Mapping[str, Verb]) -> str:
    lines = ["usage: qnn-ci VERB [options]", "", "Run PyTorch and ONNX models on Qualcomm's NPUs.", ""]
    longest = max(len(name) for names in MAP.values() for name in names)
    for group, names in MAP.items():
        rows = [(f"  {name:<{longest}}", verbs[name].summary) for name in names]
        lines += [group, *align(rows, columns()), ""]
    more = "`qnn-ci help VERB` explains one, with examples; `qnn-ci help all` lists the others."
    return "\n".join([*lines, more, ""])


def _complete(verbs: Mapping[str, Verb]) -> None:
    """Answer a shell in which `eval "$(qnn-ci completion bash)"` was typed, and end."""
    import argcomplete

    values = {"--soc": known_chips(), "--precision": SCHEMES, "--profile": profile_names()}
    parser = Parser(prog="qnn-ci")
    of_verbs = parser.add_subparsers()
    typed = os.environ["COMP_LINE"].split()[1:2]
    for name, verb in verbs.items():
        of_verb = of_verbs.add_parser(name, help=verb.summary)
        if name in typed:
            command_line.module_of(verb).configure(of_verb)
            for action in of_verb._actions:
                for flag in action.option_strings:
                    if flag in values:
                        vars(action)["completer"] = argcomplete.ChoicesCompleter(values[flag])
    argcomplete.autocomplete(parser)


def _completion(arguments: Sequence[str]) -> int:
    """Print what a shell evaluates to complete our verbs and flags."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        raise UsageError(
            f"completion takes the name of a shell: {', '.join(SHELLS)}",
            fix=f"type `{COMPLETING}`, or add that line to ~/.bashrc",
        )
    import argcomplete

    sys.stdout.write(argcomplete.shellcode(["qnn-ci"], shell=arguments[0]))
    return 0


def main() -> int:
    argv = sys.argv[1:]
    verbs = {name: verb for name, verb in VERBS.items() if name not in OF_CLONE}
    if "_ARGCOMPLETE" in os.environ:
        _complete(verbs)
    if argv[:1] in (["version"], ["--version"]):
        from provisioning.base.settings import project

        sys.stdout.write(f"qnn-ci {project().version}\n")
        return 0
    if argv[:1] == ["completion"]:
        return guard(lambda: _completion(argv[1:]), debug=False)
    if argv in ([], ["help"], ["-h"], ["--help"]):
        sys.stdout.write(_map(verbs))
        return 0 if argv else UsageError.exit_code
    if argv[0] == "help":
        argv = ["--help"] if argv[1] == "all" else [argv[1], "--help"]
    # Help needs none of the packages; on a new machine they are minutes away.
    helps = argv[-1:] in (["-h"], ["--help"]) and (len(argv) <= 2 or argv[0] != "shell")
    if helps or argv[0] not in verbs or argv[0] in BARE:
        return command_line.main("qnn-ci", "Run PyTorch and ONNX models on Qualcomm's NPUs.", verbs, argv)
    # The verb itself writes its answer: what is written here is why it did not start.
    words, place = answer.split_json(argv[1:])
    return command_line.answering(argv[0], words, place, lambda: _start(argv[0], argv[1:]), starts=True)


def _start(verb: str, arguments: Sequence[str]) -> int:
    """Replace this process: signals, the terminal and the exit code are then the verb's own."""
    from provisioning.installer import uv_program
    from provisioning.python_environments import PythonEnvironments, environments_folder

    package, environment = program_of(verb, arguments, Path.cwd())
    if package == "ci" and verb == "shell" and not CLONE:
        raise UsageError(
            "shell --image works on the images of a clone",
            fix="clone the repository, and open the shell in the clone",
        )
    environments = PythonEnvironments(environments_folder(), _log)
    if verb in ONE_MODEL or not environments.current_python(environment):
        check(verb, arguments, Path.cwd())
    python = environments.interpreter(environment)
    folder = str(Path.cwd())
    os.environ[command_line.STARTED_IN] = folder
    os.environ[command_line.STARTED_BY] = sys.executable
    if uv := os.environ.get("QNN_CI_UV") or uv_program():
        os.environ["QNN_CI_UV"] = uv
    os.environ["QNN_CI_REPORTS"] = os.environ.get("QNN_CI_REPORTS") or str(Path(folder, "reports"))
    # Python looks for -m in the working directory first: it must be ours, not the user's.
    os.chdir(ROOT)
    os.execve(python, [python, "-m", package, verb, *arguments], os.environ)


def _log(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
