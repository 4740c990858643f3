"""A session as nox runs it, with a stand-in for the Python of its environment."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from lab.lock.files import record_torch
from provisioning import python_environments
from provisioning.base import toml
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.settings import ROOT
from provisioning.python_environments import PythonEnvironments
from tests.support.scripts import locked_environment
from tests.support.wheels import make_wheel

UV = Path(sys.executable).with_name("uv")

STAND_IN = """\
import pathlib, signal, sys, time
here = pathlib.Path({here!r})
def tidy(number, frame):
    time.sleep(0.7)  # nox's own patience is 0.3
    (here / "tidied").touch()
    raise SystemExit(130)
signal.signal({listens_to}, tidy)
(here / "arguments").write_text(" ".join(sys.argv[1:]))
(here / "started").touch()
time.sleep(60)
"""


STARTED_BY = """\
import runpy, sys, types
sys.modules["nox"] = types.ModuleType("nox")
sys.version_info = {version}
runpy.run_path("noxfile.py")
"""


@pytest.mark.parametrize("version", [(3, 9), (3, 14)])
def test_a_python_that_we_have_no_packages_for_is_refused_before_anything_is_made(
    version: tuple[int, int],
) -> None:
    project = toml.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not SpecifierSet(project["requires-python"]).contains(".".join(map(str, version)))
    command = [sys.executable, "-c", STARTED_BY.format(version=version)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.parametrize(
    ("tell", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="both-by-a-terminal", marks=pytest.mark.whole),
        pytest.param(os.kill, signal.SIGTERM, id="only-nox-by-kill"),
    ],
)
def test_an_interrupted_session_has_time_to_tidy_up(
    tmp_path: Path, tell: Callable[[int, int], None], number: signal.Signals
) -> None:
    program = STAND_IN.format(here=str(tmp_path), listens_to=int(number))
    locked_environment(tmp_path, "executorch", program, sys.executable)
    process = subprocess.Popen(
        [sys.executable, "-m", "nox", "--", "--only", "validate"],
        cwd=ROOT,
        env={**os.environ, "QNN_CI_ENVIRONMENTS": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # A shell's background jobs are begun deaf to interrupts.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists():
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        tell(process.pid, number)
        assert process.wait(60) == 130
        assert (tmp_path / "tidied").exists()
        assert (tmp_path / "arguments").read_text() == "-m ci gate --only validate"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def printed(folder: Path, session: str, *words: str) -> str:
    """By a session of nox that is started in a folder with the environments."""
    nox = [sys.executable, "-m", "nox", "-f", str(ROOT / "noxfile.py"), "-s", session, "--", *words]
    environ = {**os.environ, "QNN_CI_ENVIRONMENTS": str(folder)}
    return subprocess.run(nox, cwd=folder, env=environ, capture_output=True, text=True, check=True).stdout


def test_a_relative_path_counts_from_where_nox_was_started(tmp_path: Path) -> None:
    locked_environment(tmp_path, "tools")
    assert printed(tmp_path, "store", "list", "--store", "mine") == f"no trees in {tmp_path / 'mine'}\n"


def test_the_users_folder_says_which_environment_a_model_needs(tmp_path: Path) -> None:
    (tmp_path / "Llama").mkdir()
    (tmp_path / "Llama" / "config.json").write_text("{}")
    for name in ("llm", "executorch"):
        locked_environment(tmp_path, name, f"echo {name}")
    assert printed(tmp_path, "compile", "Llama/", "-o", "out") == "llm\n"


class TestTorch:
    """A real index, pip and uv, and a torch of a few bytes."""

    WHEEL = "torch-2.13.0+cpu-py3-none-any.whl"
    PLAIN = "torch-2.13.0-py3-none-any.whl"

    @pytest.fixture
    def torch(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """Where recorded builds are; none of the machine's own settings apply."""
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("UV_NO_CACHE", "1")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        (tmp_path / "torch").mkdir()
        (tmp_path / "links").mkdir()
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
        subprocess.run([sys.executable, "-m", "virtualenv", "-q", tmp_path / "home"], check=True)
        return tmp_path / "torch"

    def offer(self, torch: Path, name: str, *, recorded: bool = True) -> None:
        content = make_wheel(name)
        (torch.parent / "links" / name).write_bytes(content)
        self.record(torch, name, hashlib.sha256(content).hexdigest() if recorded else "0" * 64)

    def record(self, torch: Path, name: str, digest: str) -> None:
        file = "cpu.txt" if "+cpu" in name else "index.txt"
        (torch / file).write_text(f"torch=={name.split('-')[1]} \\\n    --hash=sha256:{digest}\n")

    def install(self, torch: Path, installer: str = "uv") -> str:
        """The version installed, or the error."""
        uv = str(UV) if installer == "uv" else None
        home = torch.parent / "home"
        try:
            PythonEnvironments(home.parent, log=print, torch=torch).install_torch(home, "torch==2.13.0", uv)
        except EnvironmentLacking as error:
            assert not list(home.glob("lib/*/site-packages/torch*"))
            return f"{error.message}: {error.fix}"
        return next(home.glob("lib/*/site-packages/torch-*.dist-info")).name

    @pytest.mark.whole
    @pytest.mark.parametrize(("name", "installer"), [(WHEEL, "uv"), (PLAIN, "pip")])
    def test_a_recorded_build_is_installed(self, torch: Path, name: str, installer: str) -> None:
        for wheel in (self.WHEEL, self.PLAIN):
            self.record(torch, wheel, "0" * 64)
        self.offer(torch, name)
        assert self.install(torch, installer) == f"torch-{name.split('-')[1]}.dist-info"

    def test_another_build_is_refused_with_the_command_that_accepts_it(self, torch: Path) -> None:
        for name in (self.WHEEL, self.PLAIN):
            self.offer(torch, name, recorded=False)
        error = self.install(torch)
        assert "not on record" in error and "nox -s lock -- --torch" in error

    @pytest.mark.whole
    def test_the_command_records_what_the_users_index_has(self, torch: Path) -> None:
        self.record(torch, self.PLAIN, "0" * 64)
        self.offer(torch, self.WHEEL, recorded=False)
        record_torch("torch==2.13.0", torch)
        assert self.install(torch) == "torch-2.13.0+cpu.dist-info"


