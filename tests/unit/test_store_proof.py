"""A store that a CI system's cache restored: what pins in git do not prove is made again, or refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.__main__ import VERBS as LAB
from provisioning.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.base.errors import EnvironmentLacking
from provisioning.base.files import TreeFile
from provisioning.base.findings import Report
from provisioning.manifest import Component
from provisioning.store import Store, Tree
from provisioning.store.inventory import differing_names, load_lists
from tests.support.http_server import FileServer
from tests.support.own_manifests import own_manifests, write_profile
from tests.support.sdk_archives import (
    BUILD_ID,
    PLACE,
    STRIP,
    VERSION,
    component,
    sdk_files,
    sdk_zip,
    write_zip,
)

HTP = "lib/x86_64-linux-clang/libQnnHtp.so"
SKEL = "lib/hexagon-v75/unsigned/libQnnHtpV75Skel.so"
NARROW, WIDE = frozenset({"x86_64-linux"}), frozenset({"x86_64-linux", "aarch64-android"})


@dataclass
class House:
    store: Store
    server: FileServer
    sdk: Component

    def provision(self, targets: frozenset[str] = WIDE, *, offline: bool = False) -> Tree:
        return self.store.provision("qnn-sdk", self.sdk, targets, offline=offline)

    def restore(self) -> None:
        """As a CI system's cache does."""
        copy = self.store.path.with_name(f"{self.store.path.name}-restored")
        shutil.copytree(self.store.path, copy, symlinks=True)
        self.store = Store(copy)

    def without_downloads(self) -> None:
        for path in self.store.downloads.iterdir():
            path.unlink()

    def repaired(self, *, offline: bool = False) -> set[str]:
        return {damage.path for damage in self.provision(offline=offline).repaired}


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    archive = sdk_zip(tmp_path / "sdk.zip")
    with FileServer(archive) as server:
        house = House(Store(tmp_path / "store"), server, component(server.url("/sdk.zip"), archive))
        house.provision()
        yield house


