"""What `validate` prints as a fix is typed into a shell, without a network: its rule is quiet afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pytest

from provisioning.base.findings import Finding
from provisioning.base.selection import selection_of
from provisioning.base.settings import ROOT
from provisioning.base.stage_run import StageRun
from provisioning.components import NDK_PREBUILT
from provisioning.validation import catalogue, check
from provisioning.validation.context import gather
from provisioning.verbs import validate
from tests.support.elves import Library
from tests.support.environments import NDK, PROFILE, X86, write_ndk, write_sdk
from tests.support.sdk import link_or_copy, provisioned_sdk
from tests.support.typed import parsed
from tests.support.windows import dll

DROPPED = {"LD_LIBRARY_PATH", "ADSP_LIBRARY_PATH", "QNN_SDK_ROOT", "GITHUB_ACTIONS", "QNN_CI_PROFILE", "CI"}
OFFLINE = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
SHELL = """\
python() { "$PYTHON" "$@"; }
nox() { verb=$2; shift 2; [ "$1" != -- ] || shift; python -m provisioning "$verb" "$@"; }
set -e
"""
"""A session of provisioning takes the words of its verb; nox itself is tried in test_noxfile.py."""


BROKEN = "v2.51.0.260929181845"
"""A build that executorch cannot drive."""
LINUX, ANDROID = "lib/aarch64-oe-linux-gcc11.2", "lib/aarch64-android"
WINDOWS = "lib/aarch64-windows-msvc"
SKELS = "lib/hexagon-v{0}/unsigned/libQnnHtpV{0}Skel.so"
REPAIR = "nox -s store -- repair"
PINNED = "unset QNN_SDK_ROOT; nox -s provision"
NARROW = ("--profile", "wheels-2.51", "--target", "aarch64-windows")
"""Another profile, and one target."""
STUB = f"{WINDOWS}/QnnHtpV73Stub.dll"
ENV = 'eval "$(nox -s env)"'


@dataclass
class Site:
    """A tree of a store, a folder of the test's own, and the user's variables and flags."""

    tree: Path
    folder: Path
    environ: dict[str, str]
    flags: list[str] = field(default_factory=list)

    def write(self, place: str, content: bytes) -> None:
        """In place of a file of the tree, which other stores may share."""
        path = self.tree / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    def take(self, place: str, other: str) -> None:
        self.write(place, (self.tree / other).read_bytes())


Spoil = Callable[[Site], None]


@dataclass(frozen=True)
class Row:
    rule: str
    spoil: Spoil
    types: str
    """As the finding prints it, perhaps within more."""
    instead: str = ""
    """What of this is typed where it is words, or has a placeholder; `{folder}` is the test's."""
    provisioned: tuple[str, ...] = ()
    """The flags of the only tree; empty: one for all targets."""


def swapped(place: str, other: str) -> Spoil:
    return lambda site: site.take(place, other)


def written(place: str, content: bytes) -> Spoil:
    return lambda site: site.write(place, content)


def lacking(place: str, *flags: str) -> Spoil:
    def spoil(site: Site) -> None:
        for path in site.tree.glob(place):
            path.unlink()
        site.flags += flags

    return spoil


def variables(**values: str) -> Spoil:
    """`{tree}` and `{folder}` are the site's."""

    def spoil(site: Site) -> None:
        for name, value in values.items():
            site.environ[name] = value.format(tree=site.tree, folder=site.folder)

    return spoil


