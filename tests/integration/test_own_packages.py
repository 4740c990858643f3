"""Models whose packages are not in the lock: installed beside it, never against it."""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ci.models.own_packages import OwnPackages, install_packages
from ci.models.package_needs import Needs
from ci.models.uv_packages import locked_versions
from ci.suite.running import run_cached_step
from ci.suite.stage import packages_of
from ci.work.cached_steps import Step
from ci.work.child import closed_environment
from ci.work.digests import LOCKED
from ci.work.jobs import WorkOptions
from ci.work.outcome import Result
from ci.work.processes import Home
from provisioning.base.commands import Fix
from provisioning.base.errors import EnvironmentLacking, IntegrityError, UsageError
from provisioning.base.settings import Selection
from tests.support.importing_worker import ImportRequest
from tests.support.lowering_suites import run
from tests.support.repositories import write
from tests.support.toy_lane import ToyCase, ToyPlan, ToyProgram, ToyRun
from tests.support.wheels import SRC_PROJECT, make_wheel

WORKER = "tests.support.importing_worker"
SETUPTOOLS_PROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "mynet"
version = "1.0"
"""
PROJECT = {
    "pyproject.toml": SRC_PROJECT,
    "src/mynet/__init__.py": """\
        import torch
        from einops import rearrange


        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(16, 8)

            def forward(self, x):
                return self.linear(rearrange(x, "b c h w -> b (c h w)"))


        def net():
            return Net().eval(), (torch.rand(1, 4, 2, 2),)
        """,
    "ci/models.toml": """\
        schema = 2
        project = ".."

        [case.net]
        factory = "mynet:net"

        [[case.net.run]]
        lane = "executorch"
        precision = "8a8w"
        socs = ["SM8650"]
        """,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own") / "repository"
    write(root, PROJECT)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    return root


@pytest.mark.whole
@pytest.mark.heavy
def test_a_model_of_a_src_layout_with_packages_of_its_own_is_lowered_and_cached(root: Path) -> None:
    first = run("test_lowering", root, "--suite", root / "ci/models.toml")
    assert first.code == 0, first.out + first.err
    suite = str(root / "ci/models.toml")
    packages: Any = first.report.metrics["packages"]
    assert {name: list(package) for name, package in packages.items()} == {suite: ["einops"]}
    # Another clone has the result too, and each has its own project.
    other = root.parent / "clone"
    shutil.copytree(root, other, ignore=shutil.ignore_patterns("store", "reports", "*.egg-info"))
    assert run("test_lowering", root, "--suite", other / "ci/models.toml").cached() == {"net"}
    with (other / "src/mynet/__init__.py").open("a") as stream:
        stream.write("WIDTH = 8\n")
    assert run("test_lowering", root, "--suite", suite).cached() == {"net"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    shutil.rmtree(tmp_path / "store", ignore_errors=True)


def requirements(folder: Path, text: str) -> Needs:
    (folder / "requirements.txt").write_text(text)
    return Needs(folder / "requirements.txt")


def test_what_is_pinned_is_not_installed_again(tmp_path: Path, store: Path) -> None:
    own = install_packages(requirements(tmp_path, "numpy\ntorch\n"), store)
    assert own.versions == {}
    seen = subprocess.run(
        [own.python, "-c", "import numpy; print(numpy.__version__)"],
        env=dict(own.variables),
        capture_output=True,
        text=True,
        check=False,
    )
    assert seen.stdout.strip() == locked_versions()["numpy"], seen.stderr
    assert list(own.variables) == [LOCKED]


def test_what_needs_a_pinned_package_is_installed_alone_by_its_hash(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = "acme_ops-1.0-py3-none-any.whl"
    metadata = "Metadata-Version: 2.1\nName: acme-ops\nVersion: 1.0\nRequires-Dist: numpy\n"
    content = make_wheel(wheel, more={"acme_ops-1.0.dist-info/METADATA": metadata})
    (tmp_path / wheel).write_bytes(content)
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    own = install_packages(requirements(tmp_path, "acme-ops\n"), store)
    assert own.folder and own.versions == {"acme-ops": "1.0"}
    assert hashlib.sha256(content).hexdigest() in (own.folder.parent / "resolved.txt").read_text()


def test_an_edited_wheel_that_is_named_by_its_address_is_installed_anew(tmp_path: Path, store: Path) -> None:
    """`--with "acme-ops @ file:///…"` has the same text for other bytes."""
    wheel = tmp_path / "acme_ops-1.0-py3-none-any.whl"
    keys = []
    for text in ("X = 1\n", "X = 2\n"):
        wheel.write_bytes(make_wheel(wheel.name, more={"acme_ops/__init__.py": text}))
        own = install_packages(Needs(packages=(f"acme-ops @ file://{wheel}",)), store)
        assert own.folder
        (module,) = own.folder.glob("lib/python*/site-packages/acme_ops/__init__.py")
        assert module.read_text() == text
        keys.append(own.key())
    assert keys[0] != keys[1]


def test_a_package_that_no_index_has_is_a_wrong_name(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    with pytest.raises(UsageError, match="acme-opps") as refused:
        install_packages(requirements(tmp_path, "acme-opps\n"), store)
    assert "correct its name" in refused.value.fix
    # Its name may be right.
    assert "unset UV_NO_INDEX" in refused.value.fix


def test_bytes_that_do_not_have_the_authors_hash_are_not_installed(tmp_path: Path, store: Path) -> None:
    wrong = f"einops==0.8.1 --hash=sha256:{'0' * 64}\n"
    with pytest.raises(IntegrityError):
        install_packages(requirements(tmp_path, wrong), store)


@pytest.fixture
def indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A company's index beside the public one, which has a higher version under the same name."""
    for index, version in (("company", "1.0"), ("public", "99.0")):
        folder = tmp_path / "indexes" / index / "acme-ops"
        folder.mkdir(parents=True)
        wheel = f"acme_ops-{version}-py3-none-any.whl"
        (folder / wheel).write_bytes(make_wheel(wheel))
        (folder / "index.html").write_text(f'<a href="{wheel}">{wheel}</a>')
    for name in (
        "PIP_CONFIG_FILE",
        "PIP_FIND_LINKS",
        "PIP_NO_INDEX",
        "PIP_EXTRA_INDEX_URL",
        "UV_INDEX_STRATEGY",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "indexes"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("PIP_INDEX_URL", f"{place}/public/")
        monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"{place}/company/")
        yield
        server.shutdown()


