"""Child processes: what they may know of our environment, and that none of them outlives its time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence

from provisioning.base.errors import CheckFailed, EnvironmentLacking

_PLAIN = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TMPDIR", "TERM", "SYSTEMROOT")
_PLAIN_PREFIXES = ("LC_", "ADB_", "ANDROID_ADB_", "ANDROID_SERIAL")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ssl_cert_file", "ssl_cert_dir")

_secret_variables: set[str] = {"QNN_CI_SIGNING_PASSPHRASE"}


def keep_from_children(variable: str) -> None:
    """Name a variable that no child may inherit, whatever else it inherits."""
    _secret_variables.add(variable)


def plain_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For tools that sign with nothing of ours: only what a program needs to run, and proxies."""
    return {
        name: value
        for name, value in environ.items()
        if name not in _secret_variables
        and (name in _PLAIN or name.startswith(_PLAIN_PREFIXES) or name.lower() in _PROXIES)
    }


def signer_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """For the user's own signing command, which needs its tokens but not our passphrase."""
    return {name: value for name, value in environ.items() if name not in _secret_variables}


def stop(child: subprocess.Popen[bytes]) -> None:
    """End the child and everything it started; it must lead its own session."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def sign_with(command: Sequence[str], digest: bytes, seconds: float) -> bytes:
    """What an external signer answers to one digest; neither logged nor shown."""
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=signer_environment(),
            start_new_session=True,
        )
    except OSError as error:
        raise EnvironmentLacking(
            f"{command[0]}: cannot be run: {error.strerror}", remedy="give --sign-command a program on PATH"
        ) from error
    with child:
        try:
            answer, _ = child.communicate(digest, timeout=seconds)
        except subprocess.TimeoutExpired as error:
            raise CheckFailed(
                f"{command[0]} did not sign within {seconds:g} s",
                remedy="run it by hand, see what it waits for",
            ) from error
        finally:
            stop(child)
    if child.returncode != 0:
        raise CheckFailed(
            f"{command[0]} ended with status {child.returncode}",
            remedy="run it by hand: `head -c 48 /dev/zero | COMMAND | wc -c` must print a signature's size",
        )
    return answer
