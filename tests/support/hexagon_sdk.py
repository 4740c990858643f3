"""Made-up SDKs to sign with: a Hexagon SDK around the elfsigner stand-in, a QNN SDK with LPAI libraries."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.support import elfsigner_stand_in
from tests.support.skels import Skel

REPOSITORY = Path(__file__).resolve().parents[2]


def hexagon_sdk(root: Path, version: str = "6.5.0.0", **behaviour: object) -> Path:
    sdk = root / "Hexagon_SDK" / version
    tool = sdk / "tools" / "elfsigner"
    tool.mkdir(parents=True)
    (sdk / "tools" / "HEXAGON_Tools").mkdir()
    shutil.copy(elfsigner_stand_in.__file__, tool / "elfsigner.py")
    behave(sdk, **behaviour)
    return sdk


def behave(sdk: Path, **behaviour: object) -> None:
    settings = {"repository": str(REPOSITORY), **behaviour}
    (sdk / "tools" / "elfsigner" / "stand_in.json").write_text(json.dumps(settings), encoding="utf-8")


def runs(sdk: Path) -> list[dict[str, Any]]:
    """What each run of the stand-in was given: argv, environ, cwd."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((sdk / "runs").glob("*.json"))]


def qnn_sdk(root: Path, version: str = "2.48.0.260626", *, lpai: int = 6, arch: int = 81) -> Path:
    sdk = root / "qairt" / version
    unsigned = sdk / "lib" / f"lpai-v{lpai}" / "unsigned"
    for name in ("libQnnLpaiSkel.so", "libQnnLpai.so"):
        Skel(arch=arch, content=name.encode()).write(unsigned / name)
    Skel(arch=arch, content=b"system").write(
        sdk / "lib" / f"hexagon-v{arch}" / "unsigned" / "libQnnSystem.so"
    )
    (sdk / "lib" / "x86_64-linux-clang").mkdir()
    (sdk / "sdk.yaml").write_text(f"name: QAIRT\nversion: {version}\n", encoding="utf-8")
    return sdk