class TestMakingEnvironments:
    """A real pip and uv, and a locked environment of two packages of a few bytes."""

    WHEELS = ("torch-2.13.0+cpu-py3-none-any.whl", "mine-1.0-py3-none-any.whl")

    @pytest.fixture
    def links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """The folder of the wheels. There is no index, and no other wheel."""
        for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
            monkeypatch.delenv(name)
        settings = {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CACHE": "1", "PIP_NO_INDEX": "1"}
        settings |= {"PIP_FIND_LINKS": str(tmp_path / "links")}
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        for path in (tmp_path / "links", tmp_path / "locks", tmp_path / "torch"):
            path.mkdir(parents=True)
        for name, where in zip(self.WHEELS, ("torch/cpu.txt", "locks/small.txt"), strict=True):
            content = make_wheel(name)
            (tmp_path / "links" / name).write_bytes(content)
            package, version, *_ = name.split("-")
            hashed = f"{package}=={version} \\\n    --hash=sha256:{hashlib.sha256(content).hexdigest()}\n"
            (tmp_path / where).write_text(f"# torch: torch==2.13.0\n{hashed}")
        (tmp_path / "torch" / "index.txt").write_text((tmp_path / "torch" / "cpu.txt").read_text())
        return tmp_path / "links"

    def make(self, links: Path, uv: str | None) -> Path:
        """Where the environment's packages are."""
        home = links.parent
        environments = PythonEnvironments(home / "environments", print, home / "torch", home / "locks")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PythonEnvironments, "_uv_for", lambda *_: uv)
            python = Path(environments.interpreter("small"))
        return next(python.parents[1].glob("lib/python*/site-packages"))

    @pytest.mark.parametrize("uv", [str(UV), pytest.param(None, marks=pytest.mark.whole)], ids=["uv", "pip"])
    def test_an_environment_has_torch_and_what_is_locked(self, links: Path, uv: str | None) -> None:
        packages = self.make(links, uv)
        assert (packages / "mine").is_dir() and (packages / "torch").is_dir()

    @pytest.mark.whole
    def test_a_verb_in_another_environment_is_given_the_one_that_is_there(
        self, links: Path, tmp_path: Path
    ) -> None:
        other, made = tmp_path / "other", tmp_path / "environments" / "small"
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, other], check=True)
        self.make(links, str(UV))
        before = made.stat().st_ino
        code = """
            import sys
            from pathlib import Path
            from provisioning.python_environments import PythonEnvironments
            folders = [Path(sys.argv[1], name) for name in ("environments", "torch", "locks")]
            PythonEnvironments(folders[0], print, *folders[1:]).interpreter("small")
        """
        command = [str(other / "bin" / "python"), "-c", textwrap.dedent(code), str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        assert not done.stdout and made.stat().st_ino == before

    @pytest.mark.parametrize("uv", [str(UV), pytest.param(None, marks=pytest.mark.whole)], ids=["uv", "pip"])
    @pytest.mark.parametrize("name", WHEELS)
    def test_nothing_is_installed_of_a_changed_one(self, links: Path, name: str, uv: str | None) -> None:
        (links / name).write_bytes(make_wheel(name, more={"forged.py": "figure = 99"}))
        with pytest.raises(EnvironmentLacking):
            self.make(links, uv)
        assert not list(links.parent.glob("environments/**/forged.py"))

    @pytest.mark.parametrize("lock", sorted(path.stem for path in python_environments.LOCKS.glob("*.txt")))
    def test_no_requirement_of_a_lock_file_is_lost_as_it_is_read(self, lock: str) -> None:
        text = (ROOT / "manifests" / "locks" / f"{lock}.txt").read_text(encoding="utf-8")
        entries = python_environments.entries_in(text)
        hashes = sum(len(entry.hashes) for entry in entries)
        assert (len(entries), hashes) == (len(re.findall("(?m)^\\w", text)), text.count("--hash=sha256:"))
