"""Read zip files strictly: what two places in the file say differently is an error.

Not by `zipfile`: it reads the whole directory before anything can be refused (33 s and 500 MB for a hostile
one of 58 MB), and accepts several ends. Everything is read by offset with `pread`, so that threads share one
descriptor, and a file that shrinks meanwhile is an error instead of a signal. Members may be stored or
deflated, in zip or zip64; nothing else.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from isal import igzip_lib, isal_zlib

from provisioning.base.commands import Fix, quoted, session
from provisioning.base.errors import ArchiveError, EnvironmentLacking

END = struct.Struct("<4s4H2LH")
END64_LOCATOR = struct.Struct("<4sLQL")
END64 = struct.Struct("<4sQ2H2L4Q")
CENTRAL = struct.Struct("<4s6H3L5H2L")
LOCAL = struct.Struct("<4s5H3L2H")

FULL16, FULL32 = 0xFFFF, 0xFFFFFFFF
STORED, DEFLATED = 0, 8
ENCRYPTED, DESCRIPTOR, PATCH, STRONG, MASKED = 1 << 0, 1 << 3, 1 << 5, 1 << 6, 1 << 13
UNIX_SYSTEMS = (3, 19)
METHODS = {1: "shrunk", 6: "imploded", 9: "deflate64", 12: "bzip2", 14: "LZMA", 93: "zstd", 95: "xz"}

INPUT = 128 << 10
BLOCK = 256 << 10
LONGEST_COMMENT = 0xFFFF
LARGEST_DIRECTORY = 64 << 20

# The stubs declare an instance.
DAMAGE = cast("type[Exception]", igzip_lib.IsalError)


@dataclass(frozen=True, slots=True)
class Member:
    """One entry of the central directory. `mode` is the Unix mode, 0 where the archive has none."""

    name: str
    size: int
    compressed_size: int
    mode: int
    is_dir: bool
    is_link: bool
    method: int
    flags: int
    crc: int
    offset: int

    @property
    def raw_name(self) -> bytes:
        return self.name.encode()


class Zip:
    """An open zip file and its members, in the order of its directory."""

    def __init__(self, path: Path, *, most_members: int) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise EnvironmentLacking(
                f"{path}: expected an archive, found {error.strerror}", fix=session("provision")
            ) from error
        try:
            self.size = os.fstat(self._fd).st_size
            self._count, self.directory_start, self._directory_size = self._find_directory()
            if self._count > most_members:
                raise self.error("", f"at most {most_members} members", f"{self._count}")
            self.members = tuple(self._read_directory())
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Zip:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def error(self, member: str, expected: str, found: str, fix: str = "") -> ArchiveError:
        where = f"{self.path.name}: member {member!r}" if member else self.path.name
        if not fix:
            again = Fix("{} && {}", quoted("rm", self.path), session("provision"))
            fix = Fix("{}; if this stays, the published archive is bad", again)
        return ArchiveError(f"{where}: expected {expected}, found {found}", fix=fix)

    def data_start(self, member: Member) -> int:
        """Where the member's bytes begin, once its local header agrees with the directory."""
        fixed, raw_name = LOCAL.size, member.raw_name
        header = self._read(member.offset, fixed + len(raw_name), member.name)
        signature, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = (
            LOCAL.unpack_from(header)
        )
        if signature != b"PK\3\4":
            raise self.error(member.name, "a local header", f"{signature!r} at offset {member.offset}")
        start: int = member.offset + fixed + name_length + extra_length
        if name_length != len(raw_name) or header[fixed:] != raw_name:
            local_name = self._read(member.offset + fixed, name_length, member.name)
            raise self.error(member.name, "the same name in its local header", repr(local_name))
        if method != member.method:
            raise self.error(member.name, f"method {member.method} in its local header", f"method {method}")
        if (flags ^ member.flags) & ENCRYPTED:
            raise self.error(member.name, "the same flags in its local header", f"{flags:#06x}")
        if FULL32 in (compressed, size):
            extra = self._read(start - extra_length, extra_length, member.name)
            size, compressed = self._wide(member.name, extra, size, compressed)
        wanted = (member.crc, member.compressed_size, member.size)
        streamed = bool((flags | member.flags) & DESCRIPTOR)
        for label, here, there in zip(
            ("checksum", "compressed size", "size"), (crc, compressed, size), wanted, strict=True
        ):
            if here != there and not (streamed and here == 0):
                raise self.error(member.name, f"{label} {there} in its local header", f"{here}")
        end = start + member.compressed_size
        if end > self.directory_start:
            raise self.error(member.name, f"data that ends by offset {self.directory_start}", f"offset {end}")
        if streamed and (crc, compressed, size) != wanted:
            self._check_descriptor(member, end)
        return start

    def blocks(self, member: Member, start: int) -> Iterator[bytes]:
        """The member's content in blocks; ends well only if its size and checksum are the declared ones.

        No block reaches beyond the declared size: a member with more than it says is stopped at once."""
        crc, remaining = 0, member.size
        source = self._stored if member.method == STORED else self._inflated
        for block in source(member, start):
            remaining -= len(block)
            if remaining < 0:
                raise self.error(member.name, f"{member.size} bytes as declared", "more")
            crc = isal_zlib.crc32(block, crc)
            yield block
        if remaining:
            raise self.error(member.name, f"{member.size} bytes as declared", f"{member.size - remaining}")
        if crc != member.crc:
            raise self.error(member.name, f"checksum {member.crc:08x}", f"{crc:08x}")

    def _stored(self, member: Member, start: int) -> Iterator[bytes]:
        for at in range(start, start + member.size, BLOCK):
            yield self._read(at, min(BLOCK, start + member.size - at), member.name)

    def _inflated(self, member: Member, start: int) -> Iterator[bytes]:
        inflate = igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_DEFLATE)
        at, end = start, start + member.compressed_size
        while not inflate.eof:
            data = b""
            if inflate.needs_input:
                if at == end:
                    raise self.error(member.name, "a whole deflate stream", "one that is cut off")
                data = self._read(at, min(INPUT, end - at), member.name)
                at += len(data)
            try:
                block: bytes = inflate.decompress(data, BLOCK)
            except DAMAGE as error:
                raise self.error(member.name, "deflated data", f"damage ({error})") from error
            if block:
                yield block
            elif not data and not inflate.eof:
                raise self.error(member.name, "deflated data", "damage (it leads nowhere)")
        rest = end - at + len(inflate.unused_data)
        if rest:
            raise self.error(
                member.name, f"{member.compressed_size} compressed bytes", f"{member.compressed_size - rest}"
            )

    def _read(self, offset: int, count: int, member: str = "") -> bytes:
        data = os.pread(self._fd, count, offset)
        while len(data) < count:
            more = os.pread(self._fd, count - len(data), offset + len(data))
            if not more:
                raise self.error(
                    member, f"{count} bytes at offset {offset}", f"{len(data)}: the archive is cut off"
                )
            data += more
        return data

    def _find_directory(self) -> tuple[int, int, int]:
        """The number of members, and where the central directory is and how long."""
        tail_size = min(self.size, END.size + LONGEST_COMMENT)
        tail_start = self.size - tail_size
        tail = self._read(tail_start, tail_size)
        ends = []
        at = tail.rfind(b"PK\5\6")
        while at >= 0:
            if at + END.size <= tail_size:
                comment = END.unpack_from(tail, at)[-1]
                if at + END.size + comment == tail_size:
                    ends.append(at)
            at = tail.rfind(b"PK\5\6", 0, at)
        if not ends:
            raise self.error(
                "", "a zip file that ends with its directory", f"none in the last of {self.size} bytes"
            )
        if len(ends) > 1:
            raise self.error("", "one end of the directory", f"{len(ends)}")
        _, disk, first_disk, here, count, size, start, _ = END.unpack_from(tail, ends[0])
        end = tail_start + ends[0]
        if end >= END64_LOCATOR.size:
            locator = END64_LOCATOR.unpack(self._read(end - END64_LOCATOR.size, END64_LOCATOR.size))
            if locator[0] == b"PK\6\7":
                return self._find_directory64(end - END64_LOCATOR.size, locator[2], (count, size, start))
        self._check_one_file(disk, first_disk, here, count)
        self._check_directory_place(start, size, end)
        return count, start, size

    def _find_directory64(
        self, locator: int, record: int, narrow: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        if record + END64.size > locator:
            raise self.error("", "a zip64 record before its locator", f"offset {record}")
        fields = END64.unpack(self._read(record, END64.size))
        signature, length, _, _, disk, first_disk, here, count, size, start = fields
        if signature != b"PK\6\6" or record + 12 + length != locator:
            raise self.error("", f"a zip64 record at offset {record}", f"{signature!r}, length {length}")
        for label, narrow_value, wide, full in zip(
            ("member count", "directory size", "directory offset"),
            narrow,
            (count, size, start),
            (FULL16, FULL32, FULL32),
            strict=True,
        ):
            if narrow_value not in (full, wide):
                raise self.error("", f"{label} {wide} as in its zip64 record", f"{narrow_value}")
        self._check_one_file(disk, first_disk, here, count)
        self._check_directory_place(start, size, record)
        return count, start, size

    def _check_one_file(self, disk: int, first_disk: int, here: int, count: int) -> None:
        if disk or first_disk or here != count:
            raise self.error("", "a zip in one file", "one part of a split zip")

    def _check_directory_place(self, start: int, size: int, end: int) -> None:
        if size > LARGEST_DIRECTORY:
            raise self.error("", f"a directory of at most {LARGEST_DIRECTORY} bytes", f"{size}")
        if start + size != end:
            raise self.error("", f"a directory that ends at offset {end}", f"one that ends at {start + size}")

    def _read_directory(self) -> Iterator[Member]:
        directory = self._read(self.directory_start, self._directory_size)
        at = 0
        for number in range(self._count):
            label = f"#{number + 1}"
            if at + CENTRAL.size > len(directory):
                raise self.error("", f"{self._count} members in its directory", f"{number}")
            (
                signature, made_by, _, flags, method, _, _, crc, compressed, size,
                name_length, extra_length, comment_length, disk, _, attributes, offset,
            ) = CENTRAL.unpack_from(directory, at)  # fmt: skip
            if signature != b"PK\1\2":
                raise self.error(label, "a directory entry", repr(signature))
            at += CENTRAL.size
            raw_name = directory[at : at + name_length]
            extra = directory[at + name_length : at + name_length + extra_length]
            at += name_length + extra_length + comment_length
            if at > len(directory):
                raise self.error(label, "an entry within the directory", "one that runs past its end")
            name = self._name(raw_name, label)
            if FULL32 in (compressed, size, offset) or disk == FULL16:
                size, compressed, offset, disk = self._wide(name, extra, size, compressed, offset, disk)
            if disk:
                raise self.error(name, "a zip in one file", f"a member in part {disk + 1}")
            self._check_method(name, flags, method, compressed, size)
            mode = attributes >> 16 if made_by >> 8 in UNIX_SYSTEMS else 0
            kind = stat.S_IFMT(mode)
            yield Member(
                name=name,
                size=size,
                compressed_size=compressed,
                mode=mode,
                is_dir=kind == stat.S_IFDIR or (name.endswith("/") and kind in (0, stat.S_IFREG)),
                is_link=kind == stat.S_IFLNK,
                method=method,
                flags=flags,
                crc=crc,
                offset=offset,
            )
        if at != len(directory):
            raise self.error("", f"{self._count} members in its directory", "more")

    def _name(self, raw: bytes, label: str) -> str:
        # Names without the UTF-8 flag have no agreed encoding; those that are UTF-8 all the same are common.
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(label, "a name in UTF-8", repr(raw)) from None

    def _check_method(self, name: str, flags: int, method: int, compressed: int, size: int) -> None:
        if flags & (ENCRYPTED | STRONG | MASKED):
            raise self.error(name, "a member that is not encrypted", f"flags {flags:#06x}")
        if flags & PATCH:
            raise self.error(name, "a whole member", "patch data")
        if method not in (STORED, DEFLATED):
            method_name = METHODS.get(method, "unknown")
            raise self.error(name, "a stored or deflated member", f"method {method} ({method_name})")
        if method == STORED and compressed != size:
            raise self.error(name, f"{size} stored bytes", f"{compressed}")

    def _wide(self, name: str, extra: bytes, *narrow: int) -> list[int]:
        """Replace the fields that are all ones by their values in the zip64 extra field.

        The order is size, compressed size, offset, disk, of which the last is 16 bits wide."""
        at, wide = 0, b""
        while at + 4 <= len(extra):
            tag, length = struct.unpack_from("<2H", extra, at)
            if tag == 1:
                wide = extra[at + 4 : at + 4 + length]
                break
            at += 4 + length
        fields = []
        at = 0
        for index, value in enumerate(narrow):
            full, width, code = (FULL16, 4, "<L") if index == 3 else (FULL32, 8, "<Q")
            if value != full:
                fields.append(value)
                continue
            if at + width > len(wide):
                raise self.error(name, "a zip64 field for what does not fit 32 bits", f"{len(wide)} bytes")
            fields.append(struct.unpack_from(code, wide, at)[0])
            at += width
        return fields

    def _check_descriptor(self, member: Member, end: int) -> None:
        after = self._read(end, min(24, self.size - end), member.name)
        layouts = [
            signature + struct.pack(sizes, member.crc, member.compressed_size, member.size)
            for signature in (b"PK\7\x08", b"")
            for sizes in ("<3L", "<L2Q")
            if sizes == "<L2Q" or max(member.compressed_size, member.size) <= FULL32
        ]
        if not any(after.startswith(layout) for layout in layouts):
            raise self.error(member.name, "a data descriptor that agrees with the directory", after.hex())
