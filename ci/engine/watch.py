"""See what a process touches, including its native code and children: files, look-ups, listings, sockets.

The kernel reports system calls to a supervisor (seccomp user notification). The supervisor reads the path and
lets the call continue. The process installs the filter itself, without privileges; its children and the
programs that it executes inherit it. What cannot be followed (a connection, a change of root) is named in
`Touched.unseen`, and such work must not be remembered.

This is no sandbox: it watches code that does not try to hide."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from provisioning.base.files import hash_file

Stamp = tuple[int, int, int, int]
"""Size, mtime, ctime (nanoseconds) and inode: while these are equal, the file is taken for unchanged."""

YOUNG_SECONDS = 2.0
"""A file that changed more recently than this can change again with the same stamp, so its bytes are
compared."""

IGNORED = ("/proc/", "/sys/")
"""The state of the machine and of the process is never an input; nor is a device in /dev."""

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
    """A system call's meaning, and which of its arguments are directory, path and flags.

    `use` is any call that makes, removes, changes or enters what a path names. A `look` asks for all that can
    be asked of it, a `glance` for no times of a folder."""

    what: Literal[
        "open", "open2", "create", "use", "pair", "look", "glance", "run", "list", "attributes", "connect",
        "bind", "send", "share", "escape",
    ]  # fmt: skip
    directory: int | None = None
    path: int = 0
    flags: int = 0
    target: tuple[int | None, int] = (None, 1)
    """Directory and path of the second path of a `pair`: a move or another name."""


_ARCHITECTURE, _SECCOMP = 0xC000003E, 317
_CALLS = {
    2: Call("open", None, 0, 1),
    257: Call("open", 0, 1, 2),
    437: Call("open2", 0, 1, 2),
    85: Call("create"),
    # truncate, mkdir, rmdir, unlink, chmod, chown, lchown, utime, mknod, statfs, chdir, setxattr,
    # lsetxattr, removexattr, lremovexattr, utimes, inotify_add_watch
    **dict.fromkeys((76, 83, 84, 87, 90, 92, 94, 132, 133, 137, 80, 188, 189, 197, 198, 235), Call("use")),
    **dict.fromkeys((258, 259, 260, 261, 263, 268, 280, 303, 452), Call("use", 0, 1)),
    254: Call("use", None, 1),
    88: Call("use", None, 1),
    266: Call("use", 1, 2),
    **dict.fromkeys((82, 86), Call("pair")),
    **dict.fromkeys((264, 316, 265), Call("pair", 0, 1, target=(2, 3))),
    # shmget, semget, msgget, mq_open, add_key, request_key, keyctl
    **dict.fromkeys((29, 64, 68, 240, 248, 249, 250), Call("share")),
    **dict.fromkeys((4, 191, 194), Call("look")),
    262: Call("look", 0, 1, 3),
    332: Call("look", 0, 1, 2),
    # lstat, access, readlink, lgetxattr, llistxattr, faccessat, faccessat2, readlinkat
    **dict.fromkeys((6, 21, 89, 192, 195), Call("glance")),
    **dict.fromkeys((269, 439, 267), Call("glance", 0, 1)),
    59: Call("run"),
    322: Call("run", 0, 1),
    **dict.fromkeys((78, 217), Call("list")),
    # fgetxattr, flistxattr
    **dict.fromkeys((193, 196), Call("attributes")),
    42: Call("connect"),
    49: Call("bind"),
    **dict.fromkeys((44, 46, 307), Call("send")),
    **dict.fromkeys((161, 165, 155, 272, 304, 308), Call("escape")),
}
"""Those of x86-64, the one that QNN's compilers and emulators run on."""
_IO_URING_SETUP = 425
_SENDTO = (44, 206)
_AT_FDCWD = -100
_ENVIRON = re.compile(r"/proc/(\d+)/(?:task/\d+/)?environ$")
_LINK = re.compile(r"/proc/(self|thread-self|\d+)(?:/task/\d+)?/(cwd|root|exe|fd/\d+)(?=/|$)")
"""Links in /proc that lead to files; /dev/fd is one of them."""
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOFOLLOW = 0x100

_libc = ctypes.CDLL(None, use_errno=True)

QUERY_BEGINS, QUERY_ENDS = "/dev/null/qnn-ci-query-begins", "/dev/null/qnn-ci-query-ends"
"""A thread asks whether they exist around a listing that serves a query about packages. That query is an
input, what else is in the folder is none."""


class Unavailable(Exception):
    """The kernel or the container does not allow watching a process; the message says why."""


