"""Compute something in a process of its own while this one goes on, for example with its imports."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress


class Ahead:
    """Begins at once. Where no process can be forked, nothing is computed: threads may hold locks, which a
    fork would wait for."""

    def __init__(self, compute: Callable[[], str]) -> None:
        self._process = 0
        if threading.active_count() > 1:
            return
        self._receive, send = os.pipe()
        with suppress(OSError):
            self._process = os.fork()
            if not self._process:
                with suppress(BaseException):
                    os.write(send, compute().encode())
                os._exit(0)
        os.close(send)
        if not self._process:
            os.close(self._receive)

    def result(self) -> str:
        """What it computed, which is given once; empty if that failed."""
        if not self._process:
            return ""
        with os.fdopen(self._receive) as stream:
            text = stream.read()
        os.waitpid(self._process, 0)
        self._process = 0
        return text
