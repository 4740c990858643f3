"""What a store goes through in real life: kills, crowds, read-only and full disks. It stays whole."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioning.base.errors import EnvironmentLacking
from provisioning.manifest import Component
from provisioning.store import Store
from tests.support.http_server import FileServer, Reply
from tests.support.sdk_archives import component, sdk_files, sdk_zip, write_zip

ROOT = Path(__file__).parents[2]
ANDROID = "provision:x86_64-linux,aarch64-android"
OPERATE = """\
import sys
from pathlib import Path
from provisioning.base.guard import guard
from provisioning.base.progress import Progress
from provisioning.manifest import Component
from provisioning.store import Store
path, definition, operation, *targets = sys.argv[1:]
store, progress = Store(Path(path)), Progress(sys.stderr)
component = Component.model_validate_json(Path(definition).read_text())

def operate():
    if operation == "repair":
        for tree in store.trees():
            store.repair(tree, component, progress=progress)
    elif operation == "gc":
        store.gc(lambda tree: False, all_downloads=True, progress=progress)
    else:
        chosen = frozenset(",".join(targets).split(",")) - {""}
        print(store.provision("qnn-sdk", component, chosen, progress=progress).root)
    return 0

sys.exit(guard(operate, debug=False))
"""
"""One operation on a store, in a process of its own: `provision[:target,…]`, `repair` or `gc`."""
KILLS = [8, pytest.param(50, marks=pytest.mark.whole)]


@dataclass
class Site:
    path: Path
    server: FileServer
    sdk: Component

    @property
    def store(self) -> Store:
        return Store(self.path / "store")

    def start(self, operation: str, **options: Any) -> subprocess.Popen[str]:
        definition = self.path / "component.json"
        definition.write_text(self.sdk.model_dump_json())
        return subprocess.Popen(
            [sys.executable, "-c", OPERATE, str(self.store.path), str(definition), *operation.split(":")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def run(self, operation: str, **options: Any) -> subprocess.CompletedProcess[str]:
        with self.start(operation, **options) as process:
            out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(operation, process.returncode, out, err)

    def faults(self) -> list[str]:
        """What `store verify` would say."""
        store = self.store
        trees = store.trees()
        alone = {*store.folder.glob("*.json")} - {tree.inventory_path for tree in trees}
        damaged = [str(fault) for tree in trees for fault in store.verify(tree)]
        return damaged + [f"{path}: an inventory without a tree" for path in alone]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SDK of some hundred files that compress little, so that each step takes its time."""
    noise = random.Random(3)
    files = sdk_files()
    for number in range(300):
        files[f"lib/x86_64-linux-clang/more/{number}.bin"] = noise.randbytes(50_000)
        files[f"lib/hexagon-v73/unsigned/{number}.bin"] = noise.randbytes(5_000)
    return write_zip(tmp_path_factory.mktemp("large") / "sdk.zip", files)


@pytest.fixture
def site(tmp_path: Path, large: Path) -> Iterator[Site]:
    # About a third of a second for the whole body.
    with FileServer(large, usual=Reply(pause=0.001)) as server:
        yield Site(tmp_path, server, component(server.url("/sdk.zip"), large))


@pytest.mark.long("provisions until it is killed, many times")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kills", KILLS)
def test_a_kill_at_any_moment_leaves_a_store_that_is_whole_and_works(site: Site, kills: int) -> None:
    began = time.monotonic()
    assert site.run(ANDROID).returncode == 0
    longest = time.monotonic() - began
    moments = random.Random(20261120)
    killed = 0
    while killed < kills:
        operation = moments.choice([ANDROID, "provision", "provision", "repair", "gc"])
        process = site.start(operation)
        time.sleep(moments.uniform(0.1, 1.1) * longest)
        process.kill()
        process.communicate()
        killed += process.returncode == -signal.SIGKILL
        assert site.faults() == [], f"after kill {killed}, of {operation}"
        if moments.random() < 0.3:
            assert site.run("provision").returncode == 0
            assert site.faults() == []
            # From nothing again, so that downloads are hit too.
            site.store.gc(lambda tree: False, all_downloads=True)
    assert site.run("provision").returncode == 0
    assert site.faults() == []
    # A command that finds the tree whole leaves staging alone.
    assert site.run("gc").returncode == 0
    assert not site.store.staging.exists()


@pytest.mark.timeout(300)
def test_of_four_at_once_one_downloads_and_the_others_use_its_tree(site: Site) -> None:
    processes = [site.start("provision") for _ in range(4)]
    results = [(*process.communicate(timeout=200), process.returncode) for process in processes]
    assert [code for _, _, code in results] == [0] * 4
    assert len({out for out, _, _ in results}) == 1
    assert len(site.server.requests) == 1
    unpacked = [err for _, err, _ in results if "unpack sdk.zip" in err]
    assert (len(unpacked), site.faults()) == (1, [])


def without_override() -> None:
    """Let file modes count for root too: the capabilities that go past them are dropped for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    drop_from_bounding_set = 24
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        libc.prctl(drop_from_bounding_set, capability, 0, 0, 0)


def test_a_read_only_store_serves_what_it_has_and_says_where_else_more_can_go(site: Site) -> None:
    assert site.run("provision:x86_64-linux").returncode == 0
    folders = [site.store.path, *(path for path in site.store.path.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    for lock in site.store.path.glob("locks/*"):
        lock.chmod(0o444)
    try:
        done = site.run("provision:x86_64-linux", preexec_fn=without_override)
        assert (done.returncode, Path(done.stdout.strip()).is_dir()) == (0, True)
        more = site.run("provision", preexec_fn=without_override)
        assert (more.returncode, "--store or QNN_CI_STORE" in more.stderr) == (3, True)
    finally:
        for folder in folders:
            folder.chmod(0o755)


@pytest.mark.parametrize("step", ["pathlib.Path.write_text", "os.write", "pathlib.Path.rename"])
def test_a_disk_that_fills_up_is_a_clear_error_and_later_all_is_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    archive = sdk_zip(tmp_path / "sdk.zip")
    store = Store(tmp_path / "store")
    with FileServer(archive) as server:
        sdk = component(server.url("/sdk.zip"), archive)
        store.provision("qnn-sdk", sdk, {"x86_64-linux"})
        with monkeypatch.context() as patch:
            patch.setattr(step, full)
            with pytest.raises(EnvironmentLacking, match=os.strerror(errno.ENOSPC)):
                store.provision("qnn-sdk", sdk)
        assert [store.verify(tree) for tree in store.trees()] == [[]]
        assert store.verify(store.provision("qnn-sdk", sdk)) == []


def test_an_interrupted_download_ends_with_130_long_before_it_is_complete(site: Site) -> None:
    site.server.usual = Reply(pause=1)
    with site.start("provision") as process:
        assert process.stderr is not None
        part = site.store.path / "downloads"
        deadline = time.monotonic() + 60
        while not list(part.glob("*.part")) and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert site.store.trees() == [] and site.faults() == []
