"""The sessions: which environment each runs in and which one command it runs. `nox -l` lists them.

Arguments after `--` go to that command: `nox -s validate -- --help`.
Sessions share a few locked environments (manifests/locks/) under .nox/, built once and again when their
lock changes, so the sessions themselves have none of their own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

import nox
from filelock import FileLock

ROOT = Path(__file__).parent
sys.path.insert(0, str(ROOT))
from provisioning import pip_settings  # noqa: E402  (needs nothing but Python)

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["gate"]

LOCKS = ROOT / "manifests" / "locks"
TORCH = ROOT / "manifests" / "torch"

IN_IMAGE = os.environ.get("QNN_CI_ENVIRONMENTS", "")
"""In our images: the folder with environments that are there already, each beside its lock."""

os.environ.setdefault("QNN_CI_RUN", f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}")
"""The sessions of one call of nox are one run: reports of another run are not compared with theirs."""


# The gate, and what it is made of


@nox.session
def gate(session: nox.Session) -> None:
    """Run the stages that decide a pull request, and their summary (the default)."""
    run(session, "executorch", "-m", "ci", "gate")


@nox.session
def provision(session: nox.Session) -> None:
    """Fetch, verify and unpack the profile's components."""
    run(session, "tools", "-m", "provisioning", "provision")


@nox.session
def validate(session: nox.Session) -> None:
    """Tell whether an environment can do its work."""
    run(session, "executorch", "-m", "provisioning", "validate")


@nox.session
def env(session: nox.Session) -> None:
    """Print the environment of a target: sh, dotenv, github, json or docker."""
    run(session, "tools", "-m", "provisioning", "env")


@nox.session
def shell(session: nox.Session) -> None:
    """Open a shell, or run a command, in the environment of a target, or with --image in a container."""
    if session.posargs and session.posargs[0].startswith("--image"):
        run(session, "tools", "-m", "ci", "shell")
    else:
        run(session, "executorch", "-m", "provisioning", "shell")


@nox.session
def image(session: nox.Session) -> None:
    """Build a container image, or prove that it can be built again."""
    run(session, "tools", "-m", "ci", "image")


@nox.session
def store(session: nox.Session) -> None:
    """List, verify, repair or prune the store."""
    run(session, "tools", "-m", "provisioning", "store")


# Building and running


@nox.session
def build_runner(session: nox.Session) -> None:
    """Build qnn_executor_runner against the executorch wheel."""
    run(session, "executorch", "-m", "ci", "build_runner")


@nox.session
def test_lowering(session: nox.Session) -> None:
    """Lower the suite's models to the HTP, audit what was delegated and what it costs."""
    run(session, "executorch", "-m", "ci", "test_lowering")


@nox.session
def test_emulator(session: nox.Session) -> None:
    """Run the suite's programs on the HTP emulator and compare with PyTorch."""
    run(session, "executorch", "-m", "ci", "test_emulator")


@nox.session
def matrix(session: nox.Session) -> None:
    """Print the suite as a CI matrix, balanced by length; `-- --changed-since REF` for what changed."""
    run(session, "tools", "-m", "ci", "matrix")


@nox.session
def build_x86(session: nox.Session) -> None:
    """Build ExecuTorch's QNN adaptors, backend and runner from source."""
    run(session, "executorch", "-m", "ci", "build_x86")


@nox.session
def build_android(session: nox.Session) -> None:
    """Build the backend and the runner for Android from source."""
    run(session, "executorch", "-m", "ci", "build_android")


@nox.session
def build_linux_arm64(session: nox.Session) -> None:
    """Build the backend and the runner for embedded Linux from source."""
    run(session, "executorch", "-m", "ci", "build_linux_arm64")


@nox.session
def bundle(session: nox.Session) -> None:
    """Gather the exact files that a device needs, checked as one."""
    run(session, "tools", "-m", "ci", "bundle")


@nox.session
def run_device(session: nox.Session) -> None:
    """Push a bundle to a device, run it and fetch its output."""
    run(session, "tools", "-m", "ci", "run_device")


@nox.session
def test_delegate(session: nox.Session) -> None:
    """Run ExecuTorch's own delegate suite on the HTP emulator."""
    run(session, "executorch", "-m", "ci", "test_delegate")


@nox.session
def test_onnx(session: nox.Session) -> None:
    """Run the ONNX suite on the HTP emulator, through ONNX Runtime's QNN provider."""
    run(session, "onnx", "-m", "ci", "test_onnx")