@pytest.mark.usefixtures("indexes")
def test_a_private_package_is_not_replaced_by_a_higher_version_in_a_public_index(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = install_packages(requirements(tmp_path, "acme-ops\n"), store)
    assert own.versions == {"acme-ops": "1.0"}
    with pytest.raises(UsageError, match="acme-ops") as refused:
        install_packages(requirements(tmp_path, "acme-ops>=2\n"), store)
    assert "UV_INDEX_STRATEGY" in refused.value.fix
    monkeypatch.setenv("UV_INDEX_STRATEGY", "unsafe-best-match")
    asked = install_packages(requirements(tmp_path, "acme-ops>0\n"), store)
    assert asked.versions == {"acme-ops": "99.0"}


@pytest.mark.usefixtures("indexes")
def test_a_package_whose_address_is_named_is_held_to_no_index(tmp_path: Path, store: Path) -> None:
    address = f"{os.environ['PIP_INDEX_URL']}acme-ops/acme_ops-99.0-py3-none-any.whl"
    assert "acme-ops" in install_packages(requirements(tmp_path, f"acme-ops @ {address}\n"), store).versions


@pytest.mark.parametrize("line", ["-e .", "./net", "/opt/net", "net @ file:///opt/net", "--editable=../x"])
def test_a_path_whose_changes_nobody_would_see_is_refused(tmp_path: Path, store: Path, line: str) -> None:
    with pytest.raises(UsageError):
        install_packages(requirements(tmp_path, f"einops\n{line}\n"), store)


def test_a_build_that_fails_is_told_by_its_own_last_line(tmp_path: Path, store: Path) -> None:
    project = tmp_path / "project"
    write(project, {"pyproject.toml": SETUPTOOLS_PROJECT, "setup.py": "raise RuntimeError('no Fortran')\n"})
    with pytest.raises(EnvironmentLacking) as error:
        install_packages(Needs(project=project), store)
    assert error.value.message.endswith("RuntimeError: no Fortran")
    assert error.value.fix.endswith(str(project))


@pytest.mark.whole
def test_what_a_build_reads_is_seen_and_an_error_does_not_outlive_its_cause(
    tmp_path: Path, store: Path
) -> None:
    project = tmp_path / "project"
    named = '[tool.setuptools.dynamic]\n    dependencies = { file = ["needs/all.lst"] }\n'
    text = (
        SRC_PROJECT.replace('dependencies = ["einops>=0.7"]', 'dynamic = ["dependencies"]') + f"    {named}"
    )
    write(project, {"pyproject.toml": text, "src/mynet/__init__.py": ""})
    versions: list[list[str]] = []
    for text in ("numpy<2\n", "einops\n", "\n"):
        write(project, {"needs/all.lst": text})
        if "<" in text:
            with pytest.raises(UsageError):
                install_packages(Needs(project=project), store)
        else:
            versions.append(list(install_packages(Needs(project=project), store).versions))
    assert versions == [["einops"], []]
    # An unchanged project is not installed again.
    first, again = (install_packages(Needs(project=project), store).folder for _ in range(2))
    assert first == again
    # What is in use stays when another project's packages are installed, however old it is.
    packages = store / "cache" / "packages"
    for stamp in (*packages.glob("*/resolved.txt"), *packages.glob("*.json")):
        os.utime(stamp, (0, 0))
    install_packages(Needs(project=project), store)
    shutil.copytree(project, tmp_path / "other")
    install_packages(Needs(project=tmp_path / "other"), store)
    assert install_packages(Needs(project=project), store).folder == first
    assert len(list(packages.glob("*/resolved.txt"))) == 2


def test_a_model_that_lacks_a_package_gets_its_projects_or_is_told_what_the_user_has(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only where an import failed; the next step of the same model has the packages at once."""
    write(root, {"pyproject.toml": SRC_PROJECT.replace('"einops>=0.7"', '"einops>=0.7", "torch==2.1.0"')})
    alone = Needs(model=root / "src", takes_nearest=True)
    assert imported("einops", alone, tmp_path).failure is None
    printed = capsys.readouterr().err
    assert str(root) in printed and "torch==2.1.0 does not count" in printed
    assert imported("einops", alone, tmp_path).failure is None
    assert str(root) not in capsys.readouterr().err

    left = imported("einops", replace(alone, takes_nearest=False), tmp_path).failure
    assert left and left.fix == "--with einops, if that is its package"
    site = tmp_path / "active" / "lib" / "python3.12" / "site-packages" / "einops-0.8.1.dist-info"
    record = "einops/__init__.py,,\neinops-0.8.1.dist-info/METADATA,,\n"
    write(site, {"METADATA": "Metadata-Version: 2.1\nName: einops\nVersion: 0.8.1\n", "RECORD": record})
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "active"))
    told = imported("einops", replace(alone, takes_nearest=False), tmp_path).failure
    assert told and isinstance(told.fix, Fix) and told.fix.flags == ("--with", "einops==0.8.1")


def imported(module: str, needs: Needs, folder: Path) -> Result:
    """By a worker with these packages."""
    selection = Selection("wheels", "x86_64-linux", "SM8650", folder / "store", folder / "reports")
    run = ToyRun(width=1, socs=("SM8650",))
    program = ToyProgram(folder / "toy.toml", "net", ToyCase(run=(run,)), run, "SM8650", needs=needs)
    packages = packages_of([program], selection.store)
    plan = ToyPlan((program,), selection, WorkOptions(cache=False), folder / "logs", packages)

    def home(own: OwnPackages) -> Home:
        variables = {**closed_environment(os.environ), **own.variables}
        return Home(variables, plan.logs, f"{WORKER}:prepare", "nothing", "", own.python)

    request = ImportRequest(module)
    step: Step[ToyProgram] = Step(
        plan=plan,
        kind="import",
        title="imports",
        function=f"{WORKER}:imported",
        home=home,
        request=lambda _: request,
    )
    return run_cached_step(step, [program])[program.name]
