"""A release of this repository, made in a clone by one command, and installed by its README's line."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.lint import tracked_files
from provisioning.base.settings import ROOT, project
from tests.support.repositories import IDENTITY, repository
from tests.support.scripts import locked_environment, script

pytestmark = pytest.mark.journey


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files as they are here, committed; with this Python in place of each environment."""
    root = tmp_path / "somebody" / "nets"
    for path in tracked_files(ROOT):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy, follow_symlinks=False)
    for name in ("lint", "tools"):
        locked_environment(tmp_path / "environments", name)
    for name in [name for name in os.environ if name.startswith(("QNN_CI_", "GITHUB_"))]:
        monkeypatch.delenv(name)
    settings = dict(word.split("=") for word in IDENTITY if "=" in word)
    variables = {
        "GIT_CONFIG_COUNT": str(len(settings)),
        **{f"GIT_CONFIG_KEY_{number}": name for number, name in enumerate(settings)},
        **{f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(settings.values())},
        "QNN_CI_ENVIRONMENTS": str(tmp_path / "environments"),
        "UV_TOOL_DIR": str(tmp_path / "tools"),
        "UV_TOOL_BIN_DIR": str(tmp_path / "bin"),
        "UV_PYTHON": sys.executable,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return repository(root, {})


def typed(folder: Path, command: str, code: int = 0) -> str:
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def test_one_command_releases_a_clone_and_the_readmes_line_installs_it(clone: Path, tmp_path: Path) -> None:
    release = f"release file://{clone}"
    killing = 'test "$1" = update-ref && kill -9 $PPID && exit 9; PATH=${PATH#*:}; exec git "$@"'
    stand_in = script(tmp_path / "killing" / "git", killing)
    before = typed(clone, "git for-each-ref && git status --porcelain")
    typed(clone, f'PATH={shlex.quote(str(stand_in.parent))}:"$PATH" python -m lab {release}', code=137)
    assert typed(clone, "git for-each-ref && git status --porcelain") == before
    told = typed(clone, f"python -m nox -s lab -- {release}")
    typed(clone, f"python -m lab {release}", code=2)
    version = project().version
    merge = re.search(r"git merge \S+ \S+", told)
    assert merge, told
    typed(clone, f"{merge[0]} && cd dist/release && sha256sum --check --strict SHA256SUMS")
    # Each command of the released pages still has a proof.
    typed(clone, "python -m pytest -q -p no:cacheprovider tests/unit/test_journeys.py -k 'row or promises'")
    readme = (clone / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\$ (uv tool install \S+)", readme, re.MULTILINE)
    assert line.endswith(f"@v{version}")
    home = tmp_path / "home"
    home.mkdir()
    typed(home, line)
    qnn_ci = shlex.quote(str(tmp_path / "bin" / "qnn-ci"))
    typed(home, f"{qnn_ci} example")
    assert (home / "net.py").is_file()
    assert typed(home, f"{qnn_ci} --version") == f"qnn-ci {version}\n"
