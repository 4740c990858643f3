from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from provisioning import pip_settings
from provisioning.base.settings import ROOT

NO_FILES = {"PIP_CONFIG_FILE": "/dev/null"}
STRATEGY = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize(
    ("pip", "uv"),
    [
        ({"PIP_INDEX_URL": "https://a/simple"}, {"UV_DEFAULT_INDEX": "https://a/simple"}),
        ({"PIP_EXTRA_INDEX_URL": "https://b https://c"}, {"UV_INDEX": "https://b https://c"}),
        ({"PIP_FIND_LINKS": "/srv/a /srv/b"}, {"UV_FIND_LINKS": "/srv/a,/srv/b"}),
        (
            {"PIP_CERT": "/ca.pem", "PIP_PROXY": "http://p:1"},
            {"SSL_CERT_FILE": "/ca.pem", "ALL_PROXY": "http://p:1"},
        ),
        ({"PIP_INDEX_URL": ""}, {}),
        ({"PIP_INDEX_URL": "https://a", "UV_INDEX_URL": "https://own"}, {}),
        ({"PIP_FIND_LINKS": "/srv/a", "UV_FIND_LINKS": "/own"}, {}),
    ],
)
def test_what_is_set_for_pip_reaches_uv_unless_uv_has_its_own(
    pip: dict[str, str], uv: dict[str, str]
) -> None:
    assert pip_settings.uv_variables({**NO_FILES, **pip}) == {**uv, **STRATEGY}


def test_folders_of_this_machine_stay_out_of_lock_files_unless_there_is_no_index() -> None:
    links = {**NO_FILES, "PIP_FIND_LINKS": "/srv/a https://links/"}
    assert pip_settings.uv_variables(links, portable=True)["UV_FIND_LINKS"] == "https://links/"
    alone = {**links, "PIP_NO_INDEX": "1"}
    assert pip_settings.uv_variables(alone, portable=True)["UV_FIND_LINKS"] == "/srv/a,https://links/"
    assert (pip_settings.uv_flags(links), pip_settings.uv_flags(alone)) == ([], ["--no-index"])


@pytest.mark.parametrize(
    ("files", "named", "expected"),
    [
        ({".config/pip/pip.conf": "user", ".pip/pip.conf": "legacy"}, "", "user"),
        ({".config/pip/pip.conf": "user", "own.conf": "named"}, "own.conf", "named"),
        ({".config/pip/pip.conf": "user"}, "missing.conf", "user"),
    ],
)
def test_files_are_read_as_pip_reads_them(
    files: dict[str, str], named: str, expected: str | None, tmp_path: Path
) -> None:
    for name, index in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"[global]\nindex-url = https://{index}\n")
    environ = {"HOME": str(tmp_path)}
    if named:
        environ["PIP_CONFIG_FILE"] = str(tmp_path / named)
    index_url = pip_settings.read(environ).get("index-url")
    assert index_url == (f"https://{expected}" if expected else None)
    # pip itself agrees.
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == (index_url or "")


def test_a_files_credentials_are_those_of_its_index_and_of_no_other_host() -> None:
    environ = {**NO_FILES, "PIP_EXTRA_INDEX_URL": "https://me:pw@mine/simple"}
    assert pip_settings.add_credentials("https://mine/f.whl", environ) == "https://me:pw@mine/f.whl"
    for other in ("https://elsewhere/f.whl", "http://mine/f.whl"):
        assert pip_settings.add_credentials(other, environ) == other


def test_making_an_environment_needs_no_package() -> None:
    """noxfile.py and `qnn-ci` import these where only nox or uv, and filelock, are installed."""
    code = "import qnn_ci.command, lab.__main__, provisioning.python_environments"
    subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
        check=True,
    )


def test_what_is_set_for_uv_alone_reaches_pip() -> None:
    uv = {**NO_FILES, "UV_INDEX_URL": "https://a", "UV_FIND_LINKS": "/srv/a,/srv/b"}
    assert pip_settings.pip_variables(uv) == {"PIP_INDEX_URL": "https://a", "PIP_FIND_LINKS": "/srv/a /srv/b"}
    assert pip_settings.pip_variables({**uv, "PIP_INDEX_URL": "https://b"}) == {}