@dataclass
class Touched:
    """What work touched, by absolute path; the first touch of a path counts."""

    opened: dict[str, Stamp] = field(default_factory=dict)
    """Regular files that were read or executed, with their stamp at that moment."""
    digests: dict[str, str] = field(default_factory=dict)
    """The SHA-256 at that moment of opened files that had just been changed."""
    looked: dict[str, str] = field(default_factory=dict)
    """Paths that were looked up but not read: `absent`, `file` or `directory`."""
    details: dict[str, str] = field(default_factory=dict)
    """`details_of` paths at the moment when somebody asked for them."""
    listed: dict[str, str] = field(default_factory=dict)
    """Directories whose names were read, with `listing_of` at that moment."""
    queried: dict[str, str] = field(default_factory=dict)
    """Directories that were searched for packages, with `modules_of` at that moment."""
    asked: dict[str, str] = field(default_factory=dict)
    """Variables that were not there: no inputs, for messages alone."""
    searched: list[str] = field(default_factory=list)
    """Folders in which modules are searched: each import asks for their times, which are no inputs."""
    unseen: list[str] = field(default_factory=list)
    """What happened that cannot be followed, as text. Work with any entry here must not be remembered."""
    left: list[str] = field(default_factory=list)
    """What it used and changed: work that finds it may do something else."""
    suspect: list[str] = field(default_factory=list)
    """The opened files that may have changed while they were read."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Touched:
        """From a worker's reply."""
        rows = data.get("opened", {}).items()
        return cls(**{**data, "opened": {path: (row[0], row[1], row[2], row[3]) for path, row in rows}})

    def __or__(self, later: Touched) -> Touched:
        """For work in two steps; the first touch of each input counts."""
        merged: dict[str, Any] = {}
        for name, mine in vars(self).items():
            theirs = getattr(later, name)
            merged[name] = [*mine, *theirs] if isinstance(mine, list) else theirs | mine
        return Touched(**merged)


def stamp_of(info: os.stat_result) -> Stamp:
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino


def stamp_of_installed(info: os.stat_result) -> Stamp:
    """Without its ctime if it has several names: an installer links the files of its cache into each
    environment that it makes, which sets that for all of them. An edit of such a file is not seen if its size
    stays and its time is put back."""
    return info.st_size, info.st_mtime_ns, info.st_ctime_ns if info.st_nlink == 1 else 0, info.st_ino


def changed_too_recently(stamp: Stamp) -> bool:
    """Whether the stamp is too recent to be trusted; true of a stamp in the future as well."""
    return max(stamp[1], stamp[2]) / 1e9 > time.time() - YOUNG_SECONDS


_BYTECODE = re.compile(r"(.*)/__pycache__/([^/.]+)[^/]*\.pyc(?:\.\d+)?")


def source_of(path: str) -> str:
    """The source file of bytecode, which is what counts; empty for other files and if there is no source."""
    match = _BYTECODE.fullmatch(path) if "/__pycache__/" in path else None
    source = f"{match[1]}/{match[2]}.py" if match else ""
    return source if source and os.path.exists(source) else ""


def listing_of(path: str) -> str:
    """The digest of a directory's names and their kinds, or `absent`. Python's folder of bytecode does not
    count."""
    return _digest_of(path, lambda entry: f"{entry.name}/{_kind(entry)}" * (entry.name != "__pycache__"))


def _digest_of(path: str, named: Callable[[os.DirEntry[str]], str]) -> str:
    """Of a directory's entries by what each is named; those without a name do not count."""
    try:
        with os.scandir(path) as entries:
            names = sorted(filter(None, map(named, entries)))
    except OSError:
        return "absent"
    return hashlib.sha256("\0".join(names).encode("utf-8", "surrogateescape")).hexdigest()


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    return "directory" if entry.is_dir() else "file" if entry.is_file() else "other"


MODULES, PACKAGES = (".py", ".pyc", ".so", ".pth"), ("-info", ".egg", ".egg-link")
"""How names end by which Python finds modules in a folder, and what is installed there."""


def modules_of(path: str) -> str:
    """The digest of the names by which Python finds modules and packages in a directory, or `absent`."""

    def named(entry: os.DirEntry[str]) -> str:
        is_found = entry.name.endswith((*MODULES, *PACKAGES)) or os.path.exists(f"{entry.path}/__init__.py")
        return entry.name * is_found

    return _digest_of(path, named)


def details_of(path: str) -> str:
    """All that can be asked of what a path names, and of the path's own link, without reading it."""
    try:
        infos = [os.stat(path)] + ([os.lstat(path)] if os.path.islink(path) else [])
        own = {name: os.getxattr(path, name).hex() for name in sorted(os.listxattr(path))}
    except OSError:
        return "absent"
    asked = [
        f"{info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_mode:o} {info.st_uid}:{info.st_gid}"
        f" {info.st_nlink} {info.st_dev}:{info.st_ino}"
        for info in infos
    ]
    return " -> ".join(asked) + (f" {own}" if own else "")


