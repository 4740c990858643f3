"""A command ends with an exit code: foreseeable errors become a message and a fix, signals an interrupt."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from provisioning.base import answer
from provisioning.base.commands import Fix, join_fixes, quote_command
from provisioning.base.errors import (
    INTERNAL,
    INTERRUPTED,
    TERMINATED,
    EnvironmentLacking,
    Terminated,
    ToolkitError,
)
from provisioning.base.files import disk_error
from provisioning.base.foreign import visible
from provisioning.base.rendering import drop_output, wants_colour
from provisioning.base.units import readable

OWN_PACKAGES = ("ci", "provisioning")

CLEANUP_SECONDS = 60.0
"""An interrupted command may take this long to end what it started. The gate, the slowest, needs ten."""

_BROKEN_PIPE = 128 + signal.SIGPIPE
"""The exit code of a program that SIGPIPE ended, as in `… | head`."""


def guard(work: Callable[[], int], *, debug: bool, session: Fix | None = None) -> int:
    """Turn foreseeable errors into a message, a fix and an exit code.

    `session` is the command that runs the same with all packages installed.
    """
    code = _BROKEN_PIPE
    try:
        with termination_as_interrupt():
            code = work()
        # Flush now: at its end the interpreter could only print a warning.
        sys.stdout.flush()
        return code
    except ToolkitError as error:
        if debug:
            _print_traceback()
            sys.stderr.write(error.output)
        show_error(error)
        return error.exit_code
    except KeyboardInterrupt as error:
        # Else Python ends by SIGINT where this met code that is made from text, as a dataclass is.
        exec("")  # noqa: S102
        if not sys.stderr.isatty():
            sys.stderr.write("interrupted\n")
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except BrokenPipeError:
        # Without a verdict this is no pass. The interpreter flushes stdout at its end, so give it a target.
        drop_output(sys.stdout)
        return code
    except OSError as error:
        trouble = disk_error(error, "choose another path (see --help)")
        if trouble is None:
            return _show_crash(error)
        if debug:
            _print_traceback()
        if error.filename is None:
            drop_output(sys.stdout)
        show_error(trouble)
        return trouble.exit_code
    except ModuleNotFoundError as error:
        if not session or (error.name or "").partition(".")[0] in OWN_PACKAGES:
            return _show_crash(error)
        if debug:
            _print_traceback()
        return _show_missing_package(error, session)
    except EOFError as error:
        bytecode = _cut_bytecode(error)
        return _show_crash(error) if bytecode is None else _show_cut_bytecode(bytecode)
    except Exception as error:
        return _show_crash(error)


def _show_missing_package(error: ModuleNotFoundError, session: Fix) -> int:
    message = f"the Python {sys.executable} has no package {error.name}"
    fix = join_fixes([session, "which installs what it needs"], ", ")
    show_error(EnvironmentLacking(message, fix=fix))
    return EnvironmentLacking.exit_code


def _show_cut_bytecode(bytecode: Path) -> int:
    message = f"{bytecode}: Python's bytecode was cut short there, as by a full disk"
    remedy = quote_command("rm", bytecode) if bytecode.exists() else "it is removed: type the command again"
    show_error(EnvironmentLacking(message, fix=remedy))
    return EnvironmentLacking.exit_code


def _cut_bytecode(error: EOFError) -> Path | None:
    """Remove the bytecode that Python could not read as it imported a module, and return its path.

    Python takes no notice if a disk becomes full while it writes bytecode, and would then fail each time."""
    import traceback

    for frame, _ in traceback.walk_tb(error.__traceback__):
        place = frame.f_locals.get("bytecode_path")
        if frame.f_code.co_name == "_compile_bytecode" and place:
            with suppress(OSError):
                Path(place).unlink()
            return Path(place)
    return None


def _module_instead_of_pythons() -> Path | None:
    """Return a file on PYTHONPATH that was imported as a module of the standard library, as `json.py` is."""
    folders = set(map(os.path.realpath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
    folders.discard(str(Path(os.path.realpath(os.__file__)).parent))
    for name in sorted(sys.stdlib_module_names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and os.path.realpath(file.partition(f"{os.sep}{name}")[0]) in folders:
            return Path(file)
    return None


def _show_crash(error: Exception) -> int:
    """An error of our own: its traceback is what a report of it needs."""
    if module := _module_instead_of_pythons():
        message = f"{module}: Python imports this file instead of its own module, by PYTHONPATH"
        show_error(EnvironmentLacking(message, fix=f"rename it, or take {module.parent} off PYTHONPATH"))
        return EnvironmentLacking.exit_code
    _print_traceback()
    name = type(error).__name__
    fix = "report it with the traceback above and the command"
    show_error(ToolkitError(f"this is an error in qnn-ci: {name}: {error}", fix=fix))
    return INTERNAL


def _print_traceback() -> None:
    # Late: every start of the command would pay for it.
    import traceback

    traceback.print_exc()


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does: children end too, and the report is written. A terminal is told
    at once, since that takes seconds.

    An interrupt that meets a library as it takes a lock leaves the lock taken, and what then cleans up may
    wait for it for ever. So work that does not end is interrupted again."""

    def interrupt(number: int, _frame: object) -> None:
        if sys.stderr.isatty():
            os.write(sys.stderr.fileno(), b"\ninterrupted: ending what runs\n")
        error = Terminated if number == signal.SIGTERM else KeyboardInterrupt

        def interrupt_again(_number: int, _frame: object) -> None:
            raise error

        handler = signal.signal(signal.SIGALRM, interrupt_again)
        before.setdefault(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, CLEANUP_SECONDS, CLEANUP_SECONDS)
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # A shell has background work ignore Ctrl-C.
    ours = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        ours.append(signal.SIGINT)
    before = {number: signal.getsignal(number) for number in ours}
    try:
        for number in ours:
            signal.signal(number, interrupt)
        yield
    finally:
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def show_error(error: ToolkitError) -> None:
    answer.add_error(error)
    text = f"error: {error.message}\n"
    if error.fix:
        text += f"  try: {error.fix}\n"
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output(sys.stdout)
    sys.stderr.write(red_error(readable(visible(text), sys.stderr)))


def red_error(text: str) -> str:
    """Return the text of an error; its first word is red on a terminal."""
    is_red = sys.stderr.isatty() and wants_colour(sys.stderr)
    return f"\x1b[1;31merror:\x1b[0m{text.removeprefix('error:')}" if is_red else text
