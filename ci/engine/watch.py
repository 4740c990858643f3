"""See what a process touches, including its native code and children: files, look-ups, listings, sockets.

The kernel reports system calls to a supervisor (seccomp user notification). The supervisor reads the path and
lets the call continue. The process installs the filter itself, without privileges; its children and the
programs that it executes inherit it. What cannot be followed (a connection, a change of root) is named in
`Seen.unseen`, and such work must not be remembered.

This is no sandbox: it watches code that does not try to hide.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import platform
import re
import socket
import stat
import struct
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from provisioning.base.errors import UsageError
from provisioning.base.files import hash_file
from provisioning.base.settings import derived_folder

Stamp = tuple[int, int, int, int]
"""Size, mtime, ctime (nanoseconds) and inode: while these are equal, the file is taken for unchanged."""

YOUNG_SECONDS = 2.0
"""A file that changed more recently than this can change again with the same stamp, so its bytes are
compared.
"""

IGNORED = ("/proc/", "/sys/", "/dev/")
"""The state of the machine and of the process is never an input; files in shared memory are."""

LOADER_CACHE = "/etc/ld.so.cache"
"""Installing any package rewrites it. The libraries found through it are seen themselves."""

LOCAL_SERVICES = (
    "/run/nscd/",
    "/var/run/nscd/",
    "/run/uuidd/",
    "/var/run/uuidd/",
    "/run/systemd/",
    "/dev/log",
)
"""Sockets of name, number and log services: results do not depend on them."""


class Call(NamedTuple):
    """A system call's meaning, and which of its arguments are directory, path and flags."""

    what: Literal[
        "open",
        "open2",
        "create",
        "folder",
        "symlink",
        "move",
        "link",
        "look",
        "run",
        "list",
        "connect",
        "bind",
        "send",
        "share",
        "escape",
    ]
    directory: int | None = None
    path: int = 0
    flags: int = 0
    target: tuple[int | None, int] = (None, 1)
    """Directory and path of what is made, where `path` is what it is made from."""


_AT = Call("look", 0, 1)
_CALLS = {
    "x86_64": (
        0xC000003E,
        317,
        {
            2: Call("open", None, 0, 1),
            257: Call("open", 0, 1, 2),
            437: Call("open2", 0, 1, 2),
            85: Call("create"),
            83: Call("folder"),
            258: Call("folder", 0, 1),
            88: Call("symlink", None, 1),
            266: Call("symlink", 1, 2),
            82: Call("move"),
            **dict.fromkeys((264, 316), Call("move", 0, 1, target=(2, 3))),
            86: Call("link"),
            265: Call("link", 0, 1, target=(2, 3)),
            29: Call("share"),
            **dict.fromkeys((4, 6, 21, 80, 89, 191, 192), Call("look")),
            **dict.fromkeys((262, 332, 269, 439, 267), _AT),
            59: Call("run"),
            322: Call("run", 0, 1),
            **dict.fromkeys((78, 217), Call("list")),
            42: Call("connect"),
            49: Call("bind"),
            **dict.fromkeys((44, 46, 307), Call("send")),
            **dict.fromkeys((161, 165, 155, 272, 304, 308), Call("escape")),
        },
    ),
    "aarch64": (
        0xC00000B7,
        277,
        {
            56: Call("open", 0, 1, 2),
            437: Call("open2", 0, 1, 2),
            34: Call("folder", 0, 1),
            36: Call("symlink", 1, 2),
            **dict.fromkeys((38, 276), Call("move", 0, 1, target=(2, 3))),
            37: Call("link", 0, 1, target=(2, 3)),
            194: Call("share"),
            **dict.fromkeys((8, 9), Call("look")),
            **dict.fromkeys((79, 291, 48, 439, 78), _AT),
            49: Call("look"),
            221: Call("run"),
            281: Call("run", 0, 1),
            61: Call("list"),
            203: Call("connect"),
            200: Call("bind"),
            **dict.fromkeys((206, 211, 269), Call("send")),
            **dict.fromkeys((51, 40, 41, 97, 265, 268), Call("escape")),
        },
    ),
}
_IO_URING_SETUP = 425
_SENDTO = (44, 206)
_AT_FDCWD = -100
_LINK = re.compile(r"/proc/(self|thread-self|\d+)(?:/task/\d+)?/(cwd|root|exe|fd/\d+)(?=/|$)")
"""Links in /proc that lead to files; /dev/fd is one of them."""
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1

