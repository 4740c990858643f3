"""A plan of a build, without compilers: for what is decided before anything runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ci.builds.source_plan import LocatedSdk, SourcePlan
from ci.builds.toolchain import BuildTool, Toolchain
from ci.builds.tree import SourceTree, load_recipe

COMMIT = "5f3a41dc8b129b6df0d02cf401986b3df96b9073"


def make_plan(root: Path, target: str = "aarch64-linux", **changes: Any) -> SourcePlan:
    plan = SourcePlan(
        target=target,
        recipe=load_recipe(target),
        tree=SourceTree(root / "src" / "executorch", "1.5.1", COMMIT, time=1767323045),
        names={},
        sdk=LocatedSdk(root / "sdk", "v2.37.0.250724175447_124859"),
        toolchain=Toolchain(
            "vendor g++ 12.2.0", {"CMAKE_CXX_COMPILER": "/opt/vendor/g++"}, values={"ndk": "/opt/ndk"}
        ),
        cmake=BuildTool(Path("/opt/bin/cmake"), "cmake version 4.0.0"),
        ninja=BuildTool(Path("/opt/bin/ninja"), "1.12.1"),
        python=Path("/opt/bin/python3"),
        python_identity="cpython-311 3.11.7 at /opt/bin/python3",
        build_type="RelWithDebInfo",
        launcher=None,
        extra=(),
        jobs=2,
        root=root / "work",
        dist=root / "dist",
    )
    return replace(plan, **changes)