def state_of(path: str) -> str:
    """By which it is seen that work changed a file, a link or whether there is a folder."""
    try:
        info = os.lstat(path)
    except OSError:
        return "absent"
    if stat.S_ISLNK(info.st_mode):
        with contextlib.suppress(OSError):
            real = os.path.realpath(path)
            return f"{os.readlink(path)} {state_of(real) if real != path else ''}"
    if stat.S_ISREG(info.st_mode):
        return f"{info.st_size} {info.st_mtime_ns} {info.st_ino} {info.st_mode:o}"
    return f"{stat.S_IFMT(info.st_mode):o}"


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
    if (machine := os.uname().machine) != "x86_64" or struct.calcsize("P") != 8:
        raise Unavailable(f"no table of system calls for {machine}")

    def step(code: int, yes: int, no: int, value: int) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    sends = [syscall for syscall, call in _CALLS.items() if call.what == "send"]
    rest = sorted(_CALLS.keys() - set(sends))
    count = len(_CALLS)
    # The filter also reports calls of another architecture or of x32, which the supervisor cannot read.
    program = step(load, 0, 0, 4) + step(equal, 0, count + 6, _ARCHITECTURE) + step(load, 0, 0, 0)
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
    descriptor = int(_libc.syscall(_SECCOMP, 1, new_listener, header))
    if descriptor < 0:
        raise Unavailable(f"seccomp: {os.strerror(ctypes.get_errno())}")
    return descriptor


