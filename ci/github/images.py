"""Push a release's images to the repository's registry, and record their digests in the manifests."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from ci.github.files import set_outputs
from ci.github.release import tagged_version
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UpstreamError, UsageError
from provisioning.base.settings import ROOT

NAMES = ("base", "executorch")
"""What may be published: the images without any vendor's SDK."""

VENDORS = re.compile(r"(?:^|/)(?:lib)?Qnn\w*\.(?:so|dll)\b|(?:^|/)libQnn|hexagon-v\d+/", re.IGNORECASE)
"""Files that Qualcomm's licence does not let anybody distribute alone."""


def run(environ: Mapping[str, str], root: Path = ROOT) -> int:
    """Read QNN_CI_IMAGES: `push` or `record`.

    push: the folder QNN_CI_ARCHIVES with NAME.tar, QNN_CI_REGISTRY, GITHUB_ACTOR, GH_TOKEN.
    record: QNN_CI_PUBLISHED, a JSON object of references by name."""
    what = environ.get("QNN_CI_IMAGES", "")
    if what == "push":
        return push(environ, root)
    if what != "record":
        raise UsageError(f"QNN_CI_IMAGES={what!r}: expected push or record")
    from ci.image.image_plan import record_published

    record_published(json.loads(environ.get("QNN_CI_PUBLISHED") or "{}"))
    return 0


def push(environ: Mapping[str, str], root: Path) -> int:
    if shutil.which("skopeo") is None:
        raise EnvironmentLacking("skopeo is not on PATH", fix="apt-get install skopeo")
    folder = Path(environ.get("GITHUB_WORKSPACE", ""), environ.get("QNN_CI_ARCHIVES", "")).absolute()
    registry, version = environ.get("QNN_CI_REGISTRY", ""), tagged_version(environ, root)
    for name in NAMES:
        check(folder / f"{name}.tar", name)
    # Where docker keeps it: the action that attests an image reads it there.
    login = Path(
        environ.get("DOCKER_CONFIG") or Path(environ.get("HOME", "~"), ".docker").expanduser(), "config.json"
    )
    login.parent.mkdir(parents=True, exist_ok=True)
    account = ["--username", environ.get("GITHUB_ACTOR", ""), "--password-stdin"]
    _skopeo("login", "--authfile", str(login), *account, registry, token=environ.get("GH_TOKEN", ""))
    outputs: dict[str, str] = {}
    published: dict[str, str] = {}
    for name in NAMES:
        place = f"{registry}/{environ.get('GITHUB_REPOSITORY', '').lower()}-{name}"
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "digest")
            auth = ["--authfile", str(login), "--digestfile", str(file)]
            _skopeo("copy", *auth, f"docker-archive:{folder / name}.tar", f"docker://{place}:v{version}")
            digest = file.read_text(encoding="utf-8").strip()
        outputs |= {name: place, f"{name}-digest": digest}
        published[name] = f"{place}@{digest}"
    set_outputs({**outputs, "published": json.dumps(published)}, environ)
    return 0


def check(archive: Path, name: str) -> None:
    """Refuse an image that has files of a vendor, or that is another one than its name says."""
    try:
        with tarfile.open(archive) as image:
            (manifest,) = json.loads(_member(image, "manifest.json").read())
            labels = json.loads(_member(image, manifest["Config"]).read())["config"]["Labels"]
            names = [file for layer in manifest["Layers"] for file in _files(_member(image, layer))]
    except (OSError, tarfile.TarError, KeyError, ValueError, TypeError) as error:
        raise CheckFailed(f"{archive}: not an archive of an image: {error}", fix="build it again") from error
    if labels.get("qnn-ci.image") != name:
        raise CheckFailed(f"{archive} is the image {labels.get('qnn-ci.image')!r}", fix="build it again")
    vendors = [file for file in names if VENDORS.search(file)]
    if vendors or labels.get("qnn-ci.not-to-be-published"):
        raise CheckFailed(
            f"{archive} has {', '.join(vendors[:3]) or 'an SDK'}, and its vendor lets nobody publish that",
            fix="build it of an image in images.toml that has no profile",
        )


def _member(image: tarfile.TarFile, name: str) -> IO[bytes]:
    file = image.extractfile(name)
    if file is None:
        raise ValueError(f"{name} is no file")
    return file


def _files(layer: IO[bytes]) -> list[str]:
    with tarfile.open(fileobj=layer) as files:
        return files.getnames()


def _skopeo(*arguments: str, token: str | None = None) -> None:
    done = subprocess.run(["skopeo", *arguments], input=token, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UpstreamError(f"skopeo {arguments[0]}: {done.stderr.strip()}", fix="run the job again")
