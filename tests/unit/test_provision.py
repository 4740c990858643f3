"""The verbs `provision` and `store` as a user types them, over a profile of one small SDK."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from provisioning.__main__ import VERBS
from provisioning.base import toml
from provisioning.base.command_line import main
from provisioning.base.files import disk_error
from provisioning.base.findings import Report
from provisioning.base.settings import MANIFESTS
from provisioning.manifest import Component
from provisioning.store import Store
from provisioning.store.results import results_folder
from tests.support.elves import Library
from tests.support.http_server import FileServer
from tests.support.own_manifests import own_manifests, write_profile
from tests.support.sdk_archives import BUILD_ID, component, sdk_files, sdk_zip, write_zip

NOTHING_IS_MEASURED = 'schema = 1\nprofile = "wheels"\nsoc = "SM8650"\nbuilds = []\n'
HTP = "lib/x86_64-linux-clang/libQnnHtp.so"


@dataclass
class User:
    """Somebody at a shell, with a store, a reports directory and a profile."""

    home: Path
    server: FileServer
    archive: Path
    capture: pytest.CaptureFixture[str]
    components: dict[str, Component] = field(default_factory=dict)
    out: str = ""
    err: str = ""

    def types(self, *argv: str) -> int:
        write_profile(self.home / "manifests", self.components)
        code = main("python -m provisioning", "", VERBS, argv)
        self.out, self.err = self.capture.readouterr()
        return code

    @property
    def store(self) -> Path:
        return self.home / "store"

    @property
    def report(self) -> Report:
        return Report.read(self.home / "reports" / "provision.json")

    def root(self) -> Path:
        return next(tree.root for tree in Store(self.store).trees() if tree.component == "qnn-sdk")


def library_of(build_id: str) -> bytes:
    return Library(soname="libQnnHtp.so", content=f"{build_id}\0".encode()).encode()


@pytest.fixture
def user(tmp_path: Path, own_places: None, capsys: pytest.CaptureFixture[str]) -> Iterator[User]:
    archive = sdk_zip(tmp_path / "v2.37.zip")
    with FileServer(archive) as server, own_manifests(tmp_path / "manifests") as manifests:
        (manifests / "compat.toml").write_text(NOTHING_IS_MEASURED)
        user = User(tmp_path, server, archive, capsys)
        user.components["qnn-sdk"] = component(server.url("/v2.37.zip"), archive)

        yield user


def test_a_tree_that_lost_a_file_is_repaired_and_that_is_on_the_report(user: User) -> None:
    user.types("provision")
    (user.root() / HTP).unlink()
    assert user.types("provision") == 0
    assert "  repaired  " in user.out.splitlines()[1]
    assert [finding.rule for finding in user.report.findings] == ["store-damage"]
    assert user.types("store", "verify") == 0


def test_a_file_of_the_users_must_have_the_pinned_hash(user: User) -> None:
    cut = user.home / "cut" / user.archive.name
    cut.parent.mkdir()
    cut.write_bytes(user.archive.read_bytes()[:-1])
    assert user.types("provision", "--from", str(cut)) == 1
    assert user.types("provision", "--from", str(user.archive), "--offline") == 0
    assert not user.server.requests and user.report.findings == ()


@pytest.mark.parametrize("name", [".", "nothing.zip"])
def test_what_is_no_archive_of_the_users_is_refused(user: User, name: str) -> None:
    assert user.types("provision", "--from", str(user.home / name)) == 2
    assert not user.store.is_dir()


class TestUnlocked:
    """A component whose hash nobody made public."""

    @pytest.fixture
    def unlocked(self, user: User) -> User:
        user.components["qnn-sdk"] = component(user.server.url("/v2.37.zip"))
        return user

    def serves(self, user: User, **files: bytes) -> None:
        """The mirror sends an SDK with these in place of its own files."""
        names = {"htp": HTP, "android": "lib/aarch64-android/libQnnHtp.so", "metadata": "sdk.yaml"}
        content = sdk_files() | {names[name]: content for name, content in files.items()}
        write_zip(user.archive, content)

    def test_it_is_refused_and_the_printed_fix_takes_it(self, unlocked: User) -> None:
        assert unlocked.types("provision") == 3
        assert not unlocked.store.is_dir()
        *_, command = [line for line in unlocked.err.splitlines() if "nox -s provision" in line]
        words = shlex.split(command.partition("nox -s ")[2])
        assert unlocked.types(*(word for word in words if word != "--")) == 0

    def test_what_it_took_is_recorded(self, unlocked: User) -> None:
        assert unlocked.types("provision", "--trust-first-download") == 0
        (finding,) = unlocked.report.findings
        digest = hashlib.sha256(unlocked.archive.read_bytes()).hexdigest()
        assert finding.rule == "unlocked-component" and digest in finding.message
        assert unlocked.types("provision") == 0

    def test_a_file_of_the_users_is_taken_without_a_server_and_recorded(self, unlocked: User) -> None:
        assert unlocked.types("provision", "--from", str(unlocked.archive), "--offline") == 0
        (finding,) = unlocked.report.findings
        digest = hashlib.sha256(unlocked.archive.read_bytes()).hexdigest()
        assert finding.rule == "unlocked-component" and digest in finding.message
        assert unlocked.types("provision") == unlocked.types("store", "verify") == 0
        assert not unlocked.server.requests and unlocked.archive.is_file()

    def test_a_file_of_another_release_is_refused_and_leaves_nothing(self, unlocked: User) -> None:
        other = sdk_zip(unlocked.home / "v2.40.zip", version="2.40.0.1", build_id="v2.40.0.1_2")
        assert unlocked.types("provision", "--from", str(other)) == 1
        assert "QNN_SDK_ROOT" in unlocked.err
        assert unlocked.types("provision", "--from", str(unlocked.archive)) == 0

    def test_a_copied_store_is_not_taken_for_it(self, unlocked: User) -> None:
        unlocked.types("provision", "--trust-first-download")
        copy = shutil.copytree(unlocked.store, unlocked.home / "copy", symlinks=True)
        fetched = len(unlocked.server.requests)
        assert unlocked.types("provision", "--store", str(copy)) == 3
        # As for a store that has nothing, and without asking the server.
        assert "is not locked" in unlocked.err and f"--store {copy} " in unlocked.err
        assert len(unlocked.server.requests) == fetched

    def test_a_copied_store_is_not_repaired_by_what_a_mirror_has_now(self, unlocked: User) -> None:
        unlocked.types("provision", "--trust-first-download")
        (unlocked.root() / HTP).unlink()
        copy = unlocked.home / "copy"
        shutil.copytree(unlocked.store / "trees", copy / "trees", symlinks=True)
        self.serves(unlocked, android=library_of(BUILD_ID))
        assert unlocked.types("store", "repair", "--store", str(copy)) == 3
        *_, command = [line for line in unlocked.err.splitlines() if "nox -s provision" in line]
        words = shlex.split(command.partition("nox -s ")[2])
        assert unlocked.types(*(word for word in words if word != "--")) == 0
        assert unlocked.types("store", "verify", "--store", str(copy)) == 0

    @pytest.mark.parametrize(
        "files",
        [
            {"htp": b"#!/bin/sh\necho hello\n"},
            {"htp": b""},
            {"htp": Library(soname="libQnnHtp.so").encode()},
            {"htp": library_of("v2.37.0.250601000000")},
            {"metadata": b"version: 2.36.0\n"},
            {"htp": library_of("v2.48.0.260626121212"), "android": library_of("v2.48.0.260626121212")},
        ],
    )
    def test_what_is_not_that_sdk_inside_is_refused(self, unlocked: User, files: dict[str, bytes]) -> None:
        self.serves(unlocked, **files)
        assert unlocked.types("provision", "--trust-first-download") == 4
        assert not list(unlocked.store.glob("trees/*"))

    def test_what_was_refused_is_fetched_again(self, unlocked: User) -> None:
        self.serves(unlocked, htp=b"#!/bin/sh\necho hello\n")
        unlocked.types("provision", "--trust-first-download")
        self.serves(unlocked)
        assert unlocked.types("provision", "--trust-first-download") == 0

    def test_an_sdk_without_libraries_is_refused(self, unlocked: User) -> None:
        write_zip(unlocked.archive, {"sdk.yaml": sdk_files()["sdk.yaml"]})
        assert unlocked.types("provision", "--trust-first-download") == 4
        assert "no library holds build id" in unlocked.err
        assert not [*(unlocked.store / "trees").iterdir(), *(unlocked.store / "downloads").iterdir()]


class TestLicences:
    @pytest.fixture
    def licensed(self, user: User) -> User:
        licence = {"id": "some-licence", "title": "Some Licence", "url": "https://example.com/l"}
        user.components["qnn-sdk"] = component(user.server.url("/v2.37.zip"), user.archive, licence=licence)
        return user

    def means(self, user: User) -> str:
        accepted = json.loads((user.store / "licences.json").read_text())["accepted"]
        return str(accepted[0]["means"])

    def test_accepted_by_flag(self, licensed: User) -> None:
        assert licensed.types("provision", "--accept-licence", "some-licence") == 0
        assert self.means(licensed) == "--accept-licence"

    def test_accepting_one_licence_does_not_accept_another(self, licensed: User) -> None:
        other = {"id": "other-licence", "title": "Other Licence", "url": "https://example.com/o"}
        licensed.components["android-ndk"] = component(
            licensed.server.url("/ndk.zip"), licensed.archive, licence=other
        )
        flags = ("--component", "qnn-sdk", "--accept-licence", "other-licence")
        assert licensed.types("provision", *flags) == 3
        assert licensed.server.requests == []


class TestStoreVerb:
    def test_verify_names_each_error_and_the_fix(self, user: User) -> None:
        user.types("provision")
        (user.root() / HTP).unlink()
        assert user.types("store", "verify") == 1
        assert f"{HTP}: missing: expected a file, found nothing" in user.out
        assert "try: nox -s store -- repair" in user.out

    def test_verify_of_a_store_that_is_not_there_is_no_pass(self, user: User) -> None:
        assert user.types("store", "verify") == 3
        assert f"there is no store at {user.store}\n  try: nox -s provision\n" in user.err
        assert user.types("store", "verify", "--store", "/nowhere/at all") == 3
        assert "try: nox -s provision -- --store '/nowhere/at all'\n" in user.err

    def test_the_list_of_trees_fits_a_terminal(self, user: User, monkeypatch: pytest.MonkeyPatch) -> None:
        user.types("provision")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "100")
        assert user.types("store", "list") == 0
        *table, path = user.out.splitlines()
        assert path.strip() in map(str, user.store.glob("trees/*"))
        assert max(map(len, table)) <= 100

    OF_FORECASTS = toml.loads((MANIFESTS / "forecast.toml").read_text())["wheel"]["sha256"]
    MEASURED = toml.loads((MANIFESTS / "compat.toml").read_text())["builds"][0]["sha256"]

    def of_another_definition(self, user: User, component: str, sha256: str) -> Path:
        """The inventory of a tree that was made of these bytes by other rules."""
        user.types("provision")
        (inventory,) = user.store.glob("trees/*.json")
        facts = json.loads(inventory.read_text())
        facts |= {"component": component, "definition": "another"}
        facts["origins"] = [{**origin, "sha256": sha256} for origin in facts["origins"]]
        inventory.write_text(json.dumps(facts))
        return inventory

    @pytest.mark.parametrize(
        ("component", "sha256"), [("ai-hub-models", OF_FORECASTS), ("qnn-sdk", MEASURED)]
    )
    def test_gc_keeps_what_another_manifest_than_a_profile_names(
        self, user: User, component: str, sha256: str
    ) -> None:
        inventory = self.of_another_definition(user, component, sha256)
        user.components.clear()
        assert user.types("store", "gc") == 0
        assert inventory.exists()

    def test_gc_removes_results_that_nobody_used_and_only_lists_them_in_a_dry_run(self, user: User) -> None:
        record = results_folder(user.store) / "toy" / "ab" / f"{'ab' * 32}.json"
        record.parent.mkdir(parents=True)
        record.write_text("{}")
        os.utime(record, (time.time() - 40 * 86400,) * 2)
        assert user.types("store", "gc") == 0
        assert user.types("store", "gc", "--older-than", "30d", "--dry-run") == 0
        assert record.exists()
        assert user.types("store", "gc", "--older-than", "30d") == 0
        assert not record.exists()

    def test_gc_removes_an_older_tree_of_what_a_profile_pins(self, user: User) -> None:
        inventory = self.of_another_definition(user, "qnn-sdk", self.MEASURED)
        text = user.components["qnn-sdk"].model_dump_json()
        pin = user.components["qnn-sdk"].parts[0].source.pin or ""
        user.components["qnn-sdk"] = Component.model_validate_json(text.replace(pin, self.MEASURED))
        assert user.types("store", "gc") == 0
        assert not inventory.exists()


def test_a_cache_that_cannot_be_written_names_the_variable_that_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for path, is_cache in ((tmp_path / "cache/qnn-ci/store", True), (tmp_path / "mine", False)):
        error = disk_error(OSError(errno.EROFS, "Read-only file system", str(path)), "choose another path")
        assert error and ("XDG_CACHE_HOME=" in error.fix) == is_cache
