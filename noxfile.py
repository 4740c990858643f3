"""The sessions: what each installs and which one command it runs. `nox -l` lists them."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import nox

if sys.version_info >= (3, 11):
    pass
else:
    pass

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True
nox.options.sessions = ["gate"]

ROOT = Path(__file__).parent
LOCKS = ROOT / "manifests" / "locks"


def environment(name: str) -> dict[str, object]:
    """Sessions of one environment share one virtual environment."""
    return {"venv_location": str(Path(".nox") / name), "tags": [name]}


def install(session: nox.Session, name: str) -> None:
    """Install the locked environment, unless the virtual environment already holds exactly it."""
    lock = LOCKS / f"{name}.txt"
    text = lock.read_text(encoding="utf-8")
    stamp = Path(session.virtualenv.location) / "qnn-ci.lock"
    wanted = hashlib.sha256(text.encode()).hexdigest()
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    stamp.unlink(missing_ok=True)
    torch = [line.removeprefix("# torch: ") for line in text.splitlines() if line.startswith("# torch: ")]
    for requirement in torch:
        install_torch(session, requirement)
    session.install("--require-hashes", "--no-deps", "-r", str(lock))
    stamp.write_text(wanted, encoding="utf-8")


def install_torch(session: nox.Session, requirement: str) -> None:
    """The CPU build: from the user's own index or links, else from where uv knows it, else what there is."""
    if _can_install(session, "-m", "pip", "install", "--no-deps", f"{requirement}+cpu"):
        return
    session.install("uv")
    if _can_install(session, "-m", "uv", "pip", "install", "--no-deps", "--torch-backend=cpu", requirement):
        return
    session.warn("no CPU build of torch was found: installing the index's own, which may be several GB")
    session.install(requirement)


def python(session: nox.Session, env: str, *command: str) -> None:
    install(session, env)
    session.run("python", *command, *session.posargs)
