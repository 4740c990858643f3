"""The store over a real HTTP server and real archives."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from provisioning.base.commands import Fix
from provisioning.base.errors import (
    IntegrityError,
    UpstreamError,
)
from provisioning.manifest import Component
from provisioning.store import EVERYTHING, Store
from tests.support.http_server import FileServer, Reply
from tests.support.sdk_archives import component, sdk_files, sdk_zip, write_zip

HOST = frozenset({"x86_64-linux"})
HTP = "lib/x86_64-linux-clang/libQnnHtp.so"


@dataclass
class House:
    """A store, a server with one SDK on it, and the component that names it."""

    store: Store
    server: FileServer
    archive: Path
    sdk: Component


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    archive = sdk_zip(tmp_path / "v2.37.zip")
    with FileServer(archive) as server:
        sdk = component(server.url("/v2.37.zip"), archive)
        yield House(Store(tmp_path / "store"), server, archive, sdk)


def paths(root: Path) -> set[str]:
    return {str(p.relative_to(root)) for p in root.rglob("*") if p.is_symlink() or not p.is_dir()}


@contextlib.contextmanager
def reader(house: House) -> Iterator[subprocess.Popen[str]]:
    """A process that found the SDK's tree and reads on."""
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from provisioning.manifest import Component\n"
        "from provisioning.store import Store\n"
        "sdk = Component.model_validate_json(sys.argv[2])\n"
        "print(Store(Path(sys.argv[1])).find('qnn-sdk', sdk, frozenset()).root, flush=True)\n"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(house.store.path), house.sdk.model_dump_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline().strip()
            yield process
        finally:
            process.kill()


def test_a_selection_by_target_takes_only_that_targets_files(house: House) -> None:
    tree = house.store.provision("qnn-sdk", house.sdk, HOST)
    assert paths(tree.root) == {
        "sdk.yaml",
        "include/QNN/QnnTypes.h",
        "bin/x86_64-linux-clang/qnn-net-run",
        HTP,
        "lib/x86_64-linux-clang/libLatest.so",
    }


def test_a_composed_sdk_names_the_files_that_it_is_made_of_with_their_digests(tmp_path: Path) -> None:
    files = {path: content for path, content in sdk_files().items() if path != "sdk.yaml"}
    archive = write_zip(tmp_path / "part.zip", files)
    with FileServer(archive) as server:
        tree = Store(tmp_path / "store").provision(
            "qnn-sdk", component(server.url("/part.zip"), archive), HOST
        )
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    text = " ".join((tree.root / "sdk.yaml").read_text().split())
    assert text.endswith(f"sdk: file: part.zip sha256: {digest}")


def test_two_different_files_at_one_path_are_refused(tmp_path: Path) -> None:
    one = write_zip(tmp_path / "one.zip", {"LICENSE.pdf": b"one"}, prefix="")
    other = write_zip(tmp_path / "other.zip", {"LICENSE.pdf": b"other"}, prefix="")
    with FileServer(one) as first, FileServer(other) as second:
        parts = [
            {
                "name": name,
                "place": [{"match": ".+"}],
                "source": {"type": "archive", "url": server.url("/a.zip")},
            }
            for name, server in (("first", first), ("second", second))
        ]
        with pytest.raises(IntegrityError, match=r"LICENSE\.pdf"):
            Store(tmp_path / "store").provision(
                "qnn-sdk", component("http://127.0.0.1/", parts=parts), trust_first_download=True
            )


DAMAGE = {
    # What a shell does in lib/x86_64-linux-clang/ of a tree, and the kind of difference.
    "rm libQnnHtp.so": "missing",
    "chmod +w *.so; printf x | dd of=libQnnHtp.so bs=1 seek=99 conv=notrunc; chmod -w *.so": "changed",
    "chmod +w libQnnHtp.so": "mode",
    "mkdir __pycache__; touch __pycache__/x.pyc": "extra",
    "ln -sf /etc/passwd libLatest.so": "changed",
    "mv $PWD ../elsewhere; touch $PWD": "missing",
}


class TestVerifyAndRepair:
    @pytest.mark.parametrize("damage", DAMAGE)
    def test_damage_is_found_named_and_repaired(self, house: House, damage: str) -> None:
        tree, kind = house.store.provision("qnn-sdk", house.sdk), DAMAGE[damage]
        subprocess.run(["sh", "-ec", damage], cwd=(tree.root / HTP).parent, check=True)
        assert kind in {fault.kind for fault in house.store.verify(tree)}
        house.store.repair(tree, house.sdk)
        assert house.store.verify(tree) == []

    def test_repair_does_not_take_other_bytes_for_the_old_ones(self, tmp_path: Path) -> None:
        archive = sdk_zip(tmp_path / "sdk.zip")
        store = Store(tmp_path / "store")
        with FileServer(archive) as server:
            sdk = component(server.url("/sdk.zip"))
            tree = store.provision("qnn-sdk", sdk, trust_first_download=True)
            store.gc(lambda tree: True, all_downloads=True)
            (tree.root / HTP).unlink()
            sdk_zip(archive, filler=1999)
            with pytest.raises(IntegrityError, match="qnn-sdk"):
                store.repair(tree, sdk)

    @pytest.mark.parametrize("lost", ["tree", "inventory"])
    def test_a_deleted_tree_is_provisioned_anew(self, house: House, lost: str) -> None:
        tree = house.store.provision("qnn-sdk", house.sdk)
        if lost == "tree":
            subprocess.run(["rm", "-rf", tree.root], check=True)
        else:
            tree.inventory_path.write_text("{")
        assert house.store.find("qnn-sdk", house.sdk, EVERYTHING) is None
        assert house.store.verify(house.store.provision("qnn-sdk", house.sdk)) == []


