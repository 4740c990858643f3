"""The logs that a path stands for: a file, packed by gzip or not, those of a .zip or those below a folder."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from ci.diagnose.explain import Readable
from provisioning.base.commands import Fix
from provisioning.base.errors import UsageError

LARGEST = 256 << 20
"""No more is unpacked of a log."""
NAME = re.compile(
    r"(?:log\.[\w.-]+|.*\.(?:log|txt|out|err)|syslog|logcat|dmesg|messages|stdout|stderr)(?:\.\d+)?"
    r"(?:\.gz)?",
    re.IGNORECASE,
)
"""A log's: BitBake's are log.do_TASK.NUMBER, old ones of a system syslog.1.gz."""
GZIP = b"\x1f\x8b"
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
WIDE = (b"\xff\xfe", b"\xfe\xff")
"""How UTF-16 begins."""
NO_TEXT = bytes(range(7)) + bytes(range(14, 27)) + bytes(range(28, 32))
"""Bytes of control that no program writes into a log."""
HEAD, BUFFER = 4 << 10, 64 << 10
UNREADABLE = (OSError, zipfile.BadZipFile)
"""What opening a file or an archive raises."""
DAMAGED = (OSError, EOFError, zipfile.BadZipFile, zlib.error)
"""What reading what is packed raises if it is cut off or changed."""


class _Bounded(io.RawIOBase):
    """A stream that raises UsageError past LARGEST, and where it is damaged."""

    def __init__(self, stream: Readable, name: str) -> None:
        self._stream, self._name, self._left = stream, name, LARGEST

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        try:
            block = self._stream.read(len(buffer))
        except DAMAGED as error:
            raise UsageError(
                f"{self._name} is damaged or cut off: {error}",
                fix=Fix("get it again, or give what is left of it: `gzip -dc FILE | {}`", ("diagnose",)),
            ) from error
        self._left -= len(block)
        if self._left < 0:
            raise UsageError(
                f"{self._name} unpacks to more than {LARGEST >> 20} MiB",
                fix="unpack it yourself, and give the failing log or its last part",
            )
        buffer[: len(block)] = block
        return len(block)


def _bounded(stream: Readable, name: str) -> io.BufferedReader:
    return cast("io.BufferedReader", io.BufferedReader(_Bounded(stream, name), BUFFER))


def logs_of(path: Path, shown: Callable[[Path], str]) -> Iterator[tuple[str, BinaryIO]]:
    """Each log with its name, open until the next one."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if _is_log(file.as_posix()) and file.is_file())
        _refuse_none(shown(path), bool(files))
        for file in files:
            with file.open("rb") as raw, _plain(raw, shown(file)) as log:
                if _is_text(log):
                    yield shown(file), log
        return
    name = shown(path)
    with path.open("rb") as raw:
        if raw.peek(4).startswith(ZIP) or path.suffix == ".zip":
            yield from _in_zip(path, name)
            return
        with _plain(raw, name) as log:
            if not _is_text(log):
                more = "`{}` shows what is in it; give diagnose the output of the command that failed"
                raise UsageError(f"{name} is no text", fix=Fix(more, ("inspect", "FILE")))
            yield name, log


def is_one_log(path: Path) -> bool:
    """Whether it is neither a folder nor packed."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return not file.peek(4).startswith((*ZIP, GZIP))


def _is_log(path: str) -> bool:
    return NAME.fullmatch(path.rpartition("/")[2]) is not None


def _is_text(log: io.BufferedReader) -> bool:
    head = log.peek(HEAD)[:HEAD]
    return head.startswith(WIDE) or len(head) - len(head.translate(None, NO_TEXT)) <= len(head) // 20


@contextmanager
def _plain(raw: io.BufferedReader, name: str) -> Iterator[io.BufferedReader]:
    """The stream, unpacked if it is packed."""
    if not raw.peek(2).startswith(GZIP):
        yield raw
        return
    with gzip.open(raw) as unpacked, _bounded(unpacked, name) as stream:
        yield stream


def _in_zip(path: Path, name: str) -> Iterator[tuple[str, BinaryIO]]:
    with zipfile.ZipFile(path) as archive:
        # GitHub's archive contains each job's whole log, and each of its steps again in the job's folder.
        infos = [info for info in archive.infolist() if _is_log(info.filename)]
        whole = [info for info in infos if "/" not in info.filename] or infos
        _refuse_none(name, bool(whole))
        for info in whole:
            inside = f"{name}: {info.filename}"
            try:
                packed = archive.open(info)
            except (
                RuntimeError
            ) as error:  # it wants a password, or is packed in a way that Python does not know
                raise UsageError(f"{inside}: {error}", fix="unpack it yourself, and give the log") from error
            with packed as member, _plain(_bounded(member, inside), inside) as log:
                yield inside, log


def _refuse_none(name: str, found: bool) -> None:
    if not found:
        raise UsageError(
            f"{name} has no log in it (.log, .txt, .out, .err, log.*)",
            fix="give the file that has what was printed",
        )