_libc = ctypes.CDLL(None, use_errno=True)


QUERY_BEGINS, QUERY_ENDS = "/dev/null/qnn-ci-query-begins", "/dev/null/qnn-ci-query-ends"
"""A thread asks whether they exist around a listing that serves a query about packages. That query is an
input, what else is in the folder is none."""


class Unavailable(Exception):
    """The kernel or the container does not allow watching a process; the message says why."""


@dataclass
class Seen:
    """What was touched, by absolute path; the first touch of a path counts."""

    opened: dict[str, Stamp] = field(default_factory=dict)
    """Regular files that were read or executed, with their stamp at that moment."""
    digests: dict[str, str] = field(default_factory=dict)
    """The SHA-256 at that moment of opened files that had just been changed."""
    looked: dict[str, str] = field(default_factory=dict)
    """Paths that were looked up but not read: `absent`, `file`, `directory`, or for a file whose details were
    asked for `file` and `details_of` at that moment."""
    listed: dict[str, str] = field(default_factory=dict)
    """Directories whose names were read, with `listing_of` at that moment."""
    unseen: dict[str, None] = field(default_factory=dict)
    """What happened that cannot be followed, as text. Work with any entry here must not be remembered."""
    written: dict[str, Stamp | None] = field(default_factory=dict)
    """Files and directories that the work was about to create, with their stamp before. If the stamp has
    changed, they and everything below them are no inputs."""
    again: dict[str, None] = field(default_factory=dict)
    """What the work made, and looked up, listed or read too; temporary files do not count."""

    def left(self) -> list[str]:
        """Files that the work leaves behind and that decided what it did: it may do something else the next
        time. A file that is only written is none, nor is an empty one that was there."""
        kept = []
        for path, before in self.written.items():
            now = _stamp(path)
            if now is None or now == before or not os.path.isfile(path) or path.startswith("/dev/shm/"):
                continue
            folder = os.path.dirname(path)
            asked = path in self.again or path in self.looked or path in self.opened
            asked |= before is None and (folder in self.listed or folder in self.again)
            if asked and not source_of(path) and (before is None or now[0] or before[0]):
                kept.append(path)
        return kept


def stamp_of(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def stamp_of_installed(info: os.stat_result) -> Stamp:
    """Without its ctime if it has several names: an installer links the files of its cache into each
    environment that it makes, which sets that for all of them. An edit of such a file is not seen if its size
    stays and its time is put back."""
    size, mtime, ctime, inode = stamp_of(info)
    return size, mtime, ctime if info.st_nlink == 1 else 0, inode


def _stamp(path: str) -> Stamp | None:
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None


def changed_too_recently(stamp: Stamp) -> bool:
    """Whether the stamp is too recent to be trusted; true of a stamp in the future as well."""
    return max(stamp[1], stamp[2]) / 1e9 > time.time() - YOUNG_SECONDS


def source_of(path: str) -> str:
    """The source file of bytecode, which is what counts; empty for other files and if there is no source."""
    folder, _, name = path.rpartition("/")
    if not name.endswith(".pyc") or not folder.endswith("/__pycache__"):
        return ""
    source = f"{folder.removesuffix('/__pycache__')}/{name.partition('.')[0]}.py"
    return source if os.path.exists(source) else ""


def listing_of(path: str) -> str:
    """The digest of a directory's names and their kinds, or `absent`. Python's folder of bytecode does not
    count."""
    try:
        with os.scandir(path) as entries:
            names = sorted(f"{entry.name}/{_kind(entry)}" for entry in entries if entry.name != "__pycache__")
    except OSError:
        return "absent"
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    return "directory" if entry.is_dir() else "file" if entry.is_file() else "other"


def details_of(path: str) -> str:
    """What can be asked of a file without reading it, and is the same until somebody changes it."""
    try:
        info = os.stat(path)
        own = {name: os.getxattr(path, name).hex() for name in sorted(os.listxattr(path))}
    except OSError:
        return "absent"
    return f"{info.st_size} {info.st_mtime_ns} {info.st_mode:o}" + (f" {own}" if own else "")


def absence_of(path: str) -> str:
    """`absent`, with where a link leads that leads nowhere."""
    try:
        return f"absent -> {os.readlink(path)}"
    except OSError:
        return "absent"


def install(channel: int) -> int:
    """Watch this process from now on, permanently; returns the descriptor for `Supervisor`.

    Every watched call waits until the supervisor answers. So send the descriptor to it first, through the
    socket `channel`: sending on that socket is not watched."""
    arch, number, calls = _table()

    def step(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    sends = [syscall for syscall, call in calls.items() if call.what == "send"]
    rest = sorted(calls.keys() - set(sends))
    count = len(calls)
    # The filter also reports calls of another architecture or of x32, which the supervisor cannot read.
    program = step(load, 0, 0, 4) + step(equal, 0, count + 6, arch) + step(load, 0, 0, 0)
    program += step(equal, count + 5, 0, _IO_URING_SETUP) + step(at_least, count + 3, 0, 0x40000000)
    for index, syscall in enumerate([*rest, *sends]):
        program += step(equal, count - index + (0 if syscall in sends else 2), 0, syscall)
    allow, notify = step(answer, 0, 0, 0x7FFF0000), step(answer, 0, 0, 0x7FC00000)
    program += allow + step(load, 0, 0, 16) + step(equal, 2, 0, channel) + notify
    program += step(answer, 0, 0, 0x00050000 | errno.ENOSYS) + allow
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)), 16
    )
    no_new_privileges, new_listener = 38, 8
    if _libc.prctl(no_new_privileges, 1, 0, 0, 0):
        raise Unavailable(f"prctl: {os.strerror(ctypes.get_errno())}")
    descriptor = int(_libc.syscall(number, 1, new_listener, header))
    if descriptor < 0:
        raise Unavailable(f"seccomp: {os.strerror(ctypes.get_errno())}")
    return descriptor