class TestGc:
    def test_a_tree_goes_when_one_of_more_targets_holds_all_of_it(self, house: House) -> None:
        narrow = house.store.provision("qnn-sdk", house.sdk, HOST)
        wide = house.store.provision("qnn-sdk", house.sdk)
        gone = house.store.gc(lambda tree: True)
        assert [leftover.path for leftover in gone] == [narrow.root]
        assert [tree.root for tree in house.store.trees()] == [wide.root]
        assert house.store.verify(wide) == []

    def test_a_tree_that_no_manifest_names_goes_with_its_download(self, house: House) -> None:
        tree = house.store.provision("qnn-sdk", house.sdk)
        paths = {tree.root, house.store.download_of(house.sdk.parts[0])}
        for dry_run in (True, False):
            assert house.store.trees() == [tree]
            assert {row.path for row in house.store.gc(lambda tree: False, dry_run=dry_run)} == paths
        assert house.store.trees() == []

    def test_a_tree_that_another_process_reads_stays_until_that_process_is_gone(self, house: House) -> None:
        tree = house.store.provision("qnn-sdk", house.sdk)
        with reader(house) as other:
            assert house.store.gc(lambda tree: False) == []
            assert house.store.verify(tree) == []
            other.kill()
            other.wait()
            assert tree.root in {garbage.path for garbage in house.store.gc(lambda tree: False)}

    def test_old_mutexes_of_outputs_go_that_nobody_holds(self, house: House) -> None:
        house.store.provision("qnn-sdk", house.sdk)
        old, held, fresh = (house.store.locks / f"output-{name}" for name in ("old", "held", "fresh"))
        for path in (old, held, fresh):
            path.touch()
        with FileLock(held):
            for path, hours in ((old, 25), (held, 25), (fresh, 23)):
                os.utime(path, (time.time() - hours * 3600,) * 2)
            gone = house.store.gc(lambda tree: True)
        assert [leftover.path for leftover in gone] == [old]
        assert not old.exists() and held.exists() and fresh.exists()

    def test_a_dry_run_beside_a_change_of_the_store_says_what_is_there(self, house: House) -> None:
        house.store.provision("qnn-sdk", house.sdk)
        gone = threading.Event()

        def change() -> None:
            while not gone.is_set():
                folder = house.store.folder / "in-the-making"
                folder.mkdir()
                for number in range(50):
                    (folder / f"{number}").touch()
                shutil.rmtree(folder)

        with ThreadPoolExecutor(1) as pool:
            changing = pool.submit(change)
            try:
                for _ in range(100):
                    house.store.gc(lambda tree: True, dry_run=True)
            finally:
                gone.set()
            changing.result()

    def test_what_was_not_used_for_long_goes(self, house: House) -> None:
        tree = house.store.provision("qnn-sdk", house.sdk)
        used = house.store.path / "locks" / f"{tree.root.name}.used"
        os.utime(used, (0, 0))
        assert tree.root in {garbage.path for garbage in house.store.gc(lambda tree: True, older_than=3600)}

    def test_what_a_killed_process_left_goes(self, house: House) -> None:
        house.store.provision("qnn-sdk", house.sdk)
        staged = house.store.path / "staging" / "123-abcdef"
        unfinished = house.store.path / "trees" / "qnn-sdk-9-0123"
        for folder in (staged, unfinished):
            (folder / "tree").mkdir(parents=True)
        assert {garbage.path for garbage in house.store.gc(lambda tree: True)} == {unfinished}
        assert not staged.exists() and not unfinished.exists()


def test_an_archive_with_nothing_of_what_the_manifest_places_makes_no_tree(house: House) -> None:
    data = house.sdk.model_dump()
    data["parts"][0]["source"]["strip"] = "another/"
    with pytest.raises(IntegrityError, match="expected members below 'another/'"):
        house.store.provision("qnn-sdk", Component.model_validate(data, strict=False))
    assert house.store.trees() == []


def test_an_archive_of_folders_in_each_other_leaves_a_store_that_works_later(house: House) -> None:
    deep = write_zip(house.archive.with_name("deep.zip"), {"d/" * 1500 + "a.so": b"x"})
    with FileServer(deep) as server, pytest.raises(IntegrityError):
        house.store.provision("qnn-sdk", component(server.url("/deep.zip"), deep))
    folder = house.store.staging
    for _ in range(1500):
        folder /= "d"
        folder.mkdir(parents=True)
    assert house.store.verify(house.store.provision("qnn-sdk", house.sdk)) == []


def test_a_page_in_place_of_an_sdk_without_a_hash_is_forgotten(house: House, tmp_path: Path) -> None:
    house.server.script(Reply(body=b"<p>sign in</p>"))
    unpinned = component(house.server.url("/v2.37.zip"))
    with pytest.raises(IntegrityError) as refused:
        house.store.provision("qnn-sdk", unpinned, trust_first_download=True)
    fix = refused.value.fix
    assert isinstance(fix, Fix)
    (command,) = (part for part in fix.parts if isinstance(part, tuple))
    assert "--trust-first-download" in command
    # It tells to remove no file: the page is gone.
    assert not list(house.store.downloads.iterdir()) and "rm " not in fix
    assert house.store.provision("qnn-sdk", unpinned, trust_first_download=True).root.is_dir()


def test_a_failed_download_leaves_a_store_that_works_later(house: House) -> None:
    wrong = house.sdk.model_dump()
    wrong["parts"][0]["source"]["sha256"] = "0" * 64
    with pytest.raises(UpstreamError):
        house.store.provision("qnn-sdk", Component.model_validate(wrong, strict=False))
    assert house.store.verify(house.store.provision("qnn-sdk", house.sdk)) == []
