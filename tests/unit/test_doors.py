"""What a stranger may send us, a test for each door: programs, packages, libraries, logs, archives, reports
and stores made to do harm end within seconds in an error, without more memory or files than they may have.

The comment job's door is in test_github_comment.py, a mirror's answers are in test_download.py.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import struct
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.__main__ import VERBS
from ci.artifacts.program import CONTEXT_MARK
from ci.device.bundle_contents import MANIFEST_NAME, read_bundle
from ci.diagnose.logs import read
from ci.diagnose.rules import failure_rules
from ci.report.collect import collect
from ci.signing import signed_writer
from provisioning import archive
from provisioning.base import foreign
from provisioning.base.command_line import main
from provisioning.base.errors import ArchiveError, ToolkitError
from provisioning.base.findings import Outcome, Report
from provisioning.store import Store
from tests.support import chains, hostile
from tests.support.elves import Library, skel
from tests.support.hostile import EVIL, steers
from tests.support.image_archives import tar
from tests.support.onnx_models import context_model
from tests.support.programs import BUILD_ID, context, program
from tests.support.skels import Skel
from tests.support.windows import dll
from tests.support.zips import STORED, Item, build, deflated, folder, link

SECONDS, MEMORY = 0.2, 256 << 20
MOST_SECONDS = 3
"""What is done beside, and a tenth of a second more for each refusal that counts as damage of one part."""

Content = bytes | Callable[[Path], bytes]
"""Or what makes it in a folder, where that takes long: all workers of a run import this page."""


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(foreign, "SECONDS", SECONDS)
    monkeypatch.setattr(foreign, "MEMORY", MEMORY)
    monkeypatch.setenv("QNN_CI_REPORTS", str(tmp_path / "own reports"))
    monkeypatch.chdir(tmp_path)


def peak() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(row.split()[1]) << 10 for row in status.splitlines() if row.startswith("VmHWM:"))


def entered(capsys: pytest.CaptureFixture[str], *words: str | Path) -> int:
    """The exit code of a command that met a stranger's file, which is held to what this page promises."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    memory, began = peak(), time.process_time()
    code = main("python -m ci", "", VERBS, [*map(str, words)])
    out, err = capsys.readouterr()
    assert time.process_time() - began < MOST_SECONDS
    assert peak() - memory < 2 * MEMORY
    assert code in (0, 1, 2), err
    assert steers(out + err) == [] and "Traceback" not in err
    assert code == 0 or out or "error: " in err
    return code


def write(path: Path, content: Content, folder: Path) -> None:
    path.write_bytes(content if isinstance(content, bytes) else content(folder))


