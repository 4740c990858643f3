"""Images: what is in one by its manifests, what it is built from, its layers, two builds, entering one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from ci.__main__ import VERBS
from ci.image.contents import (
    DOCKER,
    MANIFEST,
    ImagePlan,
    Order,
    build,
    build_twice,
    compared_tags,
    keep_packages,
    load_images,
    packages_in,
    plan_of,
)
from ci.image.engine import Engine, engine_address
from ci.image.shell import docker_run
from ci.image.verb import labels
from lab.image_pins import newest_base, pin_base
from provisioning.base.command_line import main
from provisioning.base.errors import CheckFailed, EnvironmentLacking, IntegrityError, UpstreamError
from provisioning.base.settings import ROOT
from tests.support.scripts import script

# What is in one

BASE = "sha256:" + "1" * 64
CHANGED = "sha256:" + "2" * 64


def other_pin(plan: ImagePlan) -> ImagePlan:
    assert plan.profile is not None
    sdk = plan.profile.components["qnn-sdk"].model_copy(update={"version": "9"})
    components = {**plan.profile.components, "qnn-sdk": sdk}
    return replace(plan, profile=plan.profile.model_copy(update={"components": components}))


def test_an_image_is_known_by_all_that_decides_its_bytes(tmp_path: Path) -> None:
    plan, file = plan_of("wheels"), tmp_path / "images.toml"
    keys = {plan.key(BASE), plan_of("wheels").key(BASE), plan.key(CHANGED), other_pin(plan).key(BASE)}
    for text in ("one", "other"):
        file.write_text(text)
        keys.add(replace(plan, files=(*plan.files, file)).key(BASE))
    assert len(keys) == 5
    names = ["images.toml", "image-packages.txt", "cpu.txt", "nox.txt", "tools.txt", "executorch.txt"]
    scripts = [path.name for path in (ROOT / "docker").iterdir()]
    assert {path.name for path in plan.files} == {*names, *scripts}


def test_an_image_with_a_vendors_licence_says_that_it_is_not_to_be_published() -> None:
    text = labels(plan_of("qnn-2.37-ndk-r26c"), "mine:1", BASE)["qnn-ci.not-to-be-published"]
    assert "Qualcomm AI Stack License" in text and "Android Software Development Kit" in text
    assert "qnn-ci.not-to-be-published" not in labels(plan_of("wheels"), "mine:1", BASE)


class Registry:
    """An engine whose registry has a newer base, and one of that day with this digest."""

    def __init__(self, digest: str) -> None:
        newest = {"Created": "2026-01-05T00:00:00Z", "RepoDigests": [f"debian@sha256:{'1' * 64}"]}
        dated = {**newest, "RepoDigests": [f"debian@sha256:{digest}"]}
        self.images = {"debian:bookworm-slim": newest, "debian:bookworm-20260105-slim": dated}

    def pull(self, reference: str) -> str:
        return reference

    def attributes(self, reference: str) -> Mapping[str, object]:
        return self.images[reference]


def test_the_base_is_renewed_by_the_digest_of_its_day(tmp_path: Path) -> None:
    text = MANIFEST.read_text(encoding="utf-8")
    manifest = tmp_path / "images.toml"
    manifest.write_text(text, encoding="utf-8")
    engine: Any = Registry("1" * 64)
    other: Any = Registry("2" * 64)
    before = load_images(manifest).system
    pin_base(newest_base(before, engine), manifest)
    after = load_images(manifest).system
    assert (after.image, after.digest) == ("debian:bookworm-20260105-slim", f"sha256:{'1' * 64}")
    assert after.epoch == 1767571200 and after.packages == before.packages
    assert manifest.read_text().count("#") == text.count("#")
    with pytest.raises(UpstreamError, match="debian:bookworm-20260105-slim"):
        newest_base(before, other)


# What it is built from

CONTENT = b"a package"
GPP = f"g++ 4:12.2.0-3 {hashlib.sha256(CONTENT).hexdigest()}"
LOCK = f"# written\n# snapshot: 20261120T000000Z\n{GPP}\n"
OF_BASE = plan_of("base")
OF_PACKAGES = replace(OF_BASE, debian=LOCK, system=OF_BASE.system.model_copy(update={"packages": ("g++",)}))


class AptInContainer(Engine):
    """Stands for an engine whose container leaves these files, or says this."""

    def __init__(self, files: dict[str, bytes], code: int = 0, stderr: str = "") -> None:
        self.files = files
        self.result = CompletedProcess([], code, "", stderr)
        self.jobs: list[Mapping[str, Any]] = []
        self.owner = "0:0"

    def run(self, image: str, command: Sequence[str], **options: Any) -> CompletedProcess[str]:
        self.jobs.append({"command": command, **options})
        folder = Path(options["volumes"][-1].partition(":")[0])
        for name, content in self.files.items():
            (folder / name).write_bytes(content)
        return self.result


@pytest.fixture
def apt() -> AptInContainer:
    return AptInContainer({"g++_4%3a12.2.0-3_amd64.deb": CONTENT})


def test_locked_packages_are_fetched_once_for_each_base(apt: AptInContainer, tmp_path: Path) -> None:
    for base in ("base", "base", "other"):
        keep_packages(OF_PACKAGES, apt, base, tmp_path / "packages")
    assert [job["command"][-1] for job in apt.jobs] == ["g++"] * 2
    variables = apt.jobs[0]["environment"]
    assert (variables["SNAPSHOT"], variables["LOCKED"]) == ("20261120T000000Z", "g++")
    assert packages_in(tmp_path / "packages") == [GPP]


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({"LOCKED": "g++ bash libc6"}, ["g++", "bash"]),
        ({"FROM_NOTHING": "yes"}, ["g++", "bash", "of-the-base"]),
    ],
)
def test_what_the_base_has_of_the_locked_packages_comes_to_their_day(
    tmp_path: Path, variables: dict[str, str], asked: list[str]
) -> None:
    script(tmp_path / "bin" / "dpkg-query", "printf 'bash\nof-the-base\n'")
    script(tmp_path / "bin" / "apt-get", f'echo "$*" >> {tmp_path}/asked')
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "OWNER": f"{os.getuid()}", **variables}
    command = ["sh", str(DOCKER / "fetch-packages"), str(tmp_path / "packages"), "g++"]
    subprocess.run(command, env=environ, check=True, capture_output=True)
    _, _, names = (tmp_path / "asked").read_text().partition("--download-only ")
    assert names.split() == asked


def test_other_bytes_under_the_same_version_are_refused_each_time(
    apt: AptInContainer, tmp_path: Path
) -> None:
    keep_packages(OF_PACKAGES, apt, "base", tmp_path / "packages")
    good, apt.files = apt.files, dict.fromkeys(apt.files, b"not the package")
    for _ in range(2):
        with pytest.raises(IntegrityError, match=hashlib.sha256(b"not the package").hexdigest()):
            keep_packages(OF_PACKAGES, apt, "other", tmp_path / "packages")
    apt.files = good
    keep_packages(OF_PACKAGES, apt, "base", tmp_path / "packages")
    assert packages_in(tmp_path / "packages") == [GPP]


@pytest.mark.parametrize("file", ["zlib1g_1.2_amd64.deb", "g++_4%3a12.3_amd64.deb"])
def test_a_package_that_is_not_pinned_is_refused(apt: AptInContainer, tmp_path: Path, file: str) -> None:
    apt.files[file] = CONTENT
    with pytest.raises(IntegrityError, match=r"is not in manifests/image-packages\.txt"):
        keep_packages(OF_PACKAGES, apt, "base", tmp_path / "packages")


@pytest.mark.parametrize("change", ["file changed", "file added", "folder removed"])
def test_packages_that_changed_since_they_were_fetched_are_fetched_again(
    apt: AptInContainer, tmp_path: Path, change: str
) -> None:
    folder = tmp_path / "packages"
    keep_packages(OF_PACKAGES, apt, "base", folder)
    (package,) = folder.glob("*.deb")
    if change == "folder removed":
        shutil.rmtree(folder)
    else:
        place = package if change == "file changed" else folder / "more_1.0_all.deb"
        place.write_bytes(b"something else")
    keep_packages(OF_PACKAGES, apt, "base", folder)
    assert (len(apt.jobs), packages_in(folder)) == (2, [GPP])


# Its layers


class Workshop(Engine):
    """An engine whose containers run nothing. Each commit is another image, with one file for each layer."""

    def __init__(self, contents: Sequence[bytes] = (), output: str = "", code: int = 0) -> None:
        self.contents = list(contents)
        self.result = CompletedProcess([], code, output, "")
        self.images: dict[str, list[bytes]] = {"sha256:base": []}
        self.settings: dict[str, Mapping[str, Any]] = {}
        self.jobs: list[Mapping[str, Any]] = []

    def run(self, image: str, command: Sequence[str], **options: Any) -> CompletedProcess[str]:
        self.jobs.append({"command": command, **options})
        if not self.result.returncode:
            content = self.contents.pop(0) if self.contents else b"same"
            self.images[options["commit"]] = [*self.images[image], content]
            self.settings[options["commit"]] = options["settings"]
        return self.result

    def attributes(self, reference: str) -> dict[str, Any]:
        layers = [str(hash(content)) for content in self.images[reference]]
        return {"RootFS": {"Layers": layers}}

    def remove(self, reference: str) -> None:
        self.images.pop(reference, None)

    @property
    def scripts(self) -> list[str]:
        return [" ".join(job["command"][-2:]) for job in self.jobs]


@pytest.fixture
def order(tmp_path: Path) -> Order:
    inputs = {name: Path("/", name) for name in ("docker", "packages", "environments", "qnn-sdk")}
    return Order(plan_of("wheels"), inputs, "sha256:base", {"a": "1"}, tmp_path / "logs" / "build.log")


def test_an_image_is_built_of_its_layers_in_order(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    assert engine.scripts == [
        "install-packages /mnt/packages",
        "nox tools",
        "make-environments executorch",
        "install-component qnn-sdk",
    ]
    assert list(engine.images) == ["sha256:base", "qnn-ci/wheels:latest"]


def test_a_script_has_no_network_and_leaves_no_variable_and_no_mount_point(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    for job in engine.jobs:
        assert not {"network", "environment"} & set(job) and [*job["tmpfs"]] == ["/mnt"]
        assert job["volumes"] == [f"/{name}:/mnt/{name}:ro" for name in order.inputs]
        assert f"SOURCE_DATE_EPOCH={order.plan.system.epoch}" in job["command"]


def test_the_image_has_its_labels_and_variables_and_is_no_roots(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    settings = engine.settings["qnn-ci/wheels:latest"]
    assert (settings["User"], settings["Labels"]) == ("dev", {"a": "1"})
    assert {"QNN_CI_PROFILE=wheels", "QNN_SDK_ROOT=/opt/qnn-ci/qnn-sdk"} <= set(settings["Env"])


def test_a_script_that_fails_leaves_no_image_and_its_last_lines_are_shown(order: Order) -> None:
    engine = Workshop(output="E: broken\n", code=100)
    with pytest.raises(CheckFailed, match="E: broken"):
        build(order, engine, "qnn-ci/wheels:latest")
    assert list(engine.images) == ["sha256:base"]
    assert "E: broken" in order.log.read_text()


def test_a_full_disk_is_the_machines_fault(order: Order) -> None:
    with pytest.raises(EnvironmentLacking):
        build(order, Workshop(output="cp: No space left on device\n", code=1), "qnn-ci/wheels:latest")


def test_two_builds_share_no_layer_and_leave_no_image(order: Order) -> None:
    engine = Workshop()
    build(order, engine, "qnn-ci/wheels:latest")
    before = set(engine.images)
    (first, second), differing = build_twice(order, engine)
    assert (first == second, differing, len(engine.jobs)) == (True, [], 12)
    assert set(engine.images) == before


def test_a_layer_that_differs_between_two_builds_is_named_and_both_are_kept(order: Order) -> None:
    engine = Workshop([b"", b"one", b"", b"", b"", b"two", b"", b""])
    (first, second), differing = build_twice(order, engine)
    assert (first == second, differing) == (False, ["make-environments nox tools"])
    assert list(engine.images) == ["sha256:base", *compared_tags(order.plan)]


# The engine, and entering an image


class Docker:
    """Stands for docker's SDK, with one container: notes how it is made, and what becomes of it."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.noted: list[object] = []
        self.containers = self.api = self

    def info(self) -> dict[str, object]:
        return {}

    def create(self, image: str, command: list[str], **options: object) -> Docker:
        self.noted.append((options["network_mode"], options["use_config_proxy"]))
        return self

    def start(self) -> None:
        self.noted.append("started")

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self.code}

    def logs(self, *, stdout: bool, stderr: bool) -> bytes:
        return b"out" if stdout else b"err"

    def commit(self, *name: str, conf: object) -> None:
        self.noted.append(name)

    def remove(self, **_: object) -> None:
        self.noted.append("removed")