def _table() -> tuple[int, int, dict[int, Call]]:
    machine = platform.machine()
    if machine not in _CALLS or struct.calcsize("P") != 8:
        raise Unavailable(f"no table of system calls for {machine}")
    return _CALLS[machine]


class Supervisor:
    """Answers the calls of one watched process and its children, and records what they touch."""

    def __init__(self, listener: int, temporary: str = "") -> None:
        """Files below `temporary`, which somebody removes after the work, are no inputs."""
        self.seen = Seen()
        self._in_query: set[int] = set()
        """Threads that look for packages."""
        self._temporary, self._linked = f"{temporary}/", False
        self.listener = listener
        self._arch, _, self._calls = _table()
        self._request, self._response = bytearray(80), bytearray(24)
        self._known: set[tuple[str, bool]] = set()

    def close(self) -> None:
        """Watched calls fail from now on, so end the process first."""
        os.close(self.listener)

    def answer(self) -> None:
        """Record one call and let it continue; the listener must be readable."""
        request = self._request
        request[:] = bytes(len(request))
        try:
            fcntl.ioctl(self.listener, _RECEIVE, request)
        except OSError as error:
            # The caller was killed meanwhile.
            if error.errno in (errno.ENOENT, errno.EINTR):
                return
            raise
        number, process, _, call, arch, _, *arguments = struct.unpack("QIIiIQ6Q", request)
        try:
            self._note(process, call, arch, arguments)
        except ProcessLookupError:
            pass
        except OSError as error:
            self._unseen(f"what {_program(process)} touches: {error.strerror or error}")
        struct.pack_into("QqiI", self._response, 0, number, 0, 0, _CONTINUE)
        try:
            fcntl.ioctl(self.listener, _SEND, self._response)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINTR):
                raise

    def _note(self, process: int, number: int, arch: int, arguments: list[int]) -> None:
        call = self._calls.get(number) if arch == self._arch else None
        if call is None:
            self._unseen(f"{_program(process)}, a program of another architecture")
        elif call.what == "escape":
            self._unseen(f"{_program(process)} changed what paths mean (system call {number})")
        elif call.what == "share":
            self._unseen(f"{_program(process)} used memory that processes share (shmget)")
        elif call.what in ("move", "link"):
            self._moved(process, call, arguments)
        elif call.what in ("connect", "bind"):
            self._connection(process, arguments[1], arguments[2], bind=call.what == "bind")
        elif call.what == "send":
            if number not in _SENDTO:
                arguments[4:6] = struct.unpack("QI", _memory(process, arguments[1], 12))
            if arguments[4]:
                self._connection(process, arguments[4], arguments[5])
        elif call.what == "list":
            if process not in self._in_query:
                self._listing(os.readlink(f"/proc/{process}/fd/{_signed(arguments[0])}"))
        else:
            self._path(process, call, arguments)

    def _path(self, process: int, call: Call, arguments: list[int]) -> None:
        raw = _text(process, arguments[call.path])
        if not raw:
            return
        path = os.fsdecode(raw)
        if path == QUERY_BEGINS:
            self._in_query.add(process)
            return
        if path == QUERY_ENDS:
            self._in_query.discard(process)
            return
        if path[0] != "/":
            path = f"{self._base(process, call.directory, arguments)}/{path}"
        reading, replacing = call.what == "run", call.what == "create"
        making = call.what in ("create", "folder", "symlink")
        self._linked = self._linked or call.what == "symlink"
        if call.what in ("open", "open2"):
            flags = arguments[call.flags]
            if call.what == "open2":
                flags = struct.unpack("Q", _memory(process, flags, 8))[0]
            reading, replacing, making = _intent(flags)
            if flags & os.O_CREAT and flags & os.O_EXCL and not self._is_temporary(path):
                # It fails where the file is there.
                self.seen.again[os.path.normpath(path)] = None
        known = (path, reading)
        if not (replacing or making or path.startswith("/proc/")):
            if known in self._known:
                return
            self._known.add(known)
        path = _followed(process, path if "/../" in path else os.path.normpath(path))
        self._touch(path, reading, replacing, making, details=call.what == "look")
        if call.what == "run":
            self._interpreter(path)

    def _moved(self, process: int, call: Call, arguments: list[int]) -> None:
        """A file of the work's own may get another name. With another name, an input would look like one."""
        paths = []
        for directory, number in ((call.directory, call.path), call.target):
            path = os.fsdecode(_text(process, arguments[number]))
            if path[:1] != "/":
                path = f"{self._base(process, directory, arguments)}/{path}"
            paths.append(_followed(process, os.path.normpath(path)))
        source, target = paths
        if _ignored(source):
            # As the name of a semaphore is made.
            return
        if os.path.lexists(source) and not self._own(source):
            what = "was moved" if call.what == "move" else "got a second name,"
            self._unseen(f"{source} {what} to {target}: copy it below tempfile.gettempdir()")
        elif os.path.lexists(source):
            self._linked = self._linked or os.path.islink(source) or os.path.isdir(source)
            if not self._is_temporary(target) and not _ignored(target):
                self.seen.written.setdefault(target, _stamp(target))

    def _base(self, process: int, directory: int | None, arguments: list[int]) -> str:
        descriptor = _AT_FDCWD if directory is None else _signed(arguments[directory])
        place = "cwd" if descriptor == _AT_FDCWD else f"fd/{descriptor}"
        return os.readlink(f"/proc/{process}/{place}")

    def _touch(
        self,
        path: str,
        reading: bool,
        replacing: bool = False,
        making: bool = False,
        *,
        details: bool = False,
    ) -> None:
        seen = self.seen
        if _ignored(path):
            return
        if self._own(path):
            if self._linked and (real := os.path.realpath(path)) != path and not self._own(real):
                # The work's own link to an input.
                self._touch(real, reading, replacing, making, details=details)
            elif not self._is_temporary(path):
                if making or replacing:
                    seen.written.setdefault(path, _stamp(path))
                else:
                    seen.again[path] = None
            return
        try:
            info = os.stat(path)
        except OSError:
            # A link that leads nowhere is absent too. A file that is opened for reading and created if
            # missing, such as a database, would be read the next time.
            if making and not reading:
                seen.written.setdefault(path, None)
            else:
                seen.looked.setdefault(path, absence_of(path))
            return
        if stat.S_ISDIR(info.st_mode):
            seen.looked.setdefault(path, "directory")
        elif not stat.S_ISREG(info.st_mode):
            if reading:
                self._unseen(f"{path}, a pipe or a device, was read")
        elif replacing or (making and not reading):
            seen.written.setdefault(path, stamp_of(info))
        elif not reading:
            seen.looked.setdefault(path, f"file {details_of(path)}" if details else "file")
        elif path not in seen.opened:
            seen.opened[path] = stamp = stamp_of(info)
            if changed_too_recently(stamp):
                with contextlib.suppress(OSError):
                    seen.digests[path] = hash_file(Path(path))
            if source := source_of(path):
                self._touch(source, True)

    def _interpreter(self, path: str) -> None:
        """The kernel opens a script's interpreter itself, so record it here."""
        with contextlib.suppress(OSError), open(path, "rb") as stream:
            first = stream.readline(512)
            if first.startswith(b"#!") and (words := first[2:].split()):
                self._touch(os.fsdecode(words[0]), True)

    def _listing(self, path: str) -> None:
        if _ignored(f"{path}/"):
            return
        if not self._own(path):
            if path not in self.seen.listed:
                self.seen.listed[path] = listing_of(path)
        elif not self._is_temporary(path):
            self.seen.again[path] = None

    def _is_temporary(self, path: str) -> bool:
        return f"{path}/".startswith(self._temporary) and self._temporary != "/"

    def _own(self, path: str) -> bool:
        if self._is_temporary(path):
            return True
        written = self.seen.written
        while len(path) > 1:
            # A failed write changes nothing.
            if path in written and written[path] != _stamp(path):
                return True
            path = path.rpartition("/")[0]
        return False

    def _connection(self, process: int, pointer: int, length: int, *, bind: bool = False) -> None:
        address = _memory(process, pointer, max(2, min(length, 110)))
        family = struct.unpack_from("H", address)[0]
        if family == socket.AF_UNIX:
            name = os.fsdecode(address[2:].split(b"\0")[0])
            if not name.startswith(LOCAL_SERVICES) and not self._is_temporary(name):
                self._unseen(f"{_program(process)} connected to the socket {name or 'without a name'}")
        elif bind and address[2:4] == b"\0\0":
            # Binding to any free port is how urllib3 finds out whether there is IPv6. Nobody knows the port,
            # so nothing can arrive.
            return
        elif family in (socket.AF_INET, socket.AF_INET6):
            self._unseen(f"{_program(process)} used the network")

    def _unseen(self, what: str) -> None:
        self.seen.unseen[what] = None


