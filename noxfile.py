"""The sessions: which environment each runs in and which one command it runs. `nox -l` lists them.

Arguments after `--` go to that command: `nox -s validate -- --help`.
Sessions share a few locked environments (manifests/locks/) under .nox/, built once and again when their
lock changes, so the sessions themselves have none of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import nox

if sys.version_info < (3, 10):  # noqa: UP036  (nox itself runs on older ones)
    sys.exit(f"Python 3.10 or later is needed, this is {sys.version.split()[0]}: install nox with it")

sys.path.insert(0, str(Path(__file__).parent))
from provisioning.base.errors import ToolkitError
from provisioning.python_environments import PythonEnvironments, uv_program
from qnn_ci import program_of

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["gate"]

os.environ.setdefault("QNN_CI_RUN", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
"""The sessions of one call of nox are one run: reports of another run are not compared with theirs."""


# The gate, and what it is made of


@nox.session
def gate(session: nox.Session) -> None:
    """Run the stages that decide a pull request, and their summary (the default)."""
    run_verb(session, "gate")


@nox.session
def provision(session: nox.Session) -> None:
    """Fetch, verify and unpack the profile's components."""
    run_verb(session, "provision")


@nox.session
def validate(session: nox.Session) -> None:
    """Tell whether an environment can do its work."""
    run_verb(session, "validate")


@nox.session
def env(session: nox.Session) -> None:
    """Print the environment of a target: sh, dotenv, github, json or docker."""
    run_verb(session, "env")


@nox.session
def shell(session: nox.Session) -> None:
    """Open a shell, or run a command, in the environment of a target, or with --image in a container."""
    run_verb(session, "shell")


@nox.session
def image(session: nox.Session) -> None:
    """Build a container image, or prove that it can be built again."""
    run_verb(session, "image")


@nox.session
def store(session: nox.Session) -> None:
    """List, verify, repair or prune the store."""
    run_verb(session, "store")


# Building and running


@nox.session
def build_runner(session: nox.Session) -> None:
    """Build qnn_executor_runner against the executorch wheel."""
    run_verb(session, "build_runner")


@nox.session
def test_lowering(session: nox.Session) -> None:
    """Lower the suite's models to the HTP, audit what was delegated and what it costs."""
    run_verb(session, "test_lowering")


@nox.session
def test_emulator(session: nox.Session) -> None:
    """Run the suite's programs on the HTP emulator and compare with PyTorch."""
    run_verb(session, "test_emulator")


@nox.session
def matrix(session: nox.Session) -> None:
    """Print the suite as a CI matrix, balanced by length; `-- --changed-since REF` for what changed."""
    run_verb(session, "matrix")


@nox.session
def build_x86(session: nox.Session) -> None:
    """Build ExecuTorch's QNN adaptors, backend and runner from source."""
    run_verb(session, "build_x86")


@nox.session
def build_android(session: nox.Session) -> None:
    """Build the backend and the runner for Android from source."""
    run_verb(session, "build_android")


@nox.session
def build_linux_arm64(session: nox.Session) -> None:
    """Build the backend and the runner for embedded Linux from source."""
    run_verb(session, "build_linux_arm64")


@nox.session
def bundle(session: nox.Session) -> None:
    """Gather the exact files that a device needs, checked as one."""
    run_verb(session, "bundle")


@nox.session
def run_device(session: nox.Session) -> None:
    """Push a bundle to a device, run it and fetch its output."""
    run_verb(session, "run_device")


@nox.session
def test_delegate(session: nox.Session) -> None:
    """Run ExecuTorch's own delegate suite on the HTP emulator."""
    run_verb(session, "test_delegate")


@nox.session
def test_upstream(session: nox.Session) -> None:
    """Run ExecuTorch's other own suites on the HTP emulator: operators in every scheme, passes, models."""
    run_verb(session, "test_upstream")


@nox.session
def test_onnx(session: nox.Session) -> None:
    """Run the ONNX suite on the HTP emulator, through ONNX Runtime's QNN provider."""
    run_verb(session, "test_onnx")


@nox.session
def test_llm(session: nox.Session) -> None:
    """Let language models speak on the HTP emulator, and hold them to the float model."""
    run_verb(session, "test_llm")


@nox.session
def buck_parity(session: nox.Session) -> None:
    """Check that ExecuTorch's Buck and CMake files build the same; `-- --fix` corrects Buck's."""
    run_verb(session, "buck_parity")


@nox.session
def compat(session: nox.Session) -> None:
    """Measure which QNN builds this executorch can drive."""
    run_verb(session, "compat")


@nox.session
def compare(session: nox.Session) -> None:
    """Compare one suite on several QNN builds, program by program."""
    run_verb(session, "compare")


@nox.session
def test_golden(session: nox.Session) -> None:
    """Run programs of earlier QNN builds on later ones."""
    run_verb(session, "test_golden")


@nox.session
def sign_lpai(session: nox.Session) -> None:
    """Sign the Hexagon libraries that LPAI needs."""
    run_verb(session, "sign_lpai")


@nox.session
def signing(session: nox.Session) -> None:
    """Inspect or verify the signatures of Hexagon libraries."""
    run_verb(session, "signing")


@nox.session
def inspect(session: nox.Session) -> None:
    """Say what is inside a program, and whether a runtime loads it."""
    run_verb(session, "inspect")


