"""The verb `lock` over manifests of our own, with real uv and a real server; and the committed locks."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from lab.__main__ import VERBS as LAB
from lab.lock.files import locked_environments
from lab.lock.hashes import add_source_keys
from provisioning import manifest
from provisioning.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.base.settings import MANIFESTS, store_path
from provisioning.lock_files import CUDA_ONLY, entries_in, lock_path
from provisioning.store import Store
from tests.support.http_server import FileServer
from tests.support.own_manifests import own_manifests
from tests.support.sdk_archives import PLACE, STRIP, sdk_zip
from tests.support.wheels import make_wheel


@dataclass
class User:
    manifests: Path
    capture: pytest.CaptureFixture[str]
    err: str = ""

    def locks(self, *words: str) -> int:
        return self.types("lock", *words)

    def types(self, *words: str) -> int:
        manifest.load_profile.cache_clear()
        code = main("python -m provisioning", "", VERBS | LAB, words)
        self.err = self.capture.readouterr().err
        return code


@pytest.fixture
def user(tmp_path: Path, own_places: None, capsys: pytest.CaptureFixture[str]) -> Iterator[User]:
    with own_manifests(tmp_path / "manifests") as manifests:
        (manifests / "locks").mkdir()
        yield User(manifests, capsys)


class TestStale:
    ENVIRONMENT = '[tools]\nmegabytes = 5\nrequires = ["filelock", "rich>=13"]\n'
    LOCK = (
        "# Written by `nox -s lock` from manifests/environments.toml; not to be edited.\n"
        "# inputs-sha256: 1d44ae4bc98cfe28ce70936dea4374561637ce5cb83a1cdee97087959b59bc35\n"
        "# input: filelock\n# input: rich>=13\n# room: 5 MB\n"
        "filelock==4.1 \\\n    --hash=sha256:bb\nrich==15.0 \\\n    --hash=sha256:aa\n"
    )

    @pytest.mark.parametrize(
        ("file", "old", "new", "says"),
        [
            ("environments.toml", "", "", ""),
            ("environments.toml", '"rich', '"isal>=1.7", "rich', "isal>=1.7"),
            ("environments.toml", '"filelock", ', "", "# input: filelock"),
            ("environments.toml", "= 5", "= 600", "# room: 600 MB"),
            ("environments.toml", "[tools]", "[tools]\n[other]", "other.txt: lacks"),
            ("locks/tools.txt", "rich==15.0", "rich==12.0", "rich>=13"),
            ("locks/tools.txt", " \\\n    --hash=sha256:bb", "", "filelock==4.1"),
            ("locks/tools.txt", "filelock==4.1 \\\n    --hash=sha256:bb\n", "", "filelock is required"),
            ("locks/tools.txt", "sha256: ", "sha256: 0", "# inputs-sha256: 0"),
            ("locks/tools.txt", "filelock==", "--index-url https://a.example\nfilelock==", "https://a.example"),
            ("locks/tools.txt", "rich==15.0", "rich @ https://a.example/rich.whl", "https://a.example"),
            ("locks/tools.txt", "filelock==", "<<<<<<< HEAD\nfilelock==", "<<<<<<< HEAD"),
            ("locks/tools.txt", "# room", "# torch: torch==2\n# room", "# torch: torch==2"),
            ("locks/old.txt", "", "", "old.txt: no environment of that name"),
        ],
    )  # fmt: skip
    def test_what_is_not_as_it_would_be_written_is_named(
        self, user: User, file: str, old: str, new: str, says: str
    ) -> None:
        (user.manifests / "environments.toml").write_text(self.ENVIRONMENT)
        (user.manifests / "locks/tools.txt").write_text(self.LOCK)
        (user.manifests / file).touch()
        text = (user.manifests / file).read_text()
        (user.manifests / file).write_text(text.replace(old, new, 1))
        assert user.locks("--check") == (1 if says else 0) and says in user.err


def test_a_pin_is_kept_while_it_fits_and_renewed_where_that_is_wanted(
    user: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "links")}
    for name, value in {**settings, "UV_NO_CACHE": "1"}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "links").mkdir()
    digests = {}
    for version in ("1.0", "2.0"):
        content = make_wheel(f"mine-{version}-py3-none-any.whl")
        digests[version] = hashlib.sha256(content).hexdigest()
        (tmp_path / f"links/mine-{version}-py3-none-any.whl").write_bytes(content)

    def pins() -> str:
        return (user.manifests / "locks/all.txt").read_text().partition("mine==")[2]

    environments = user.manifests / "environments.toml"
    environments.write_text('[base]\nabstract = true\nrequires = ["mine<2"]\n[all]\ninclude = ["base"]\n')
    assert user.locks() == 0 and pins() == f"1.0 \\\n    --hash=sha256:{digests['1.0']}\n"
    assert [path.name for path in (user.manifests / "locks").iterdir()] == ["all.txt"]
    environments.write_text('[all]\nrequires = ["mine>=1"]\n')
    assert user.locks() == 0 and pins().startswith("1.0 ")
    assert user.locks("--check") == 0
    assert user.locks("--upgrade", "mine") == 0 and digests["2.0"] in pins()
    environments.write_text('[all]\nrequires = ["mine>=3"]\n')
    assert user.locks() == 2


@pytest.mark.parametrize("name", locked_environments())
def test_a_committed_lock_has_each_package_once_for_each_python_and_nothing_of_cuda(name: str) -> None:
    pins = [Requirement(entry.line) for entry in entries_in(lock_path(name).read_text())]
    assert not [pin for pin in pins if CUDA_ONLY.fullmatch(pin.name) or pin.name == "torch"]
    for python in ("3.10", "3.13"):
        environment = {"python_version": python, "python_full_version": f"{python}.5"}
        environment["implementation_name"] = "cpython"
        names = [pin.name for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
        assert len(names) == len(set(names)) > 5


def test_the_committed_locks_are_fresh() -> None:
    assert main("python -m lab", "", LAB, ["lock", "--check"]) == 0


class TestComponents:
    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[FileServer]:
        with FileServer(sdk_zip(tmp_path / "sdk.zip")) as server:
            yield server

    @pytest.fixture
    def profile(self, user: User, server: FileServer) -> Path:
        """Of one SDK whose hash is not public."""
        rules = "\n".join(f"  {{ match = '{rule['match']}' }}," for rule in PLACE)
        file = user.manifests / "profiles/small.toml"
        file.write_text(
            'schema = 1\nname = "small"\nsummary = "One SDK."\n[packages]\n[host]\n'
            '[components.qnn-sdk]\nversion = "2.37.0.250724"\n'
            '[components.qnn-sdk.licence]\nid = "l"\ntitle = "L"\nurl = "https://example.com/l"\n'
            f'[[components.qnn-sdk.parts]]\nname = "sdk"\nplace = [\n{rules}\n]\n'
            f'[components.qnn-sdk.parts.source]\ntype = "archive"\nurl = "{server.url("/sdk.zip")}"\n'
            f'strip = "{STRIP}"\n'
        )
        return file

    def test_afterwards_it_is_provisioned_locked_without_another_download(
        self, user: User, server: FileServer, profile: Path
    ) -> None:
        user.locks("--component", "qnn-sdk", "--accept-licence", "l")
        requests_before = len(server.requests)
        assert user.types("provision", "--profile", "small") == 0
        assert len(server.requests) == requests_before

    def test_afterwards_each_file_of_an_installation_is_compared(
        self, user: User, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        user.locks("--component", "qnn-sdk", "--accept-licence", "l")
        (tree,) = Store(store_path(None)).trees()
        shutil.copytree(tree.root, own := tmp_path / "own", symlinks=True)
        rules = ("--profile", "small", "--rule", "official-files")
        monkeypatch.setenv("QNN_SDK_ROOT", str(own))
        assert user.types("validate", *rules) == 0
        header = own / "include/QNN/QnnTypes.h"
        header.chmod(0o644)
        header.write_bytes(header.read_bytes()[::-1])
        assert user.types("validate", *rules) == 1

    def test_afterwards_a_tree_is_proved_without_its_download(self, user: User, profile: Path) -> None:
        user.locks("--component", "qnn-sdk", "--accept-licence", "l")
        assert user.types("provision", "--profile", "small") == 0
        store, sdk = Store(store_path(None)), manifest.load_profile("small").pins["qnn-sdk"]
        tree = store.find("qnn-sdk", sdk, frozenset())
        assert tree is not None and store.against_pins(tree, sdk) == []
        (tree.root / "sdk.yaml").chmod(0o600)
        assert [wrong.path for wrong in store.against_pins(tree, sdk) or ()] == ["sdk.yaml"]

    def test_what_fails_its_identity_check_is_not_recorded(self, user: User, profile: Path) -> None:
        text = profile.read_text().replace('version = "2.37.0.250724"', 'version = "2.38.0"')
        profile.write_text(text)
        assert user.locks("--component", "qnn-sdk", "--accept-licence", "l") == 4
        assert profile.read_text() == text

    def test_a_recorded_hash_is_not_replaced(self, tmp_path: Path) -> None:
        path = Path(shutil.copy(MANIFESTS / "profiles" / "qnn-2.37.toml", tmp_path))
        keys: dict[str, str | int] = {"sha256": "ab" * 32, "size": 123}
        assert add_source_keys(path, "android-ndk", "ndk", keys) == path.read_text()

    @pytest.mark.parametrize(("part", "size"), [("x86-64", 90007642), ("aarch64", 77346612)])
    def test_the_right_one_of_two_parts_gets_them(self, tmp_path: Path, part: str, size: int) -> None:
        path = tmp_path / "wheels.toml"
        text = (MANIFESTS / "profiles" / "wheels.toml").read_text()
        path.write_text("".join(line for line in text.splitlines(keepends=True) if str(size) not in line))
        path.write_text(add_source_keys(path, "qnn-sdk", part, {"size": size}))
        assert path.read_text() == text