def files_in(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


# A posted program


FRAMED = struct.pack("<IQQ", 0x5678ABCD, 1, len(context())).ljust(256, b"\0") + context()
WHOLE = program(data=FRAMED)
BASE = len(WHOLE) - len(FRAMED)
"""Where its one segment begins."""
CUT = CONTEXT_MARK + struct.pack("<3Q", 16, 4096, 512) + BUILD_ID.encode()


def patched(data: bytes, at: int, form: str, *values: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, at, *values)
    return bytes(changed)


def zipped(members: Mapping[str, bytes | str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
        for name, content in members.items():
            target.writestr(name, content)
    return file.getvalue()


def many_entries(count: int) -> bytes:
    """An archive whose directory has one member so often."""
    whole = build(Item("lib/a.so", b"", method=STORED))
    at = whole.index(b"PK\1\2")
    end = whole.index(b"PK\5\6")
    entry = whole[at:end]
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, count * len(entry), at)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, at + count * len(entry), 1)
    last = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return whole[:at] + entry * count + record + locator + last


OWN = b"model_ctx_qnn.bin"
"""The file that a compiled model names."""


def model_with(folder: Path, text: bytes, other: bytes) -> bytes:
    whole = context_model(folder / "seed").read_bytes()
    assert text in whole and len(text) == len(other)
    return whole.replace(text, other)


PROGRAMS: dict[str, Content] = {
    "empty.pte": b"",
    "short.pte": WHOLE[:12],
    "cut.pte": WHOLE[:-10],
    "zip.pte": b"PK\x03\x04" * 40,
    "header ends early.pte": WHOLE[:31],
    "header too long.pte": patched(WHOLE, 12, "<IQQ", 24, len(WHOLE) + 1, BASE),
    "header too short.pte": patched(WHOLE, 12, "<IQQ", 23, BASE, BASE),
    "segments outside.pte": patched(WHOLE, 12, "<IQQ", 24, BASE, len(WHOLE) + 1),
    "a name without end.pte": patched(WHOLE, WHOLE.index(b"forward") - 4, "<I", 0x7FFFFFFF),
    "root outside.pte": patched(WHOLE, 0, "<I", 0xFFFFFFF0),
    "root in the header.pte": patched(WHOLE, 0, "<I", 4),
    "shared plans.pte": lambda _: hostile.shared_plans(1500),
    "shared lists.pte": lambda _: hostile.shared_plans(400),
    "overlapping.pte": hostile.overlapping_contexts(2),
    "many overlapping.pte": lambda _: hostile.overlapping_contexts(300),
    "../../x.pte": WHOLE.replace(b"forward", b"../../x"),
    "context too long.pte": program(data=FRAMED[:-8]),
    "context.bin": CUT,
    "mark.bin": CONTEXT_MARK[:6],
    "no number.onnx": b"\x3a" + b"\xff" * 20,
    "cut.onnx": lambda folder: context_model(folder / "seed").read_bytes()[:-9],
    "deep.onnx": b"\x3b" * 200_000,
    "fields.onnx": lambda _: hostile.empty_fields(400_000),
    "memory.onnx": lambda _: hostile.empty_nodes(12_000_000),
    "no text.onnx": lambda folder: model_with(folder, b"EPContext", b"EPC\xffntext"),
    "above.onnx": lambda folder: model_with(folder, OWN, b"../secret.bin////"),
    "absolute.onnx": lambda folder: model_with(folder, OWN, b"/etc/passwd//////"),
    "NUL.onnx": lambda folder: model_with(folder, OWN, b"a\0b//////////////"),
    "cut.dlc": zipped({"model": b"x" * 99})[:-30],
    "other.dlc": zipped({EVIL: b""}),
    "names.so": lambda _: hostile.nested_names(16_000),
    "notes.so": lambda _: hostile.notes(1_000_000),
    "circles.so": lambda _: hostile.circles(3000),
    "headers nowhere.so": patched(Library().encode(), 32, "<Q", 1 << 62),
    "version.dlc": zipped({"model": b"x"}).replace(b"PK\1\2\x14\x03\x14", b"PK\1\2\x14\x03\x4b"),
    "cut.so": Library(needed=("libc.so.6",)).encode()[:-1],
    "cut.dll": dll()[:90],
}

TAKEN_OUT = ("../../x.pte", "context too long.pte")
"""What is refused as its context is taken out."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "secret.bin").write_text(BUILD_ID)
    (here := tmp_path / "here").mkdir()
    path = here / name.replace("/", "_")
    write(path, PROGRAMS[name], tmp_path)
    before = files_in(tmp_path)
    assert entered(capsys, "inspect", path, "--json") == (name not in TAKEN_OUT)
    if name in TAKEN_OUT:
        assert entered(capsys, "inspect", path, "--extract", here / "out") == 1
    assert files_in(tmp_path) == before


def test_a_program_that_waits_or_steers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.pte")
    assert entered(capsys, "inspect", tmp_path / "pipe.pte") == 2
    (tmp_path / "::error::x.pte").write_bytes(WHOLE)
    assert entered(capsys, "inspect", tmp_path / "::error::x.pte") == 0
    command = WHOLE.replace(b"forward", b"\n::e::x")
    (tmp_path / "command.pte").write_bytes(command)
    assert entered(capsys, "inspect", tmp_path / "command.pte", "--extract", tmp_path / "out") == 0
    (tmp_path / "evil.dlc").write_bytes(zipped({EVIL: b"", "model": b"NETD"}))
    assert entered(capsys, "inspect", tmp_path / "evil.dlc") == 0


SEEDS: dict[str, Callable[[Path], bytes]] = {
    "model.pte": lambda _: WHOLE,
    "inline.pte": lambda _: program(inline=True),
    "context.bin": lambda _: context(),
    "both.dlc": lambda _: zipped({"model": b"NETD", "htp.cache.sm8650.0": BUILD_ID}),
    "embedded.onnx": lambda folder: context_model(folder / "seed", embed=True).read_bytes(),
    "library.so": lambda _: Library(needed=("libc.so.6",), android_api=30).encode(),
    "QnnHtp.dll": lambda _: dll(content=BUILD_ID.encode()),
    "app.apk": lambda _: build(folder("lib/"), Item("lib/arm64-v8a/libQnnHtp.so", b"text" * 30)),
    "libQnnHtpV75Skel.so": lambda _: signed_writer.sign_library(Skel().encode(), chains.signer(), (0xABC,)),
    "libQnnHtpV73Skel.so": lambda _: skel(73, BUILD_ID).encode(),
    "logs.zip": lambda _: zipped({"a.log": failure_rules()["libcxx-missing"].example}),
}
INTERESTING = (0, 1, 4, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
SHARE = st.integers(0, (1 << 16) - 1)
KINDS = st.sampled_from(["byte", "number", "offset", "copy", "cut", "insert"])
CHANGES = st.lists(st.tuples(KINDS, SHARE, SHARE, st.binary(min_size=1, max_size=24)), min_size=1, max_size=8)


def changed(data: bytes, changes: list[tuple[str, int, int, bytes]]) -> bytes:
    """Places are shares of the file, so that the same changes fit a file of any size."""
    content = bytearray(data)
    for kind, first, second, new in changes:
        at, other = (len(content) * place >> 16 for place in (first, second))
        word = at & ~3
        if kind == "byte":
            content[at : at + 1] = new[:1]
        elif kind == "number":
            content[word : word + 4] = struct.pack("<I", INTERESTING[second % len(INTERESTING)])
        elif kind == "offset":
            content[word : word + 4] = content[other & ~3 : (other & ~3) + 4]
        elif kind == "copy":
            content[at : at + 64] = content[other : other + 64]
        elif kind == "cut":
            del content[at : at + len(new) * (1 + second % 64)]
        else:
            content[at:at] = new * (1 + second % 64)
    return bytes(content)


@pytest.mark.parametrize("examples", [20, pytest.param(2000, marks=pytest.mark.whole)])
@pytest.mark.parametrize("name", SEEDS)
def test_any_file_with_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, examples: int
) -> None:
    whole, path = SEEDS[name](tmp_path), tmp_path / name
    signed = "Skel" in name
    words = ("diagnose",) if name == "logs.zip" else ("signing", "inspect") if signed else ("inspect",)
    path.write_bytes(whole)
    entered(capsys, *words, path)

    @settings(max_examples=examples, deadline=None, suppress_health_check=[*HealthCheck])
    @given(CHANGES)
    def is_read_or_refused(changes: list[tuple[str, int, int, bytes]]) -> None:
        path.write_bytes(changed(whole, changes))
        entered(capsys, *words, path)
        if signed:
            entered(capsys, "signing", "verify", path)

    is_read_or_refused()


# An archive of a mirror whose hash is not known, and a posted package: both are unpacked by the same


ARCHIVES = {
    "absolute name": build(Item("/etc/passwd.so")),
    "parent at the start": build(Item("../evil.so")),
    "empty part": build(Item("a//b.so")),
    "empty name": build(Item("")),
    "backslashes up": build(Item("..\\..\\evil.so")),
    "a name that is a command": build(Item("\n::error::x.so")),
    "name too long for a file system": build(Item("a" * 256 + ".so")),
    "encrypted": build(Item("a.so", flags=1)),
    "another compression": build(Item("a.so", method=12)),
    "another one that is damaged": build(Item("a.so", method=14, raw=b"\t\t\5\0" + b"\xff" * 20)),
    "a name that ends at a NUL": build(Item("a.so\0.txt")),
    "data before the file": build(Item("a.so"), start=1_000),
    "page of a web server": b"<html>Access denied</html>",
    "absolute link": build(link("l.so", "/etc/passwd")),
    "link up and out": build(link("d/l.so", "../../evil")),
    "link out by a link": build(link("a/up.so", "../b"), link("l.so", "a/up.so/../../evil")),
    "member through a link": build(link("l.so", "d"), Item("l.so/evil.so")),
    "duplicate": build(Item("a.so", b"1"), Item("a.so", b"2")),
    "file where a directory is needed": build(Item("a.so"), Item("a.so/b.so")),
    "local name": build(Item("good.so", local={"name": b"evil.so"})),
    "more than declared": build(Item("a.so", bytes(5_000_000), size=1_000_000)),
    "less than declared": build(Item("a.so", b"1234", size=9)),
    "wrong checksum": build(Item("a.so", crc=0xDEADBEEF)),
    "deflate stream cut off": build(Item("a.so", raw=deflated(b"content")[:-3])),
    "garbage for data": build(Item("a.so", raw=b"\xff" * 40)),
    "a bomb": build(*(Item(f"{n}.so", raw=deflated(b""), size=0xFFFF_FFF0) for n in range(20))),
    "too many members": many_entries(200_001),
    "folders in each other": build(Item("d/" * 1500 + "a.so")),
    "cut": build(Item("a.so"))[:-9],
}

BEFORE_WRITING = {
    *("absolute name", "parent at the start", "empty part", "empty name", "backslashes up"),
    *("a name that is a command", "page of a web server", "a bomb", "too many members", "cut"),
    *(
        "folders in each other",
        "another compression",
        "another one that is damaged",
        "a name that ends at a NUL",
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.zip").write_bytes(ARCHIVES[name])
    with pytest.raises(ArchiveError, match=r"^a\.zip: ") as refused:
        archive.extract(tmp_path / "a.zip", tmp_path / "here/out", lambda name: name)
    assert refused.value.fix
    assert (tmp_path / "here").exists() == (name not in BEFORE_WRITING)
    assert all(file.startswith("here/out") for file in files_in(tmp_path) - {"a.zip", "here"})
    assert sum(path.stat().st_size for path in tmp_path.rglob("here/out/*.so") if path.is_file()) <= 1_000_000


# Counted by the same, and long to read.
@pytest.mark.parametrize("name", [name for name in ARCHIVES if name != "too many members"])
def test_a_package(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "app.apk").write_bytes(ARCHIVES[name])
    assert entered(capsys, "inspect", tmp_path / "app.apk") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"app.apk", "own reports"}


def test_the_time_for_a_package_ends_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not for each of its libraries."""
    items = dict.fromkeys((f"lib/arm64-v8a/lib{number}.so" for number in range(12)), hostile.circles(3000))
    (tmp_path / "app.apk").write_bytes(zipped(items))
    assert entered(capsys, "inspect", tmp_path / "app.apk") == 1


@pytest.mark.parametrize("name", ["here/lib/arm64-v8a/libQnnHtp.so", "here/base.apk"])
def test_a_folder_may_take_the_time_of_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    library = Library().encode() + bytes(4 << 20)
    content = zipped({"lib/arm64-v8a/libQnnHtp.so": library}) if name.endswith(".apk") else library
    (path := tmp_path / name).parent.mkdir(parents=True)
    path.write_bytes(content)
    monkeypatch.setattr(foreign, "SECONDS", 0.001)
    monkeypatch.setattr(foreign, "BYTES_A_SECOND", 1)
    main("python -m ci", "", VERBS, ["inspect", str(tmp_path / "here")])
    assert "more memory or time" not in capsys.readouterr().err


# A posted library that is said to be signed


SIGNED = signed_writer.sign_library(Skel().encode(), chains.signer(), (0xABC,))
TABLE = 0x1000
"""Where its hash segment begins."""
SMALL = Skel(content=b"x").encode()
LIBRARIES = {
    "empty": b"",
    "no ELF": b"MZ" * 40,
    "cut header": SMALL[:19],
    "64 bits that are none": SMALL[:4] + b"\2" + SMALL[5:60],
    "headers without end": patched(SMALL, 44, "<H", 0xFFFF),
    "headers of no size": patched(SMALL, 42, "<H", 0),
    "headers outside": patched(SMALL, 28, "<I", 0xFFFFFFF0),
    "a segment outside": patched(SMALL, 52 + 4 * 32 + 16, "<I", len(SMALL)),
    "a segment beyond its memory": patched(SMALL, 52 + 20, "<I", 1),
    "segments that share": patched(SMALL, 52 + 32 + 4, "<I", 0),
    "all bytes 400 times": patched(SMALL[:52], 44, "<H", 400)
    + struct.pack("<8I", 6, 0, 0, 0, 52 + 32 * 400, 52 + 32 * 400, 4, 4) * 400,
    "cut hash segment": SIGNED[: TABLE + 40],
    "another version": patched(SIGNED, TABLE + 4, "<I", 0xFFFFFFFF),
    "hashes without end": patched(SIGNED, TABLE + 20, "<I", 0xFFFFFFFF),
    "a signature of no size": patched(SIGNED, TABLE + 28, "<I", 0),
    "certificates without end": patched(SIGNED, TABLE + 36, "<I", 0x7FFFFFFF),
    "certificates that are none": SIGNED.replace(b"\x30\x82", b"\x30\x84"),
    "two hash segments": patched(SIGNED, 52 + 2 * 32, "<7I", 0, 0, 0, 0, 16, 0, 0x2200000),
    "sections outside": patched(SIGNED, 32, "<I", 0xFFFFFF00),
    "more at its end": SIGNED + bytes(4096),
    "a byte of its code": patched(SIGNED, 0x2000 + 300, "<B", 0xFF),
    "a name that steers": signed_writer.sign_library(
        Skel().encode(), chains.bent(attestation={"subject": chains.name("att\x1b[2J", "unit\x07")})
    ),
    "a text that steers": SIGNED.replace(b"REHEARSAL OF SIGNING:", b"\n::error::\x1b]0;x\x07OF NG:"),
}

HIDDEN = {
    "a signature of no size",
    "certificates that are none",
    "sections outside",
    "more at its end",
    "a byte of its code",
    "a name that steers",
    "a text that steers",
}
"""What only `verify` sees."""


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (tmp_path / "libQnnHtpV75Skel.so").write_bytes(LIBRARIES[name])
    code = entered(capsys, "signing", "inspect", tmp_path / "libQnnHtpV75Skel.so")
    assert code == 1 or name in HIDDEN
    root = tmp_path / "root.pem"
    root.write_bytes(chains.root_pem(chains.signer()))
    assert entered(capsys, "signing", "verify", tmp_path / "libQnnHtpV75Skel.so", "--root", root) == 1


# A posted log


FAILING = failure_rules()["libcxx-missing"].example.encode()
LOGS: dict[str, Content] = {
    "empty.zip": b"",
    "nothing.log": b"",
    "cut.zip": zipped({"a.log": FAILING})[:40],
    "damaged.zip": zipped({"a.log": FAILING * 9}).replace(b"PK\1\2", b"PK\1\3"),
    "garbage.zip": build(Item("a.log", raw=b"\xff" * 40)),
    "checksum.zip": build(Item("a.log", crc=1)),
    "encrypted.zip": build(Item("a.log", flags=1)),
    "compression.zip": build(Item("a.log", method=95)),
    "LZMA.zip": build(Item("a.log", method=14, raw=b"\t\t\5\0" + b"\xff" * 20)),
    "before.zip": build(Item("a.log"), start=1_000),
    "says 4 GB.zip": build(Item("a.log", b"error", size=0xFFFFFFF0)),
    "nothing.zip": zipped({"a.png": b"x"}),
    "errors.zip": lambda _: zipped({"a.log": b"error\n" * 2_000_000}),
    "differ.zip": lambda _: zipped({"a.log": b"\n".join(b"error %x" % (n * 7919) for n in range(200_000))}),
    "bomb.zip": lambda _: zipped({"a.log": bytes(300 << 20)}),
    "logs.tar": tar({"a.log": FAILING * 9}),
    "model.pt2": zipped({"model/data.pkl": b"\x80"}),
    "packed.log.gz": gzip.compress(FAILING),
    "program.pte": WHOLE,
    "no text.log": bytes(range(32)) * 99,
    "members.zip": many_entries(10_000),
    "command.zip": zipped({"\n::error::x.log": FAILING}),
}
READ: dict[str, Content] = {
    "NULs.log": b"error: x\n" * 500 + b"\0" * 9,
    "one line.log": b"error: " + b"x" * 100_000,
    "lines.log": b"\n" * 1_000_000,
    "steers.log": f"error: {EVIL}\n".encode(),
    "steers too.log": b"::error::No Snapdragon SOC detected\x1b]0;title\x07 ##[error]x\n",
    "half a sign.log": b"error: \xed\xa0\x80 \xff\xfe failed\n",
    "odd.log": b"\xff\xfe\x41",
    "numbers.log": b"error code " + b"9" * 20_000 + b" failed\n",
    "../up.zip": zipped({"../../a.log": FAILING, "/etc/a.log": FAILING}),
}


@pytest.fixture(scope="module")
def compiled_rules() -> None:
    """They are compiled as they are first used, which takes longer than the limit of this page."""
    read(FAILING)


@pytest.mark.usefixtures("compiled_rules")
@pytest.mark.parametrize("name", [*LOGS, *READ])
def test_a_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name in READ:
        monkeypatch.setattr(foreign, "SECONDS", MOST_SECONDS)
    path = tmp_path / name.replace("/", "_")
    write(path, (LOGS | READ)[name], tmp_path)
    code = entered(capsys, "diagnose", path)
    assert (code == 2) == (name in LOGS)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


# Documents of others: a report of another job, the inventory of a store that a cache restored, a bundle


def document(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


REPORT = json.loads(
    Report("validate", "wheels", "x86_64-linux", Outcome.PASS, "", 1.0, (), (), {}, "").to_json()
)
INVENTORY = {
    **dict.fromkeys(("component", "version", "build_id", "key", "definition"), "x"),
    "targets": [],
    "origins": [],
    "items": [],
    "schema": 2,
}
DOCUMENTS = {
    "empty": b"",
    "no JSON": b"hello",
    "cut": b'{"schema": 2, ',
    "not UTF-8": b'{"schema": "\xff"}',
    "deep lists": b"[" * 200_000,
    "deep": b'{"files": ' * 100_000,
    "a list": b"[]",
    "null": b"null",
    "a number": b"9" * 5000,
    "a text": b'"validate"',
    "another schema": document(**REPORT | {"schema": 99}),
    "schema of a list": document(schema=[2]),
    "one field more": document(**REPORT | {"more": 1}),
    "a field less": document(**{key: value for key, value in REPORT.items() if key != "outcome"}),
    "lists of numbers": document(**INVENTORY | {"items": [1], "files": [1]}),
    "targets of a number": document(**INVENTORY | {"targets": 7}),
    "a path that leads out": document(**INVENTORY | {"component": "../../x", "files": [{"path": "/etc"}]}),
    "another outcome": document(**REPORT | {"outcome": EVIL}),
    "no number": document(**REPORT | {"seconds": float("nan")}),
    "beyond all numbers": document(**REPORT).replace(b"1.0", b"1e999"),
    "half a sign": document(**REPORT | {"command": "\ud800"}),
    "another stage": document(**REPORT | {"stage": "../../x"}),
    "larger than any report": document(**REPORT) + b" " * (16 << 20),
}


@pytest.fixture(params=DOCUMENTS)
def foreign_document(request: pytest.FixtureRequest) -> Iterator[bytes]:
    yield DOCUMENTS[request.param]


def test_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str], foreign_document: bytes) -> None:
    (reports := tmp_path / "reports").mkdir()
    (reports / "validate.json").write_bytes(foreign_document)
    assert [row.outcome for row in collect(reports)] == [Outcome.ERROR]
    entered(capsys, "report", "--reports", reports)
    entered(capsys, "report", "--reports", tmp_path / "merged", "--merge", reports)
    entered(capsys, "diagnose", "--bundle", reports)


def test_an_inventory(tmp_path: Path, foreign_document: bytes) -> None:
    store = Store(tmp_path)
    (store.folder / "qnn-sdk-1").mkdir(parents=True)
    (store.folder / "qnn-sdk-1.json").write_bytes(foreign_document)
    assert store.trees() == []


def test_a_bundle(tmp_path: Path, foreign_document: bytes) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(foreign_document)
    with pytest.raises(ToolkitError), contextlib.redirect_stdout(io.StringIO()):
        read_bundle(tmp_path)
