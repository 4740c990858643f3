"""`inspect` and `signing` meet mutated files of every kind, for a bounded time."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import struct
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ci.artifacts.compiler_log import NATIVE_ERROR, refusals, traffic
from ci.inspect import verb
from ci.signing import lpai_signers, verification
from provisioning import archive
from provisioning.base.errors import ToolkitError
from tests.support import chains, zips
from tests.support.elves import Library, skel
from tests.support.onnx_models import context_model
from tests.support.programs import BUILD_ID, context, program
from tests.support.skels import Skel
from tests.support.typed import run_here
from tests.support.windows import dll

SECONDS = 90
"""For each kind: twenty minutes in all."""
LONGEST = dt.timedelta(seconds=5)
"""For one file, of a few kilobytes."""
INTERESTING = (0, 1, 4, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)

Change = tuple[str, int, int, bytes]


def inspected(path: Path) -> None:
    for flags in ((), ("--json",), ("--extract", str(path.parent / "out"))):
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(ToolkitError):
            run_here(verb, path, *flags)


def of_signing(path: Path) -> None:
    with contextlib.suppress(ToolkitError):
        json.dumps(asdict(verification.inspect(path)))
        verification.verify_file(path)


def of_log(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    traffic(text), refusals(text), NATIVE_ERROR.findall(text)


def of_archive(path: Path) -> None:
    with contextlib.suppress(ToolkitError):
        archive.extract(path, path.parent / "tree", lambda name: name)


def members(contents: Mapping[str, bytes | str]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as target:
        for name, content in contents.items():
            target.writestr(name, content)
    return stream.getvalue()


def model(folder: Path, *, embed: bool) -> bytes:
    return context_model(folder, embed=embed).read_bytes()


GRAPH = struct.pack("<3I", 0x4AD5, 1, 8) + b"NETD" + bytes(40)
CACHES = {f"htp.cache.{chip}.0": f"{BUILD_ID} {chip}" for chip in ("sm8650", "sm8750")}
LOG = (
    "===== DDR bandwidth summary =====\nspill_bytes=1\nfill_bytes=2\n\n[ERROR] [Qnn ExecuTorch]: <E> no\n"
    "[W:onnxruntime:, a.cc] failed for node `relu` of type `Relu` with error code 3110\n"
)
LIBRARY = Library(
    soname="a.so",
    needed=("libc.so.6",),
    versions={"libc.so.6": ("GLIBC_2.34",)},
    provides=("A",),
    android_api=30,
)

KINDS: dict[str, tuple[Callable[[Path], bytes], Callable[[Path], None]]] = {
    "model.pte": (lambda _: program(), inspected),
    "inline.pte": (lambda _: program(inline=True), inspected),
    "context.bin": (lambda _: context(), inspected),
    "graph.dlc": (lambda _: members({"model": GRAPH}), inspected),
    "flexible.dlc": (lambda _: members(CACHES), inspected),
    "embedded.onnx": (lambda folder: model(folder, embed=True), inspected),
    "beside.onnx": (lambda folder: model(folder, embed=False), inspected),
    "library.so": (lambda _: LIBRARY.encode(), inspected),
    "QnnHtp.dll": (lambda _: dll(content=BUILD_ID.encode()), inspected),
    "libQnnHtpV75Skel.so": (
        lambda _: lpai_signers.rehearse(Skel().encode(), chains.signer(), (0xABC,)),
        of_signing,
    ),
    "libQnnHtpV73Skel.so": (lambda _: skel(73, BUILD_ID).encode(), of_signing),
    "compile.log": (lambda _: LOG.encode(), of_log),
    "sdk.zip": (lambda _: zips.build(zips.folder("lib/"), zips.Item("lib/a", b"text" * 30)), of_archive),
}


def changes() -> st.SearchStrategy[list[Change]]:
    """Places are shares of the file, so that the same changes fit a file of any size."""
    place = st.integers(0, (1 << 16) - 1)
    kind = st.sampled_from(["byte", "number", "offset", "copy", "cut", "insert"])
    return st.lists(st.tuples(kind, place, place, st.binary(min_size=1, max_size=24)), min_size=1, max_size=8)


def changed(data: bytes, made: list[Change]) -> bytes:
    content = bytearray(data)
    for kind, first, second, new in made:
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


@pytest.mark.whole
@pytest.mark.timeout(4 * SECONDS)
@pytest.mark.parametrize("name", KINDS)
def test_a_mutated_file_is_read_or_refused(tmp_path: Path, name: str) -> None:
    seed, read = KINDS[name]
    path, whole = tmp_path / name, seed(tmp_path)
    path.write_bytes(whole)
    read(path)

    @settings(deadline=LONGEST, suppress_health_check=[HealthCheck.too_slow])
    @given(changes())
    def is_read_or_refused(made: list[Change]) -> None:
        path.write_bytes(changed(whole, made))
        read(path)

    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        is_read_or_refused()