@pytest.mark.parametrize(("code", "image"), [(0, [("qnn-ci/net", "latest")]), (1, [])])
def test_a_command_has_no_network_and_becomes_an_image_only_if_it_succeeds(
    code: int, image: list[object]
) -> None:
    docker: Any = Docker(code)
    done = Engine(docker).run("base", ["true"], commit="qnn-ci/net:latest")
    assert docker.noted == [("none", False), "started", *image, "removed"]
    assert (done.returncode, done.stdout, done.stderr) == (code, "out", "err")


def test_an_engine_on_another_processor_is_refused() -> None:
    docker: Any = Docker(0)
    docker.info = lambda: {"Architecture": "aarch64"}
    with pytest.raises(EnvironmentLacking, match="x86-64"):
        Engine(docker)


def test_an_engine_without_root_or_of_podman_is_found_by_its_socket(tmp_path: Path) -> None:
    places = ("/nowhere/docker.sock", "{runtime}/docker.sock", "{runtime}/podman/podman.sock")
    environ = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)}
    (tmp_path / "podman").mkdir()
    for place in ("podman/podman.sock", "docker.sock"):
        with socket.socket(socket.AF_UNIX) as engine:
            engine.bind(str(tmp_path / place))
        assert engine_address(environ, places) == f"unix://{tmp_path}/{place}"
    assert engine_address({**environ, "DOCKER_HOST": "tcp://far:2376"}, places) == "tcp://far:2376"