def overwrite(path: Path, content: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(0o444)


def damage(tree: Tree, place: str = HTP) -> None:
    content = bytearray((tree.root / place).read_bytes())
    content[100] ^= 1
    overwrite(tree.root / place, bytes(content))


def forge(store: Store, place: str = HTP) -> None:
    """Change a file and the inventory that vouches for it."""
    for tree in store.trees():
        damage(tree, place)
        inventory = json.loads(tree.inventory_path.read_text())
        for item in inventory["items"]:
            if item["path"] == place:
                item["sha256"] = hashlib.sha256((tree.root / place).read_bytes()).hexdigest()
        tree.inventory_path.write_text(json.dumps(inventory))
        (again,) = [other for other in store.trees() if other.root == tree.root]
        assert store.verify(again) == []


def is_true(tree: Tree) -> bool:
    return all((tree.root / place).read_bytes() == sdk_files()[place] for place in (HTP, SKEL))


def test_a_library_changed_with_its_inventory_is_made_again_from_the_kept_download(house: House) -> None:
    house.restore()
    forge(house.store)
    requests = len(house.server.requests)
    tree = house.provision(offline=True)
    assert is_true(tree) and house.store.verify(tree) == []
    assert len(house.server.requests) == requests


@pytest.mark.parametrize("restored", [True, False])
def test_one_damaged_bit_is_repaired_and_named(house: House, restored: bool) -> None:
    """Its size and mode are as before, also where it was made."""
    if restored:
        house.restore()
    damage(house.store.trees()[0])
    assert house.repaired() == {HTP}
    assert is_true(house.provision(offline=True))


def test_a_damaged_tree_that_nobody_proved_is_no_reason_to_trust_a_server(house: House) -> None:
    house.sdk = component(house.server.url("/sdk.zip"))
    house.store.provision("qnn-sdk", house.sdk, WIDE, trust_first_download=True)
    house.restore()
    for tree in house.store.trees():
        damage(tree)
    with pytest.raises(EnvironmentLacking, match="not locked"):
        house.provision()


@pytest.mark.parametrize("changed", [True, False])
def test_without_the_download_it_is_fetched_again(house: House, changed: bool) -> None:
    house.restore()
    house.without_downloads()
    if changed:
        forge(house.store)
    requests = len(house.server.requests)
    assert is_true(house.provision())
    assert len(house.server.requests) == requests + 1


def test_a_changed_download_proves_nothing(house: House) -> None:
    house.restore()
    forge(house.store)
    for path in house.store.downloads.iterdir():
        if path.is_file() and path.stat().st_size:
            overwrite(path, path.read_bytes()[:-1] + b"?")
    assert is_true(house.provision())


def test_what_cannot_be_proved_is_refused(house: House) -> None:
    house.restore()
    house.without_downloads()
    with pytest.raises(EnvironmentLacking, match="qnn-sdk"):
        house.provision(offline=True)
    house.server.paths = {"/sdk.zip": house.server.usual}
    assert house.provision()


def test_a_tree_is_proved_once_after_each_restore(house: House) -> None:
    house.without_downloads()
    house.provision(offline=True)
    requests = len(house.server.requests)
    house.restore()
    house.provision()
    assert len(house.server.requests) == requests + 1
    house.without_downloads()
    house.provision(offline=True)
    house.restore()
    with pytest.raises(EnvironmentLacking):
        house.provision(offline=True)


def test_a_tree_of_more_targets_takes_nothing_from_one_that_was_not_proved(house: House) -> None:
    house.provision(NARROW)
    house.restore()
    forge(house.store)
    assert is_true(house.provision())


def test_an_inventory_that_claims_more_than_the_tree_has_is_none(house: House, tmp_path: Path) -> None:
    house.store = Store(tmp_path / "narrow")
    house.provision(NARROW)
    house.restore()
    (tree,) = house.store.trees()
    inventory = json.loads(tree.inventory_path.read_text())
    tree.inventory_path.write_text(json.dumps({**inventory, "targets": sorted(WIDE)}))
    assert is_true(house.provision())


def test_an_inventory_that_claims_a_path_for_its_component_leads_nowhere(
    house: House, tmp_path: Path
) -> None:
    """A tree that is made again gets its place by a name."""
    house.restore()
    (tree,) = house.store.trees()
    inventory = json.loads(tree.inventory_path.read_text())
    tree.inventory_path.write_text(json.dumps({**inventory, "component": "../../outside"}))
    (tree.root / HTP).unlink()
    before = {path.name for path in tmp_path.iterdir()}
    assert house.store.trees() == []
    assert is_true(house.provision())
    assert {path.name for path in tmp_path.iterdir()} == before


def test_of_two_that_find_one_tree_damaged_the_second_leaves_what_the_first_has_made(house: House) -> None:
    house.restore()
    forge(house.store)
    (tree,) = house.store.trees()
    assert house.repaired() == {HTP, tree.inventory_path.name}
    assert house.repaired() == set()
    assert is_true(house.provision())


class TestWheels:
    """Wheels have the hash of each file in git, so that a tree is proved without its wheel."""

    @pytest.fixture
    def manifests(self, tmp_path: Path) -> Iterator[Path]:
        with own_manifests(tmp_path / "manifests") as folder:
            yield folder

    @pytest.fixture
    def house(self, tmp_path: Path, manifests: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
        files = {name: content for name, content in sdk_files().items() if name != "sdk.yaml"}
        wheel = write_zip(tmp_path / "q-1-py3-none-any.whl", files)
        content = wheel.read_bytes()
        source = {"type": "wheel", "package": "q", "version": "1", "filename": wheel.name}
        digest = hashlib.sha256(content).hexdigest()
        pins = {"sha256": digest, "size": len(content)}
        place = [{**rule, "match": f"{STRIP}(?P<kept>{rule['match']})", "to": "{kept}"} for rule in PLACE]
        data = {"version": VERSION, "build_id": BUILD_ID}
        sdk = Component.model_validate(
            {**data, "parts": [{"name": "x", "source": {**source, **pins}, "place": place}]}, strict=False
        )

        write_profile(manifests, {"qnn-sdk": sdk})
        store = Store(tmp_path / "store")
        store.downloads.mkdir(parents=True)
        (store.downloads / digest).write_bytes(content)
        monkeypatch.setenv("QNN_CI_STORE", str(store.path))
        monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "reports"))
        with FileServer(b"") as server:
            house = House(store, server, sdk)
            house.provision()
            assert self.types("lock", "--profile", "wheels") == 0
            house.restore()
            monkeypatch.setenv("QNN_CI_STORE", str(house.store.path))
            yield house

    def types(self, *argv: str) -> int:
        return main("python -m provisioning", "", VERBS | LAB, argv)

    def test_a_whole_tree_is_proved_without_its_wheel(self, house: House) -> None:
        house.without_downloads()
        assert is_true(house.provision(offline=True)) and house.repaired() == set()

    @pytest.mark.parametrize(
        ("place", "content", "code"),
        [
            ("NOTES.txt", b"installed by me", 0),
            (HTP, None, 1),
            (SKEL, None, 1),
            ("lib/x86_64-linux-clang/libExtra.so", b"x", 1),
        ],
    )
    def test_a_users_copy_of_it_is_compared_with_the_wheels_before_its_first_use(
        self,
        house: House,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        place: str,
        content: bytes | None,
        code: int,
    ) -> None:
        copy = tmp_path / "mine" / VERSION
        shutil.copytree(house.store.trees()[0].root, copy)
        monkeypatch.setenv("QNN_SDK_ROOT", str(copy))
        words = ("validate", "--rule", "official-files", "--target", "x86_64-linux")
        if content is None:
            damage(Tree(copy, house.store.trees()[0].inventory), place)
        else:
            (copy / place).write_bytes(content)
        assert self.types(*words) == code

    def test_a_forged_one_without_its_wheel_is_refused(self, house: House) -> None:
        forge(house.store)
        house.without_downloads()
        with pytest.raises(EnvironmentLacking, match="qnn-sdk"):
            house.provision(offline=True)

    def test_verify_finds_it_and_repair_makes_it_again(
        self, house: House, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.types("store", "verify") == 0
        forge(house.store)
        assert self.types("store", "verify") == 1
        assert f"{HTP}: changed" in capsys.readouterr().out
        assert self.types("store", "repair") == 0
        assert self.types("store", "verify") == 0

    def test_provision_on_ci_repairs_it_and_says_so(
        self, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CI", "true")
        forge(house.store)
        selection = ["--target", "x86_64-linux", "--target", "aarch64-android"]
        assert self.types("provision", *selection) == 0
        findings = Report.read(tmp_path / "reports" / "provision.json").findings
        assert {finding.rule for finding in findings} == {"store-damage"}
        assert is_true(house.store.trees()[0])

    def test_no_list_is_made_of_a_kept_wheel_that_is_another(
        self, house: House, manifests: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (wheel,) = house.store.downloads.glob("?" * 64)
        write_zip(wheel, {HTP: b"forged"})
        (manifests / "wheels.json").unlink()
        load_lists.cache_clear()
        # No index has it.
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        assert self.types("lock", "--profile", "wheels") != 0
        assert not (manifests / "wheels.json").exists()

    def test_a_list_of_a_wheel_that_no_profile_has_is_stale(
        self, house: House, manifests: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.types("lock", "--check") == 0
        lists = manifests / "wheels.json"
        text = lists.read_text()
        lists.write_text(text.replace(house.sdk.parts[0].source.pin or "", "0" * 64))
        load_lists.cache_clear()
        assert self.types("lock", "--check") == 1
        assert "0" * 64 in capsys.readouterr().err


ADDED = "lib/x86_64-linux-clang/libExtra.so"


@pytest.mark.parametrize("restored", [True, False])
@pytest.mark.parametrize("place", [ADDED, "lib/python/torch.py", "libc.so.6"])
def test_what_was_added_to_a_tree_is_named_and_removed(house: House, restored: bool, place: str) -> None:
    if restored:
        house.restore()
        house.provision(offline=True)
    (tree,) = house.store.trees()
    (tree.root / place).parent.mkdir(exist_ok=True)
    (tree.root / place).write_bytes(b"x")
    (added,) = house.store.quick_check(tree)
    assert (added.kind, place.startswith(added.path)) == ("extra", True)
    assert house.store.differing_names(tree) == [added]
    assert house.repaired() and not (house.store.trees()[0].root / place).exists()


def test_what_was_removed_from_a_tree_is_named(house: House) -> None:
    (tree,) = house.store.trees()
    (tree.root / HTP).unlink()
    assert [str(name).partition(":")[0] for name in house.store.differing_names(tree)] == [HTP]


def test_a_folder_of_a_tree_that_became_a_link_is_named_and_made_again(house: House, tmp_path: Path) -> None:
    house.provision()
    (tree,) = house.store.trees()
    folder = (tree.root / HTP).parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    (link,) = house.store.quick_check(tree)
    assert link.path == str(folder.relative_to(tree.root))
    assert house.repaired() and not (house.store.trees()[0].root / HTP).parent.is_symlink()


def test_the_bytecode_of_a_module_of_the_tree_is_nothing_that_was_added(tmp_path: Path) -> None:
    for name in ("a.py", "__pycache__/a.cpython-311.pyc"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    items = [TreeFile("a.py", "file", 0, "", 0o444)]
    assert list(differing_names(tmp_path, items, None)) == []
    (tmp_path / "__pycache__/b.cpython-311.pyc").touch()
    assert [name.path for name in differing_names(tmp_path, items, None)] == ["__pycache__"]