def half(site: Site) -> None:
    place = f"lib/{X86}/libQnnSystem.so"
    content = (site.tree / place).read_bytes()
    site.write(place, content[: len(content) // 2])


other_build = written(f"lib/{X86}/libQnnIr.so", Library(content=f"{BROKEN}\0".encode()).encode())


def elsewhere(spoil: Spoil) -> Spoil:
    """The same of `NARROW`."""

    def of_narrow(site: Site) -> None:
        site.flags += [*NARROW, "--soc", "SC8380XP"]
        spoil(site)

    return of_narrow


def own_sdk(site: Site) -> None:
    """The user's own SDK, of a build that no profile pins, and which has not even a stub."""
    root = site.folder / "sdk"
    if not root.is_dir():
        for name in ("libQnnHtp.so", "libQnnSystem.so"):
            for folder in (f"lib/{X86}", LINUX):
                Library(soname=name, content=f"{BROKEN}\0".encode()).write(root / folder / name)
        (root / "sdk.yaml").write_text(f"version: {BROKEN[1:].rpartition('.')[0]}\nbuild_id: {BROKEN}\n")
    site.environ["QNN_SDK_ROOT"] = str(root)


def own_device_sdk(site: Site) -> None:
    own_sdk(site)
    site.flags += ["--target", "aarch64-linux"]


def other_ndk(site: Site) -> None:
    site.environ["QNN_SDK_ROOT"] = str(write_sdk(site.folder / "sdk"))
    site.environ["ANDROID_NDK_ROOT"] = str(write_ndk(site.folder / "r26d", "26.3.11579264"))
    write_ndk(site.folder / "pinned", NDK)
    site.flags += ["--profile", PROFILE, "--target", "aarch64-android"]


def broken_ndk(site: Site) -> None:
    other_ndk(site)
    root = write_ndk(site.folder / "broken", NDK)
    (root / NDK_PREBUILT / "bin" / "clang++").write_bytes(b"")
    site.environ["ANDROID_NDK_ROOT"] = str(root)


def hidden_executorch(site: Site) -> None:
    (site.folder / "src" / "executorch").mkdir(parents=True)
    site.environ["PYTHONPATH"] = str(site.folder / "src")


BUILD = "gcc -shared -o {lib}/libX.so {folder}/x.c"
BUILD_ANDROID = (
    "clang --target=aarch64-linux-gnu -shared -fPIC -nostdlib -fuse-ld=lld -o {lib}/libX.so {folder}/x.c"
)


def built(command: str, folder: str = f"lib/{X86}") -> Spoil:
    """A library of the user's own beside the SDK's, by this command."""

    def spoil(site: Site) -> None:
        (site.tree / folder).mkdir(exist_ok=True)
        (site.folder / "x.c").write_text("int a; int *b = &a; int f(void) { return a + *b; }\n")
        site.environ["lib"] = str(site.tree / folder)
        words = command.format(lib=site.tree / folder, folder=site.folder).split()
        subprocess.run(words, check=True, capture_output=True)

    return spoil


OFFICIAL = "the zip of an official SDK"
MACHINE = "another machine, Python or distribution"
NDK_BUILD = "an NDK, whose start files write the note"

NOT_RUN = {
    "quantization-constraints": OFFICIAL,
    "official-files": "the hash of each file of a release that its vendor alone has; tests/lab/test_lock.py",
    "own-tree": "an SDK of the user's own; tests/unit/test_own_trees.py adopts one",
    "open-files": "files of another user, or that all may write; the fix is chmod",
    "system-library": "a library that somebody put beside QNN's; the fix is to remove it",
    "hexagon-sdk-version": "a Hexagon SDK, of which the vendor asks for an account",
    "python-packages": "its session makes an environment; tests/integration/test_noxfile.py runs sessions",
    "cxx-compiler": MACHINE,
    "glibc-version": MACHINE,
    "host-os": MACHINE,
    "lpai-libraries": OFFICIAL,
    "symbol-versions": MACHINE,
    "android-api": NDK_BUILD,
}
"""Rules whose fix needs what is not here."""

ROWS = (
    Row("qnn-version", own_sdk, PINNED),
    Row("qnn-build-id", own_sdk, PINNED),
    Row("qnn-build-id", other_build, REPAIR),
    Row("store-tree", other_build, REPAIR),
    Row(
        "soc-known",
        variables(QNN_CI_SOC="SM7950"),
        "a chip that this one knows",
        "export QNN_CI_SOC=SM8650",
    ),
    Row(
        "ndk-revision",
        other_ndk,
        "point ANDROID_NDK_ROOT to the pinned NDK",
        "export ANDROID_NDK_ROOT={folder}/pinned",
    ),
    Row(
        "ndk-usable",
        broken_ndk,
        "install the NDK for Linux on x86-64 again",
        "export ANDROID_NDK_ROOT={folder}/pinned",
    ),
    Row("python-path", hidden_executorch, "unset PYTHONPATH"),
    Row(
        "required-libraries",
        lacking(f"lib/{X86}/libHtpPrepare.so"),
        "nox -s provision -- --target x86_64-linux",
    ),
    Row("required-libraries", own_sdk, f"{PINNED} -- --target x86_64-linux"),
    Row(
        "soc-libraries",
        lacking(SKELS.format(79), "--target", "aarch64-linux", "--soc", "SM8750"),
        "nox -s provision -- --target aarch64-linux --soc SM8750",
    ),
    Row("soc-libraries", own_device_sdk, f"{PINNED} -- --target aarch64-linux --soc SM8650"),
    Row("one-build-id", other_build, REPAIR),
    Row("library-name", swapped(f"{LINUX}/libQnnHtpV75Stub.so", f"{LINUX}/libQnnHtpV79Stub.so"), REPAIR),
    Row("elf-readable", half, REPAIR),
    Row("elf-machine", swapped(f"{LINUX}/libQnnSaver.so", f"lib/{X86}/libQnnSaver.so"), REPAIR),
    Row("hexagon-arch", swapped(SKELS.format(75), SKELS.format(79)), REPAIR),
    Row("needed-resolved", lacking(f"lib/{X86}/libunwind*"), REPAIR),
    Row(
        "android-page-size",
        built(f"{BUILD_ANDROID} -Wl,-z,max-page-size=4096", ANDROID),
        "-Wl,-z,max-page-size=16384",
        f"{BUILD_ANDROID} -Wl,-z,max-page-size=16384",
    ),
    Row(
        "text-relocations", built(f"{BUILD} -fno-pic -mcmodel=large -Wl,-z,notext"), "-fPIC", f"{BUILD} -fPIC"
    ),
    Row(
        "executable-stack",
        built(f"{BUILD} -fPIC -Wl,-z,execstack"),
        "-Wl,-z,noexecstack",
        f"{BUILD} -fPIC -Wl,-z,noexecstack",
    ),
    Row(
        "absolute-rpath",
        built(f"{BUILD} -fPIC -Wl,-rpath,/build/out/lib"),
        "-Wl,-rpath,'$ORIGIN'",
        f"{BUILD} -fPIC -Wl,-rpath,'$ORIGIN'",
    ),
    Row(
        "pe-machine",
        written(f"{WINDOWS}/QnnGpu.dll", dll(0x8664)),
        REPAIR,
    ),
    Row("user-variables", variables(LD_LIBRARY_PATH=f"{{tree}}/lib/{X86}:/opt/qairt/{ANDROID}"), ENV),
    Row("user-variables", variables(QNN_SDK_ROOT=""), ENV),
    Row(
        "user-variables",
        variables(ANDROID_NDK_ROOT="{folder}/a", ANDROID_NDK_HOME="{folder}/b"),
        "unset a variable that it does not set",
        "unset ANDROID_NDK_ROOT ANDROID_NDK_HOME",
    ),
    Row(
        "compiler-answers",
        lacking(f"lib/{X86}/libunwind*"),
        REPAIR,
        # Alone: the compiler trips over other spoilt libraries first.
        instead=REPAIR,
    ),
    *(
        Row(rule, elsewhere(spoil), types, provisioned=NARROW)
        for rule, spoil, types in (
            ("pe-machine", written(f"{WINDOWS}/QnnGpu.dll", dll(0x8664)), REPAIR),
            ("store-tree", written(f"{WINDOWS}/QnnGpu.dll", dll(0x8664)), REPAIR),
            (
                "soc-libraries",
                lacking(STUB),
                f"nox -s provision -- {' '.join(NARROW)} --soc SC8380XP",
            ),
            (
                "required-libraries",
                lacking(f"{WINDOWS}/QnnSystem.dll"),
                f"nox -s provision -- {' '.join(NARROW)}",
            ),
            ("required-libraries", own_sdk, f"{PINNED} -- {' '.join(NARROW)}"),
            (
                "user-variables",
                variables(LD_LIBRARY_PATH=f"{{tree}}/lib/{X86}:/opt/qairt/{ANDROID}"),
                f'eval "$(nox -s env -- {" ".join(NARROW)})"',
            ),
        )
    ),
)


def test_each_rule_has_its_fix_typed_or_the_reason_why_not() -> None:
    assert {row.rule for row in ROWS}.isdisjoint(NOT_RUN)
    assert {*NOT_RUN, *(row.rule for row in ROWS)} == {*catalogue()}


def typed_of(row: Row) -> tuple[str, str, tuple[str, ...]]:
    return row.types, row.instead, row.provisioned


TYPED = {words: [*rows] for words, rows in groupby(sorted(ROWS, key=typed_of), key=typed_of)}
"""The rows by what is typed: it is typed once for all of them."""


def findings(rules: Iterable[str], site: Site, environ: dict[str, str]) -> dict[str, list[Finding]]:
    """Of each rule alone what it finds."""
    selection = selection_of(parsed(validate, *site.flags), environ)
    chosen = {rule: catalogue()[rule] for rule in rules}
    asks_compiler = any(rule.asks_compiler for rule in chosen.values())
    contexts = gather(selection, environ, asks_compiler=asks_compiler)
    printed = {}
    for rule, row in chosen.items():
        stage = StageRun(
            "validate", selection.profile, selection.target, "", [*check(contexts, [row])[0].findings]
        )
        printed[rule] = [*stage.finish().findings]
    return printed


def store_with(tree: Path, store: Path) -> Path:
    """The same tree in another store, with what it was made of; they share their files."""
    copy = store / "trees" / tree.name
    shutil.copytree(tree, copy, copy_function=link_or_copy)
    link_or_copy(f"{tree}.json", f"{copy}.json")
    shutil.copytree(tree.parents[1] / "downloads", store / "downloads", copy_function=link_or_copy)
    return copy


def site_of(provisioned: tuple[str, ...], tmp_path: Path) -> Site:
    tree = store_with(provisioned_sdk(*provisioned), tmp_path / "store")
    environ = {name: value for name, value in os.environ.items() if name not in DROPPED} | OFFLINE
    ours = {"STORE": tmp_path / "store", "REPORTS": tmp_path / "reports"}
    environ |= {f"QNN_CI_{name}": str(path) for name, path in ours.items()}
    return Site(tree, tmp_path, {**environ, "PYTHON": sys.executable})


@pytest.mark.heavy
@pytest.mark.needs("clang++", "ld.lld")
@pytest.mark.long("types each printed fix, some of which provision")
@pytest.mark.parametrize("words", TYPED, ids=lambda words: words[0])
def test_a_printed_fix_makes_its_rules_quiet(words: tuple[str, str, tuple[str, ...]], tmp_path: Path) -> None:
    rows = TYPED[words]
    *texts, provisioned = words
    site = site_of(provisioned, tmp_path)
    for row in rows:
        row.spoil(site)
    found = findings((row.rule for row in rows), site, site.environ)
    types, instead = (text.format(folder=site.folder, lib=site.environ.get("lib")) for text in texts)
    for row in rows:
        assert any(types in finding.fix for finding in found[row.rule]), (row.rule, types, found[row.rule])
    script = f"{SHELL}{instead or types}\nexec env -0\n"
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, env=site.environ, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    after = dict(line.split("=", 1) for line in done.stdout.decode().split("\0") if "=" in line)
    assert {rule: left for rule, left in findings(found, site, after).items() if left} == {}
