"""Packages of the system are installed where they are not there, and only then."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.github import packages
from provisioning.base.errors import EnvironmentLacking, UsageError
from tests.support.scripts import script

Machine = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with these programs alone, which write down how they were called, and the package `here`."""

    def machine_with(*, root: bool, programs: tuple[str, ...] = ("dpkg-query", "apt-get")) -> Path:
        log = tmp_path / "log"
        scripts = {
            "dpkg-query": """case "$*" in
                '--show --showformat=${db:Status-Status} here') printf installed ;;
                '--show --showformat=${db:Status-Status} removed') printf config-files ;;
                *) echo "no packages found" >&2; exit 1 ;;
                esac""",
            "apt-get": f'echo "$DEBIAN_FRONTEND apt-get $*" >> {log}; exit 0',
            # Which leaves almost nothing of the environment, as sudo does.
            "sudo": f'echo "sudo $1" >> {log}; shift; exec env -i PATH="$PATH" "$@"',
        }
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "env").symlink_to("/usr/bin/env")
        for name in programs:
            script(folder / name, scripts[name])
        monkeypatch.setenv("PATH", str(folder))
        monkeypatch.setattr(os, "geteuid", lambda: 0 if root else 1000)
        return log

    return machine_with


def test_only_what_is_not_there_is_installed(machine: Machine) -> None:
    log = machine(root=True)
    assert packages.run({"QNN_CI_PACKAGES": "here absent removed"}) == 0
    assert log.read_text().splitlines() == [
        "noninteractive apt-get update --quiet",
        "noninteractive apt-get install --quiet --yes --no-install-recommends absent removed",
    ]


def test_a_user_who_is_not_root_asks_sudo_and_neither_it_nor_a_package_may_ask_back(machine: Machine) -> None:
    log = machine(root=False, programs=("dpkg-query", "apt-get", "sudo"))
    packages.run({"QNN_CI_PACKAGES": "absent"})
    assert log.read_text().splitlines()[:2] == [
        "sudo --non-interactive",
        "noninteractive apt-get update --quiet",
    ]


@pytest.mark.parametrize("programs", [(), ("dpkg-query", "apt-get")])
def test_a_machine_that_cannot_install_says_so(machine: Machine, programs: tuple[str, ...]) -> None:
    machine(root=False, programs=programs)
    with pytest.raises(EnvironmentLacking):
        packages.run({"QNN_CI_PACKAGES": "absent"})


def test_a_flag_is_no_package(machine: Machine) -> None:
    machine(root=True)
    with pytest.raises(UsageError):
        packages.run({"QNN_CI_PACKAGES": "-o=Debug::NoLocking=1"})
