"""Archives of images, as `docker save` writes them."""

from __future__ import annotations

import io
import json
import tarfile


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def archive(name: str, files: dict[str, bytes], **labels: str) -> bytes:
    """As `docker save` writes it."""
    config = {"config": {"Labels": {"qnn-ci.image": name, "qnn-ci.not-to-be-published": "", **labels}}}
    manifest = [{"Config": "config.json", "Layers": ["a/layer.tar", "b/layer.tar"]}]
    layers = {"a/layer.tar": tar({"etc/passwd": b""}), "b/layer.tar": tar(files)}
    texts = {"manifest.json": json.dumps(manifest).encode(), "config.json": json.dumps(config).encode()}
    return tar({**layers, **texts})
