"""What an engine that is absent, refuses or is full means for the user."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ci.image.engine import Done, Engine, Job, Mount
from tests.support.typed import typed


def test_the_verb_ends_with_3_and_no_traceback(tmp_path: Path) -> None:
    done = typed(
        "image",
        "wheels",
        "--reports",
        tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
    )
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert '"outcome": "error"' in (tmp_path / "image.json").read_text()


class Client:
    """Stands for docker's client, and for its images, containers and the one container that it makes."""

    def __init__(self, *, code: int = 0, fails: Exception | None = None, options: Sequence[str] = ()) -> None:
        self.code, self.fails, self.options = code, fails, options
        self.images = self.containers = self.api = self
        self.asked: dict[str, Any] = {}
        self.did: list[str] = []
        self.id = "sha256:1"

    def info(self) -> dict[str, object]:
        return {"ServerVersion": "1", "SecurityOptions": list(self.options)}

    def get(self, reference: str) -> Client:
        if self.fails is not None:
            raise self.fails
        return self

    pull = get

    def create(self, image: str, command: list[str], **how: Any) -> Client:
        self.asked = {"image": image, "command": command, **how}
        return self

    def start(self) -> None:
        if self.fails is not None:
            raise self.fails

    def wait(self) -> dict[str, int]:
        return {"StatusCode": self.code}

    def logs(self, *, stdout: bool, stderr: bool) -> bytes:
        return b"out\xff" if stdout and not stderr else b"err"

    def remove(self, *reference: str, force: bool, v: bool = False) -> None:
        self.did.append("removed")
        if reference and self.fails is not None:
            raise self.fails


def engine_of(client: Client) -> Engine:
    return Engine(client)


def test_a_command_in_a_container_has_no_network_and_writes_nothing_that_was_not_granted() -> None:
    client = Client(code=7)
    mounts = [Mount("/a", "/in", True), Mount("/b", "/out")]
    job = Job("image", ["sh"], "0:0", mounts, {"A": "1"}, "/out", read_only=True, tmpfs=["/tmp"])
    done = engine_of(client).run(job)
    assert done == Done(7, "out\ufffd", "err")
    given = ("image", "command", "user", "environment", "working_dir")
    assert [client.asked[name] for name in given] == ["image", ["sh"], "0:0", {"A": "1"}, "/out"]
    assert client.asked["network_mode"] == "none"
    assert client.asked["read_only"] is True
    assert client.asked["volumes"] == {
        "/a": {"bind": "/in", "mode": "ro"},
        "/b": {"bind": "/out", "mode": "rw"},
    }
    assert list(client.asked["tmpfs"]) == ["/tmp"]
    assert client.did == ["removed"]