@nox.session
def buck_parity(session: nox.Session) -> None:
    """Check that ExecuTorch's Buck and CMake files build the same; `-- --fix` corrects Buck's."""
    run(session, "tools", "-m", "ci", "buck_parity")


@nox.session
def compat(session: nox.Session) -> None:
    """Measure which QNN builds this executorch can drive."""
    run(session, "executorch", "-m", "ci", "compat")


@nox.session
def compare(session: nox.Session) -> None:
    """Compare one suite on several QNN builds, program by program."""
    lane = "executorch" if "executorch" in " ".join(session.posargs).replace("=", " ").split() else "onnx"
    run(session, lane, "-m", "ci", "compare")


@nox.session
def test_golden(session: nox.Session) -> None:
    """Run programs of earlier QNN builds on later ones."""
    run(session, "onnx", "-m", "ci", "test_golden")


@nox.session
def sign_lpai(session: nox.Session) -> None:
    """Sign the Hexagon libraries that LPAI needs."""
    run(session, "tools", "-m", "ci", "sign_lpai")


@nox.session
def signing(session: nox.Session) -> None:
    """Inspect or verify the signatures of Hexagon libraries."""
    run(session, "tools", "-m", "ci", "signing")


@nox.session
def inspect(session: nox.Session) -> None:
    """Say what is inside a program, and whether a runtime loads it."""
    run(session, "tools", "-m", "ci", "inspect")


@nox.session
def diagnose(session: nox.Session) -> None:
    """Explain failures of QNN, FastRPC, the loader and ExecuTorch: `-- LOG` or `-- 14001`."""
    run(session, "tools", "-m", "ci", "diagnose")


@nox.session
def onnx(session: nox.Session) -> None:
    """Compile and run ONNX models with ONNX Runtime's QNN provider: `-- compile --help`."""
    run(session, "onnx", "-m", "ci", "onnx")


@nox.session(name="save-calls")
def save_calls(session: nox.Session) -> None:
    """Write QNN's calls for an ONNX model as C, to reproduce a bug with Qualcomm."""
    run(session, "onnx", "-m", "ci", "save-calls")


@nox.session(name="to-dlc")
def to_dlc(session: nox.Session) -> None:
    """Write the QNN graph of an ONNX model as a DLC."""
    run(session, "onnx", "-m", "ci", "to-dlc")


@nox.session(name="wrap-context")
def wrap_context(session: nox.Session) -> None:
    """Make an ExecuTorch program of a QNN context binary."""
    run(session, "executorch", "-m", "ci", "wrap-context")


@nox.session
def report(session: nox.Session) -> None:
    """Render reports/ as a table, JUnit, SARIF, a job summary or a page."""
    run(session, "tools", "-m", "ci", "report")


# The project's own upkeep


@nox.session
def lock(session: nox.Session) -> None:
    """Fill in hashes that manifests lack and regenerate every lock file."""
    run(session, "lint", "-m", "provisioning", "lock")


@nox.session
def generate(session: nox.Session) -> None:
    """Regenerate the committed schemas and catalogues."""
    run(session, "lint", "-m", "ci", "generate")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, generated files and the tree's hygiene."""
    run(session, "lint", "-m", "ci", "lint")


@nox.session
def github(session: nox.Session) -> None:
    """Do a part of a GitHub workflow: plan, place, setup, stage, verdict or release."""
    run(session, "tools", "-m", "ci", "github")


@nox.session
def rehearse(session: nox.Session) -> None:
    """Run a GitHub workflow on this machine: `-- pr`."""
    run(session, "lint", "-m", "ci", "rehearse")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests on every core; `-- tests/unit` for the quick ones, `-- -n0` one at a time."""
    run(session, "tests", "-m", "pytest", "-n", "auto", "--dist", "loadfile")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure performance claims as ratios, side by side; `-- --list` names them."""
    # ONNX Runtime's lane has packages of its own.
    run(session, "onnx" if session.posargs[:1] == ["onnx"] else "executorch", "-m", "ci", "bench")


