"""The real `wheels` profile, from an empty store, as the README's user has it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from provisioning.components import COMPONENT_VARIABLES
from provisioning.manifest import load_profile
from tests.support.typed import typed

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]


@dataclass
class User:
    home: Path

    def types(self, *argv: str, code: int = 0) -> str:
        environ = {
            k: v for k, v in os.environ.items() if k not in (*COMPONENT_VARIABLES.values(), "QNN_CI_SOC")
        }
        environ |= {"QNN_CI_STORE": str(self.home / "store"), "QNN_CI_REPORTS": str(self.home / "reports")}
        done = typed(*argv, package="provisioning", env=environ)
        assert done.returncode == code, done.stderr
        return done.stdout

    def root(self) -> Path:
        """Of the tree of everything."""
        return Path(json.loads(self.types("provision", "--json"))["components"][0]["where"])

    def downloaded(self) -> int:
        return sum(path.stat().st_size for path in (self.home / "store" / "downloads").iterdir())


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> tuple[User, list[int]]:
    """A user with a device's part for one SoC, then also that of a second SoC, and everything; and the bytes
    that each of these took."""
    user, fetched = User(tmp_path_factory.mktemp("user")), list[int]()
    device = ("--target", "aarch64-linux", "--soc", "SM8650")
    for selection in (device, (*device, "--soc", "SM8750"), ()):
        user.types("provision", *selection)
        fetched.append(user.downloaded() - sum(fetched))
    return user, fetched


def test_each_widening_fetches_only_what_was_never_fetched(fetched: tuple[User, list[int]]) -> None:
    parts = {part.name: part.source for part in load_profile("wheels").components["qnn-sdk"].parts}
    host, device, windows = (getattr(parts[name], "size", 0) for name in ("x86-64", "aarch64", "windows"))
    assert fetched[1] == [device, 0, host + windows]


def test_the_whole_tree_verifies(fetched: tuple[User, list[int]]) -> None:
    user = fetched[0]
    assert ": whole (" in user.types("store", "verify")