def test_the_engine_of_the_current_context_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    name = hashlib.sha256(b"rootless").hexdigest()
    meta = tmp_path / ".docker/contexts/meta" / name / "meta.json"
    meta.parent.mkdir(parents=True)
    endpoint = {"docker": {"Host": "unix:///run/user/7/docker.sock", "SkipTLSVerify": False}}
    meta.write_text(json.dumps({"Name": "rootless", "Metadata": {}, "Endpoints": endpoint}))
    (tmp_path / ".docker/config.json").write_text('{"currentContext": "rootless"}')
    assert engine_address({"HOME": str(tmp_path)}) == "unix:///run/user/7/docker.sock"


def test_the_verb_ends_with_3_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert main("python -m ci", "", VERBS, ["image", "wheels", "--reports", str(tmp_path)]) == 3
    assert "Traceback" not in capsys.readouterr().err
    assert '"outcome": "error"' in (tmp_path / "image.json").read_text()


OF_WHEELS = plan_of("wheels")


def argv(tmp_path: Path, owner: str = "1000:1000", where: Path | None = None, **environ: str) -> list[str]:
    return docker_run(
        OF_WHEELS,
        ["true"],
        owner=owner,
        terminal=False,
        environ=environ,
        cwd=where or tmp_path,
        root=tmp_path,
    )


def test_a_command_runs_as_the_caller_in_the_checkout_and_writes_nothing_to_the_image(tmp_path: Path) -> None:
    words = argv(tmp_path, "1234:99", where=tmp_path / "docs", QNN_CI_SOC="SM8750", QNN_SDK_ROOT="/mine")
    assert words[words.index("--user") + 1] == "1234:99"
    assert "--read-only" in words and "--tty" not in words
    assert words[words.index("--workdir") + 1] == str(tmp_path / "docs")
    assert words.count("--volume") == 1 and f"{tmp_path}:{tmp_path}" in words
    assert "QNN_CI_SOC" in words and "QNN_SDK_ROOT" not in words
    assert words[-2:] == [OF_WHEELS.tag, "true"]


def test_packages_of_a_suite_come_from_the_users_index_whose_password_no_process_list_shows(
    tmp_path: Path,
) -> None:
    words = argv(tmp_path, PIP_INDEX_URL="https://ann:secret@index.example/simple")
    assert words[words.index("PIP_INDEX_URL") - 1] == "--env" and "secret" not in " ".join(words)
