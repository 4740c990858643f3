"""Give up a server whose headers drip in.

A socket's time limit starts anew at each byte, so a byte now and then would keep a download waiting for ever.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection

from provisioning.base.errors import UpstreamError


def _response_in_time(connection: HTTPConnection, receive: Callable[[], HTTPResponse]) -> HTTPResponse:
    """The answer, if all of its headers arrive within the time in which a byte must arrive."""
    sock, seconds = connection.sock, connection.timeout
    if sock is None or not isinstance(seconds, float | int):
        return receive()
    is_late = threading.Event()

    def hang_up() -> None:
        is_late.set()
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, hang_up)
    timer.daemon = True
    timer.start()
    late = UpstreamError(
        f"{connection.host}: the headers of its answer did not arrive within {seconds:g} s",
        fix="try again later: it goes on from where it stopped",
    )
    try:
        response = receive()
    except (OSError, http.client.HTTPException):
        if is_late.is_set():
            raise late from None
        raise
    finally:
        timer.cancel()
    # A connection that is shut down in the middle of headers reads as if they had ended.
    if is_late.is_set():
        raise late
    return response


class _Connection(HTTPConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3's own
        return _response_in_time(self, super().getresponse)


class _EncryptedConnection(HTTPSConnection):
    def getresponse(self) -> HTTPResponse:  # type: ignore[override]  # as urllib3's own
        return _response_in_time(self, super().getresponse)


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _EncryptedPool(HTTPSConnectionPool):
    ConnectionCls = _EncryptedConnection


_POOLS = {"http": _Pool, "https": _EncryptedPool}


class Adapter(HTTPAdapter):
    """What a session of requests sends its requests with."""

    def init_poolmanager(self, *args: Any, **more: Any) -> None:
        super().init_poolmanager(*args, **more)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **more: Any) -> Any:
        manager = super().proxy_manager_for(*args, **more)
        manager.pool_classes_by_scheme = _POOLS
        return manager