class Supervisor:
    """Answers the calls of one watched process and its children, and records what they touch."""

    def __init__(self, listener: int, temporary: str = "", installed: tuple[str, ...] = ()) -> None:
        """Files below `temporary`, which somebody removes after the work, are no inputs. What lies below
        `installed`, each ending in a slash, has its content in the key."""
        self.seen = Touched()
        self._before: dict[str, str] = {}
        """`state_of` every path that a call used, before the first call that named it. A call that only
        replaces a file does not use it."""
        self._in_query: set[int] = set()
        """Threads that look for packages."""
        self._temporary, self._installed, self._linked = f"{temporary}/", installed, False
        self._replaced: dict[str, str] = {}
        """`state_of` files before they were replaced."""
        self.listener = listener
        self._request, self._response = bytearray(80), bytearray(24)
        self._known: set[tuple[str, str]] = set()

    def close(self) -> None:
        """Watched calls fail from now on, so end the process first."""
        os.close(self.listener)

    def left(self) -> list[str]:
        """What was used and is not as it was before."""
        return [path for path, state in self._before.items() if state_of(path) != state]

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
        call = _CALLS.get(number) if arch == _ARCHITECTURE else None
        if call is None:
            self._unseen(f"{_program(process)}, a program of another architecture")
        elif call.what == "escape":
            self._unseen(f"{_program(process)} changed what paths mean (system call {number})")
        elif call.what == "share":
            self._unseen(f"{_program(process)} used what processes share beside files (system call {number})")
        elif call.what in ("connect", "bind"):
            self._connection(process, arguments[1], arguments[2], bind=call.what == "bind")
        elif call.what == "send":
            if number not in _SENDTO:
                arguments[4:6] = struct.unpack("QI", _memory(process, arguments[1], 12))
            if arguments[4]:
                self._connection(process, arguments[4], arguments[5])
        elif call.what in ("list", "attributes"):
            path = os.readlink(f"/proc/{process}/fd/{_signed(arguments[0])}")
            if call.what == "list":
                self._listing(path, process)
            elif path.startswith("/"):
                self._named(process, path, "look")
        else:
            self._path(process, call, arguments)

    def _path(self, process: int, call: Call, arguments: list[int]) -> None:
        for directory, number in (
            (call.directory, call.path),
            *([call.target] if call.what == "pair" else ()),
        ):
            raw = _text(process, arguments[number])
            if not raw:
                continue
            path = os.fsdecode(raw)
            if path == QUERY_BEGINS:
                self._in_query.add(process)
            elif path == QUERY_ENDS:
                self._in_query.discard(process)
            else:
                if path[0] != "/":
                    path = f"{self._base(process, directory, arguments)}/{path}"
                self._named(process, path, _how(process, call, number, arguments))

    def _named(self, process: int, path: str, how: How) -> None:
        if (path, how) in self._known:
            return
        followed = _followed(process, path if "/../" in path else os.path.normpath(path))
        if not path.startswith("/proc/") and not self._is_temporary(followed):
            self._known.add((path, how))
        if how == "use":
            # A link of the work's own may lead anywhere.
            self._linked = True
        if how == "read" and (of := _ENVIRON.match(followed)) and int(of[1]) != process:
            self._unseen(f"{_program(process)} read the environment of another process")
        self._touch(followed, how)
        if how == "run":
            self._interpreter(followed)

    def _base(self, process: int, directory: int | None, arguments: list[int]) -> str:
        descriptor = _AT_FDCWD if directory is None else _signed(arguments[directory])
        place = "cwd" if descriptor == _AT_FDCWD else f"fd/{descriptor}"
        return os.readlink(f"/proc/{process}/{place}")

    def _touch(self, path: str, how: How) -> None:
        if self._is_own(path):
            if self._linked and self._is_temporary(path) and not self._is_own(real := os.path.realpath(path)):
                self._touch(real, how)
            return
        seen, reading = self.seen, how in ("read", "run", "link")
        if f"{path}/".startswith(self._installed):
            if reading:
                with contextlib.suppress(OSError):
                    seen.opened.setdefault(path, stamp_of(os.stat(path)))
            return
        if path.endswith("/__pycache__"):
            return
        if source := source_of(path):
            if reading:
                self._touch(source, how)
            return
        state = state_of(path)
        if how == "replace":
            self._replaced.setdefault(path, state)
            return
        self._before.setdefault(path, self._replaced.get(path, state))
        try:
            info = os.stat(path)
        except OSError:
            seen.looked.setdefault(path, absence_of(path))
            return
        folder = stat.S_ISDIR(info.st_mode)
        if how == "look" or (how == "glance" and not folder):
            seen.details.setdefault(path, details_of(path))
        if folder or (stat.S_ISREG(info.st_mode) and not reading):
            seen.looked.setdefault(path, "directory" if folder else "file")
        elif reading and not stat.S_ISREG(info.st_mode):
            self._unseen(f"{path}, a pipe or a device, was read")
        elif reading and path not in seen.opened:
            seen.opened[path] = stamp = stamp_of(info)
            if how == "link" or changed_too_recently(stamp):
                with contextlib.suppress(OSError):
                    seen.digests[path] = hash_file(Path(path))

    def _interpreter(self, path: str) -> None:
        """The kernel opens a script's interpreter itself, so record it here."""
        with contextlib.suppress(OSError), open(path, "rb") as stream:
            first = stream.readline(512)
            if first.startswith(b"#!") and (words := first[2:].split()):
                self._touch(os.fsdecode(words[0]), "read")

    def _listing(self, path: str, process: int) -> None:
        if self._is_own(path) or path.endswith("/__pycache__") or f"{path}/".startswith(self._installed):
            return
        if process in self._in_query:
            self.seen.queried.setdefault(path, modules_of(path))
        elif path not in self.seen.listed:
            self.seen.listed[path] = listing_of(path)

    def _is_temporary(self, path: str) -> bool:
        return f"{path}/".startswith(self._temporary) and self._temporary != "/"

    def _is_own(self, path: str) -> bool:
        """Whether it is no input: temporary, of the machine, or not there before the work made it or a folder
        around it."""
        if self._is_temporary(path) or _ignored(path):
            return True
        while len(path) > 1:
            if self._before.get(path, self._replaced.get(path)) == "absent" and os.path.lexists(path):
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
        if what not in self.seen.unseen:
            self.seen.unseen.append(what)


How = Literal["read", "replace", "use", "look", "glance", "run", "link"]
"""What a call does with a path: read what is there, replace it whole, look at it, give it another name, which
changes its stamp, or anything else."""


def _how(process: int, call: Call, number: int, arguments: list[int]) -> How:
    if call.what in ("look", "glance"):
        follows = not (call.flags and arguments[call.flags] & _NOFOLLOW)
        return "look" if call.what == "look" and follows else "glance"
    if call.what == "run":
        return "run"
    if call.what == "pair":
        # Under its other name, an input would look like a file of the work's own.
        return "link" if number == call.path else "use"
    if call.what in ("open", "open2", "create"):
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC if call.what == "create" else arguments[call.flags]
        if call.what == "open2":
            flags = struct.unpack("Q", _memory(process, flags, 8))[0]
        if flags & (os.O_PATH | os.O_DIRECTORY):
            return "glance"
        if flags & os.O_CREAT and flags & os.O_EXCL:
            return "use"
        return "replace" if flags & os.O_ACCMODE != os.O_RDONLY and flags & os.O_TRUNC else "read"
    return "use"


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
    if "/../" in path:
        path = os.path.normpath(path)
    if path.startswith(IGNORED) or path == LOADER_CACHE:
        return True
    if path.startswith("/dev/"):
        # Devices; files in shared memory are files.
        with contextlib.suppress(OSError):
            mode = os.stat(path).st_mode
            return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


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
