"""update-pins.yml run where there is something newer: what it would propose, and nothing else.

It proposes to maintainers and no user starts it, so that its only test may be a nightly one.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provisioning.base.settings import MANIFESTS, ROOT
from tests.support.repositories import repository
from tests.support.workflows.run import run_workflow

pytestmark = pytest.mark.whole

NOXFILE = """
    import pathlib
    import sys

    import nox

    sys.path.insert(0, {toolkit!r})


    @nox.session(python=False)
    def lock(session):
        if session.posargs == ["--upgrade"]:
            lock = pathlib.Path("manifests/locks/lint.txt")
            lock.write_text(lock.read_text().replace("==1.0", "==1.1"))
            pathlib.Path("left-behind").touch()
        else:
            assert session.posargs == ["--torch"]


    @nox.session(python=False)
    def image(session):
        assert session.posargs == ["--lock", "--renew-base"]
        packages = pathlib.Path("manifests/image-packages.txt")
        packages.write_text(packages.read_text().replace("2.39", "2.40"))


    @nox.session(python=False)
    def compare(session):
        assert "==1.1" in pathlib.Path("manifests/locks/lint.txt").read_text()
        table = pathlib.Path("reports/compare/table.md")
        table.parent.mkdir(parents=True)
        table.write_text("| program | 2.51.0 | 2.50.40 |\\n")
        session.error("2.51.0 is worse at something")


    @nox.session(python=False)
    def pins(session):
        from ci.dev import pins

        what, *words = session.posargs
        root = pathlib.Path.cwd()
        if what == "releases":
            with open(words[0], "a") as page:
                page.write("| executorch | 1.5.1 | 1.6.0 |\\n")
        elif what == "messages":
            with open(words[0], "a") as page:
                page.write("QNN 2.51.0 against 2.50.40: 5 messages gained\\n")
            pathlib.Path(words[2]).write_text("{{}}")
        elif what == "write":
            pins.write(pathlib.Path(words[0]), root)
        else:
            folder, flag, text = words
            assert (what, flag) == ("apply", "--text")
            pins.apply(pathlib.Path(folder), root, pathlib.Path(text))
    """
"""In place of sessions that ask the package index and Debian."""

LOCK = f"ruff==1.0 \\\n    --hash=sha256:{'0' * 64}\n"


def test_the_pull_request_has_the_newer_locks_and_nothing_else_is_touched(tmp_path: Path) -> None:
    own = [*(ROOT / ".github").rglob("*.yml"), MANIFESTS / "locks" / "nox.txt"]
    files = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in own}
    files |= {"noxfile.py": NOXFILE.format(toolkit=str(ROOT)), "manifests/locks/lint.txt": LOCK}
    files |= {"manifests/image-packages.txt": f"# snapshot: 20261120T021110Z\ngit 1:2.39 {'0' * 64}\n"}
    root = repository(tmp_path / "small", files)
    proposed = run_workflow(tmp_path / "run", "update-pins", root, event="schedule")
    assert proposed.results() == {"compute": "success", "propose": "success"}, proposed.failures()
    assert proposed.lines == [
        "propose: would open the pull request 'Take newer versions of what the locks name'"
        " from the branch update-pins, with",
        "propose:    M manifests/image-packages.txt",
        "propose:    M manifests/locks/lint.txt",
    ]
    log = proposed.log("propose")
    assert "\n-ruff==1.0 \\\n+ruff==1.1 \\\n" in log and "body: | program | 2.51.0 | 2.50.40 |" in log
    for command, output in ((["status", "--porcelain"], ""), (["branch", "--all"], "* main\n")):
        done = subprocess.run(["git", *command], cwd=root, check=True, capture_output=True, text=True)
        assert done.stdout == output
