"""The container engine, through docker's SDK. Every foreseeable error has a fix."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from provisioning.base.errors import CheckFailed, EnvironmentLacking, ToolkitError, UpstreamError

if TYPE_CHECKING:
    import docker

INSTALL = "apt-get install docker.io, or see https://docs.docker.com/engine/install/"
DEFAULT_HOST = "unix:///var/run/docker.sock"
SOCKETS = (
    "/var/run/docker.sock",
    "{runtime}/docker.sock",
    "{runtime}/podman/podman.sock",
    "/run/podman/podman.sock",
)
"""Where an engine listens: docker's own, docker without root, podman without root, podman's own."""
MACHINES = ("x86_64", "amd64")
"""How engines call the processor that our images are for."""
SCRATCH = "exec,mode=1777"
"""The options of a folder in a container's memory."""
SILENT_SECONDS = 1800
"""Older engines are silent while they write an image out before they send it."""
UNREACHED = "Error while fetching server API version"
"""What docker's SDK says of an engine that it cannot reach."""
NO_SPACE = "no space left on device"
"""The message as Go writes it; others begin with a capital letter."""


class Engine:
    def __init__(self, client: docker.DockerClient) -> None:
        self._client = client
        info = dict(client.info())
        client.api.timeout = SILENT_SECONDS
        machine = str(info.get("Architecture", MACHINES[0]))
        if machine not in MACHINES:
            raise EnvironmentLacking(
                f"images are for x86-64 Linux, and this container engine runs on {machine}",
                fix="name an engine on x86-64 in DOCKER_HOST; there are no images for Arm64",
            )
        rootless = any("rootless" in option for option in info.get("SecurityOptions") or ())
        self.owner = "0:0" if rootless else f"{os.getuid()}:{os.getgid()}"
        """The user in a container whose files belong to our caller outside of it."""

    def image_id(self, reference: str) -> str | None:
        import docker.errors

        try:
            return str(self.attributes(reference)["Id"])
        except docker.errors.ImageNotFound:
            return None

    def pull(self, reference: str) -> str:
        import docker.errors

        try:
            return str(self._client.images.pull(reference).id)
        except docker.errors.APIError as error:
            raise UpstreamError(
                f"the base image {reference} cannot be pulled: {error.explanation or error}",
                fix="name a local image with --base; docs/environments.md says how to make one",
            ) from error

    def attributes(self, reference: str) -> dict[str, Any]:
        """The output of `docker image inspect`."""
        return dict(self._client.images.get(reference).attrs)

    def remove(self, reference: str) -> None:
        """Remove the name, and the image if it has no other. A missing image is no error."""
        import docker.errors

        with suppress(docker.errors.ImageNotFound):
            self._client.images.remove(reference, force=True)

    def run(
        self,
        image: str,
        command: Sequence[str],
        *,
        commit: str = "",
        settings: Mapping[str, object] = MappingProxyType({}),
        network: str = "none",
        **options: Any,
    ) -> CompletedProcess[str]:
        """Run to the end in a container that is removed afterwards; `options` are those of docker's SDK. A
        failing command is returned; a failing engine raises.

        What a command that succeeds has written becomes a layer of an image named `commit`; `settings` are
        what `docker image inspect` shows as its Config."""
        container = self._client.containers.create(
            image,
            list(command),
            network_mode=network,
            # Of a container that stays, variables would be the image's.
            use_config_proxy=network != "none",
            **options,
        )
        try:
            container.start()
            code = int(container.wait()["StatusCode"])
            out, err = (
                container.logs(stdout=kind, stderr=not kind).decode("utf-8", "replace")
                for kind in (True, False)
            )
            if commit and not code:
                repository, _, tag = commit.rpartition(":")
                container.commit(repository, tag, conf=dict(settings))
            return CompletedProcess(command, code, out, err)
        finally:
            container.remove(force=True, v=True)


@contextmanager
def connect_engine() -> Iterator[Engine]:
    """The engine that answers. Docker's errors inside become ours."""
    import docker.errors
    import requests

    import docker

    address = engine_address(os.environ)
    if address.startswith("unix://"):
        # First, because docker's SDK would leave a socket open.
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.connect(address.removeprefix("unix://"))
        except OSError as error:
            raise error_of(f"{UNREACHED}: {error}", address) from error
    try:
        # The variables of TLS and the context's certificates are the SDK's to find.
        environ = dict(os.environ)
        if address.startswith("unix://"):
            environ["DOCKER_HOST"] = address
        with closing(docker.from_env(environment=environ)) as client:
            yield Engine(client)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise error_of(str(error), address) from error


def engine_address(environ: Mapping[str, str], sockets: Sequence[str] = SOCKETS) -> str:
    """Find the address of the engine: DOCKER_HOST, docker's current context, else the first socket there
    is."""
    from docker.context import ContextAPI

    if environ.get("DOCKER_HOST"):
        return environ["DOCKER_HOST"]
    context = ContextAPI.kwargs_from_context(environment=dict(environ)).get("base_url", "")
    address = context.replace("http+unix://", "unix://")
    if address and address not in (DEFAULT_HOST, "unix://var/run/docker.sock"):
        return str(address)
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    paths = [path.format(runtime=runtime) for path in sockets]
    return next((f"unix://{path}" for path in paths if Path(path).is_socket()), DEFAULT_HOST)


def error_of(message: str, address: str) -> ToolkitError:
    if NO_SPACE in message.lower():
        return out_of_disk(message)
    if UNREACHED not in message:
        return CheckFailed(f"the container engine failed: {message}", fix="docker info")
    if "Permission denied" in message:
        fix = "sudo usermod -aG docker $USER, and log in again"
        return EnvironmentLacking(f"the container engine runs, but you may not use it ({address})", fix=fix)
    fix = f"systemctl start docker, or {INSTALL}"
    reason = message.removeprefix(f"{UNREACHED}: ")
    return EnvironmentLacking(f"no container engine answers at {address}: {reason}", fix=fix)


def out_of_disk(message: str) -> EnvironmentLacking:
    return EnvironmentLacking(
        f"the disk that the container engine uses is full: {message.strip()}",
        fix="docker system prune, or give it a larger disk",
    )
