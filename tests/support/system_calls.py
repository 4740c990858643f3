"""End a child of this process at one of its system calls, by the kernel's ptrace."""

from __future__ import annotations

import ctypes
import os
import signal

_TRACEME, _SYSCALL, _DETACH = 0, 24, 17
_ptrace = ctypes.CDLL(None, use_errno=True).ptrace
_ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_ptrace.restype = ctypes.c_long


def wait_for_tracer() -> None:
    """Stop this process until its parent lets it go on."""
    _request(_TRACEME, 0)
    os.kill(os.getpid(), signal.SIGSTOP)


def end_at_system_call(child: int, step: int, number: int) -> int:
    """Send a signal to a child that called `wait_for_tracer`, at this system call of its main thread. Return
    its exit code, or minus the signal that ended it."""
    signal_to_pass = 0
    _, status = os.waitpid(child, 0)
    # The kernel stops it before and after each call.
    for _ in range(2 * step):
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        _request(_SYSCALL, child, signal_to_pass)
        _, status = os.waitpid(child, 0)
        signal_to_pass = os.WSTOPSIG(status) if os.WIFSTOPPED(status) else 0
        if signal_to_pass == signal.SIGTRAP:
            signal_to_pass = 0
    if os.WIFSTOPPED(status):
        os.kill(child, number)
        if number != signal.SIGKILL:
            _request(_DETACH, child)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _request(request: int, child: int, data: int = 0) -> None:
    if _ptrace(request, child, None, data) == -1:
        raise OSError(ctypes.get_errno(), f"ptrace {request}")