def _intent(flags: int) -> tuple[bool, bool, bool]:
    """Whether an open reads the file, replaces it, and creates it if it is missing."""
    if flags & (os.O_PATH | os.O_DIRECTORY):
        return False, False, False
    access = flags & os.O_ACCMODE
    if flags & os.O_CREAT and flags & os.O_EXCL:
        # Fails if the file exists, and the file can still be read then.
        return False, False, True
    replacing = access != os.O_RDONLY and bool(flags & os.O_TRUNC)
    return access != os.O_WRONLY and not replacing, replacing, bool(flags & os.O_CREAT)


def _followed(process: int, path: str) -> str:
    """The path with a leading link of /proc resolved, because that link means another target for the
    supervisor."""
    path = path.replace("/dev/fd/", "/proc/self/fd/", 1) if path.startswith("/dev/fd/") else path
    while path.startswith("/proc/") and (link := _LINK.match(path)):
        owner = link[1] if link[1].isdecimal() else process
        target = os.readlink(f"/proc/{owner}/{link[2]}")
        if not target.startswith("/") or target.startswith("/proc/"):
            break
        path = target.rstrip("/") + path[link.end() :] or "/"
    return path


def _ignored(path: str) -> bool:
    if path.startswith("/dev/shm/"):
        return path.startswith("/dev/shm/sem.")
    if "/../" in path:
        path = os.path.normpath(path)
    if path.startswith(IGNORED) or path == LOADER_CACHE:
        return True
    derived = _derived()
    return derived is not None and f"{path}/".startswith(derived)


@cache
def _derived() -> str | None:
    try:
        return f"{os.path.normpath(derived_folder())}/"
    except UsageError:  # The user has no home folder, and nothing is kept.
        return None


def _signed(value: int) -> int:
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low & 0x80000000 else low


class _Slice(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def _memory(process: int, address: int, length: int) -> bytes:
    """Up to `length` bytes of another process's memory; fewer if it ends at a page boundary."""
    buffer = ctypes.create_string_buffer(length)
    ours = _Slice(ctypes.addressof(buffer), length)
    first = min(length, 4096 - address % 4096)
    theirs = (_Slice * 2)(_Slice(address, first), _Slice(address + first, length - first))
    count = _libc.process_vm_readv(
        process, ctypes.byref(ours), ctypes.c_ulong(1), theirs, ctypes.c_ulong(2 if length > first else 1), 0
    )
    if count < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return buffer.raw[:count]


def _text(process: int, address: int) -> bytes:
    if not address:
        return b""
    for length in (256, 4096):
        text, ended, _ = _memory(process, address, length).partition(b"\0")
        if ended:
            return text
    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _program(process: int) -> str:
    try:
        return os.path.basename(os.readlink(f"/proc/{process}/exe"))
    except OSError:
        return "a program"