def run(session: nox.Session, environment: str, *command: str) -> None:
    signal.signal(signal.SIGTERM, _pass_on)
    # An interrupted stage ends its children and writes its report. nox itself waits only half a second.
    session.run(
        interpreter(session, environment),
        *command,
        *session.posargs,
        external=True,
        env=_started_in(session) if command[1] != "pytest" else None,
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
    return {} if Path(started_in) == Path.cwd() else {"QNN_CI_STARTED_IN": started_in}


def interpreter(session: nox.Session, environment: str) -> str:
    """The Python of a locked environment, made or rebuilt first if it is not exactly its lock."""
    lock_file = LOCKS / f"{environment}.txt"
    text = lock_file.read_text(encoding="utf-8")
    if IN_IMAGE and _read(Path(IN_IMAGE, environment, "lock.txt")) == text:
        return str(Path(IN_IMAGE, environment, "bin", "python"))
    home = session.cache_dir.parent / environment
    python = home / "bin" / "python"
    wanted = hashlib.sha256(f"{sys.executable}\n{sys.version}\n{text}".encode()).hexdigest()
    stamp = home / "qnn-ci.stamp"
    if _read(stamp) == wanted:
        return str(python)
    with FileLock(f"{home}.lock"):
        if _read(stamp) != wanted:
            begun = time.monotonic()
            session.log(f"Making the {environment} environment in {home}, once for this lock file")
            # After a kill, the remains must not pass for the environment of an earlier lock file.
            stamp.unlink(missing_ok=True)
            shutil.rmtree(home, ignore_errors=True)
            _make(session, home)
            for line in text.splitlines():
                if line.startswith("# torch: "):
                    _install_torch(session, home, line.removeprefix("# torch: "))
            locked = ["--require-hashes", "--no-deps", "-r", str(lock_file)]
            session.run(*_installer(python), *locked, external=True, env=_settings())
            stamp.write_text(wanted, encoding="utf-8")
            session.log(f"The {environment} environment took {time.monotonic() - begun:.0f} s")
    return str(python)


def _read(stamp: Path) -> str:
    return stamp.read_text(encoding="utf-8") if stamp.is_file() else ""


def _make(session: nox.Session, home: Path) -> None:
    if sys.version_info < (3, 10):  # noqa: UP036  (nox itself runs on older ones)
        session.error(
            f"Python 3.10 or later is needed, this is {sys.version.split()[0]}: install nox with it"
        )
    uv = shutil.which("uv")
    maker = [uv, "venv", "--python", sys.executable] if uv else [sys.executable, "-m", "virtualenv"]
    session.run(*maker, "--quiet", str(home), external=True)


def _installer(python: Path) -> list[str]:
    if uv := shutil.which("uv"):
        return [*_uv_install(uv), "--python", str(python)]
    return [str(python), "-m", "pip", "install", "--quiet"]


def _uv_install(*uv: str) -> list[str]:
    return [*uv, "pip", "install", "--quiet", *pip_settings.uv_flags(os.environ)]


def _install_torch(session: nox.Session, home: Path, requirement: str) -> None:
    """The CPU build of the user's index, else of PyTorch's, else the index's own: only builds on record."""
    cpu, index = TORCH / "cpu.txt", TORCH / "index.txt"
    accept = "nox -s lock -- --torch"
    for recorded in (cpu, index):
        if not re.search(rf"^{re.escape(requirement)}(\+cpu)? ", _read(recorded), re.MULTILINE):
            session.error(f"{recorded} has no {requirement}; record the builds of your index: {accept}")
    python = home / "bin" / "python"
    output = ""
    for recorded, pytorchs in ((cpu, False), (cpu, True), (index, False)):
        if recorded == index:
            why = f"not on record: {accept}" if _differs(output) else "not to be had"
            session.warn(f"a CPU build of torch is {why}; trying the index's own, of several GB")
        command = _installer(python)
        if pytorchs:
            if pip_settings.no_index(os.environ):
                continue
            command = [*_uv(session), "--python", str(python), "--torch-backend=cpu"]
        command += ["--no-deps", "--require-hashes", "-r", str(recorded)]
        output += str(
            session.run(*command, external=True, env=_settings(), silent=True, success_codes=range(256))
        )
        if any(home.glob("lib/python*/site-packages/torch-*.dist-info")):
            return
    if _differs(output):
        session.error(
            f"your index has {requirement} in a build that is not on record in {TORCH}, so it was not "
            f"installed; if you trust your index, record it and start again: {accept}"
        )
    session.error(f"{requirement} could not be installed:\n{output}")


def _differs(output: str) -> bool:
    return re.search("hash mismatch|do not match the hashes", output, re.IGNORECASE) is not None


def _uv(session: nox.Session) -> list[str]:
    """The user's own uv, else that of the nox environment's lock."""
    uv = [found] if (found := shutil.which("uv")) else [interpreter(session, "nox"), "-m", "uv"]
    return _uv_install(*uv)


def _settings() -> dict[str, str | None]:
    return {**pip_settings.uv_variables(os.environ)}