@nox.session
def diagnose(session: nox.Session) -> None:
    """Explain failures of QNN, FastRPC, the loader and ExecuTorch: `-- LOG` or `-- 14001`."""
    run_verb(session, "diagnose")


@nox.session
def compile(session: nox.Session) -> None:
    """Compile one model, run it on the HTP emulator and compare: `-- --help`."""
    run_verb(session, "compile")


@nox.session
def quantize(session: nox.Session) -> None:
    """Quantize one model: an .onnx with QDQ nodes, or a quantized .pt2."""
    run_verb(session, "quantize")


@nox.session
def onnx(session: nox.Session) -> None:
    """Compile and run ONNX models with ONNX Runtime's QNN provider: `-- compile --help`."""
    run_verb(session, "onnx")


@nox.session
def audit(session: nox.Session) -> None:
    """Say what of a model HTP takes at each precision, and what stays on the CPU, why and at what cost."""
    run_verb(session, "audit")


@nox.session
def profile(session: nox.Session) -> None:
    """Say what each operator and line of a program takes on the HTP emulator."""
    run_verb(session, "profile")


@nox.session
def divergence(session: nox.Session) -> None:
    """Say at which operator the HTP emulator first differs from the quantized model."""
    run_verb(session, "divergence")


@nox.session(name="save-calls")
def save_calls(session: nox.Session) -> None:
    """Write QNN's calls for a model as C, to reproduce a bug with Qualcomm."""
    run_verb(session, "save-calls")


@nox.session(name="to-dlc")
def to_dlc(session: nox.Session) -> None:
    """Write the QNN graph of a model as a DLC."""
    run_verb(session, "to-dlc")


@nox.session(name="wrap-context")
def wrap_context(session: nox.Session) -> None:
    """Make an ExecuTorch program of a QNN context binary."""
    run_verb(session, "wrap-context")


@nox.session
def llm(session: nox.Session) -> None:
    """Compile a Hugging Face checkpoint for Genie, and let it speak: `-- compile --help`."""
    run_verb(session, "llm")


@nox.session
def report(session: nox.Session) -> None:
    """Render reports/ as a table, JUnit, SARIF, a job summary or a page."""
    run_verb(session, "report")


# The project's own upkeep


@nox.session
def lock(session: nox.Session) -> None:
    """Fill in hashes that manifests lack and regenerate every lock file."""
    run_verb(session, "lock")


@nox.session
def generate(session: nox.Session) -> None:
    """Regenerate the committed schemas and catalogues."""
    run_verb(session, "generate")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, generated files and the tree's hygiene."""
    run_verb(session, "lint")


@nox.session
def github(session: nox.Session) -> None:
    """Do a part of a GitHub workflow: `-- --help` names them."""
    run_verb(session, "github")


@nox.session
def pins(session: nox.Session) -> None:
    """Hand newer pins to the job that proposes them, as a patch that is judged."""
    run_verb(session, "pins")


@nox.session
def rehearse(session: nox.Session) -> None:
    """Run a GitHub workflow on this machine: `-- pr`."""
    run_verb(session, "rehearse")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on every core; `-- tests/unit` for the quick ones, `-- -n0` one at a time."""
    # Files in the order of their names: the long ones of tests/integration first, the short ones last, so
    # that all cores are done at about the same time.
    spread = ("-n", "auto", "--dist", "loadfile", "--no-loadscope-reorder")
    run(session, "tests", "-m", "pytest", *spread)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure performance claims as ratios, side by side; `-- --list` names them."""
    run_verb(session, "bench")


def run_verb(session: nox.Session, verb: str) -> None:
    package, environment = program_of(verb, session.posargs)
    run(session, environment, "-m", package, verb)


WITH_BYTECODE = {"PYTHONDONTWRITEBYTECODE": None}
"""Tests start Python some hundred times, and each would compile torch anew."""


def run(session: nox.Session, environment: str, *command: str) -> None:
    signal.signal(signal.SIGTERM, _pass_on)
    # An interrupted stage ends its children and writes its report. nox itself waits only half a second.
    session.run(
        interpreter(session, environment),
        *command,
        *session.posargs,
        external=True,
        env=_started_in(session) if command[1] != "pytest" else WITH_BYTECODE,
        interrupt_timeout=15,
        terminate_timeout=20,
    )


def _pass_on(number: int, _frame: FrameType | None) -> NoReturn:
    """Without this, nox ends at once and leaves its children running."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for child in _read(children).split():
        os.kill(int(child), number)
    raise KeyboardInterrupt


def _started_in(session: nox.Session) -> dict[str, str | None]:
    """nox went to this file's folder; relative paths among the arguments count from where its user is."""
    started_in = session.invoked_from
    # For suites with packages of their own: the locked environments have no uv.
    variables: dict[str, str | None] = {"QNN_CI_UV": os.environ.get("QNN_CI_UV") or uv_program()}
    return variables if Path(started_in) == Path.cwd() else {**variables, "QNN_CI_STARTED_IN": started_in}


def interpreter(session: nox.Session, environment: str) -> str:
    """The Python of a locked environment, made or rebuilt first if it is not exactly its lock."""
    try:
        return PythonEnvironments(session.cache_dir.parent, session.log).interpreter(environment)
    except ToolkitError as error:
        session.error(f"{error.message}: {error.remedy}" if error.remedy else error.message)


def _read(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""
