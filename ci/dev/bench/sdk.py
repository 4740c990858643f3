"""Generates an archive shaped like Qualcomm's SDK: its directories, file sizes and compressibility.

The same arguments always give the same bytes. Content is cut from a pool of look-alikes (machine code,
tables, strings, zeros, documents), so that deflate finds about as much in it as in the real libraries.
"""

from __future__ import annotations

import os
import random
import struct
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MB = 1_000_000
DATE = (2025 - 1980) << 9 | 7 << 5 | 24
SLICE = 48 << 10
POOL = 12 * MB
WORDS = [
    "tensor", "graph", "backend", "context", "device", "quant", "scale", "offset", "offline", "prepare",
    "signal", "buffer", "memory", "shape", "type", "operator", "register", "power", "perf", "infra",
    "core", "handle", "log", "level", "error", "profile", "property", "config", "interface",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Directory:
    path: str
    files: int
    megabytes: float
    kind: str
    stem: str
    suffix: str


SHAPE = (
    Directory("lib/x86_64-linux-clang", 36, 420, "elf", "libQnn", ".so"),
    Directory("bin/x86_64-linux-clang", 30, 60, "elf", "libQnn", ""),
    Directory("lib/aarch64-android", 48, 230, "elf", "libQnn", ".so"),
    Directory("bin/aarch64-android", 20, 25, "elf", "libQnn", ""),
    Directory("lib/aarch64-oe-linux-gcc11.2", 40, 190, "elf", "libQnn", ".so"),
    Directory("lib/aarch64-ubuntu-gcc9.4", 40, 150, "elf", "libQnn", ".so"),
    Directory("lib/x86_64-windows-msvc", 30, 150, "elf", "libQnn", ".dll"),
    Directory("lib/aarch64-windows-msvc", 40, 130, "elf", "libQnn", ".dll"),
    *(
        Directory(f"lib/hexagon-v{arch}/unsigned", 12, 22, "elf", "libQnn", ".so")
        for arch in (68, 69, 73, 75, 79)
    ),
    Directory("include/QNN", 420, 6, "text", "Qnn", ".h"),
    Directory("docs/QNN/general", 4300, 95, "text", "Qnn", ".html"),
    Directory("examples/QNN", 700, 12, "text", "Qnn", ".cpp"),
    Directory("lib/python/qti", 400, 10, "text", "Qnn", ".py"),
    Directory("share/QNN", 50, 4, "text", "Qnn", ".json"),
)


@dataclass(frozen=True, slots=True)
class Member:
    path: str
    kind: str
    size: int
    seed: int

    @property
    def mode(self) -> int:
        return 0o100755 if self.kind == "elf" else 0o100644


@dataclass(frozen=True, slots=True)
class GeneratedSdk:
    path: Path
    files: int
    unpacked: int


def generate(path: Path, root: str, *, seed: int, scale: float) -> GeneratedSdk:
    """Write the archive to `path`, its members below `root`; `scale` shrinks sizes and counts."""
    members = list(_members(seed, scale))
    pools = _pools(seed)
    cores = len(os.sched_getaffinity(0))
    directory = []
    with path.open("wb") as out, ThreadPoolExecutor(cores) as pool:
        # A few at a time, to save memory.
        for at in range(0, len(members), batch := 4 * cores):
            now = members[at : at + batch]
            for member, (crc, packed) in zip(now, pool.map(lambda m: _deflated(m, pools), now), strict=True):
                name = (root + member.path).encode()
                header = (20, 0, 8, 0, DATE, crc, len(packed), member.size, len(name), 0)
                directory.append(
                    struct.pack(
                        "<4s2B5H3L5H2L", b"PK\1\2", 20, 3, *header, 0, 0, 0, member.mode << 16, out.tell()
                    )
                    + name
                )
                out.write(struct.pack("<4s5H3L2H", b"PK\3\4", *header) + name + packed)
        start, listing = out.tell(), b"".join(directory)
        count = len(directory)
        out.write(listing + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, count, count, len(listing), start, 0))
    return GeneratedSdk(path, len(members), sum(member.size for member in members))


def _deflated(member: Member, pools: dict[str, bytes]) -> tuple[int, bytes]:
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    crc, packed = 0, []
    for block in _content(pools[member.kind], member.size, member.seed):
        crc = zlib.crc32(block, crc)
        packed.append(deflate.compress(block))
    return crc, b"".join([*packed, deflate.flush()])


def _members(seed: int, scale: float) -> Iterator[Member]:
    draw = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    for directory in SHAPE:
        count = max(1, round(directory.files * scale))
        # A few libraries are most of a directory; documents are more alike.
        decay = 0.82 if directory.kind == "elf" else 1.0
        weights = [decay ** min(index, 24) * draw.uniform(0.6, 1.4) for index in range(count)]
        total = directory.megabytes * MB * scale
        for index, weight in enumerate(weights):
            size = max(64, int(total * weight / sum(weights)))
            word = WORDS[index % len(WORDS)]
            folder = f"{directory.path}/{word}" if directory.kind == "text" else directory.path
            name = f"{folder}/{directory.stem}{word.title()}{index}{directory.suffix}"
            yield Member(name, directory.kind, size, draw.getrandbits(32))


def _content(pool: bytes, size: int, seed: int) -> Iterator[bytes]:
    draw = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    remaining = size
    while remaining > 0:
        at = draw.randrange(len(pool) - SLICE)
        block = pool[at : at + min(remaining, draw.randrange(SLICE // 4, SLICE))]
        remaining -= len(block)
        yield block


def _pools(seed: int) -> dict[str, bytes]:
    draw = random.Random(seed)  # noqa: S311 -- repeatable on purpose
    makers = (_code, _code, _code, _numbers, _floats, _symbols, _zeros)
    elf: list[bytes] = []
    size = 0
    while size < POOL:
        block = draw.choice(makers)(draw)
        elf.append(block)
        size += len(block)
    return {"elf": b"".join(elf), "text": b"".join(_prose(draw) for _ in range(80))}


def _skewed(draw: random.Random, choices: list[bytes], count: int) -> list[bytes]:
    weights = [1 / (rank + 3) for rank in range(len(choices))]
    return draw.choices(choices, weights, k=count)


def _code(draw: random.Random) -> bytes:
    instructions = [draw.randbytes(draw.choice((2, 3, 3, 4, 4, 5))) for _ in range(500)]
    phrases = [b"".join(draw.choices(instructions, k=draw.randrange(1, 6))) for _ in range(900)]
    words = _skewed(draw, phrases, 9_000)
    # Addresses and constants, which differ each time.
    for index in range(0, len(words), 6):
        words[index] = draw.randbytes(2) + b"\0\0"
    return b"".join(words)


def _numbers(draw: random.Random) -> bytes:
    value = draw.getrandbits(20)
    values = []
    for _ in range(8_000):
        value += draw.choice((8, 16, 16, 24, 32, 40, 64, 120))
        values.append(value)
    return struct.pack(f"<{len(values)}Q", *values)


def _floats(draw: random.Random) -> bytes:
    return struct.pack("<6000f", *(draw.gauss(0, 1) for _ in range(6000)))


def _symbols(draw: random.Random) -> bytes:
    names = []
    for _ in range(2_500):
        parts = draw.choices(WORDS, k=draw.randrange(2, 6))
        names.append(
            ("_ZN3qnn" + "".join(f"{len(p)}{p}" for p in parts) + f"E{draw.getrandbits(16):x}").encode()
        )
    return b"\0".join(names)


def _zeros(draw: random.Random) -> bytes:
    return bytes(draw.randrange(2_000, 40_000))


def _prose(draw: random.Random) -> bytes:
    lines = []
    for _ in range(600):
        words = " ".join(draw.choices(WORDS, k=draw.randrange(5, 12)))
        lines.append(f"  <p>{words} 0x{draw.getrandbits(24):x}</p>\n".encode())
    return b"".join(lines)
