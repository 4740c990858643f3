"""Whether a QNN runtime can load what is inside, in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ci.suites.programs.compiled_onnx import CompiledModel
from ci.suites.programs.program import Context, Program
from provisioning.base.errors import CheckFailed, UsageError

Inside: TypeAlias = Program | Context | CompiledModel


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether the runtime can load it, and why in words."""

    loads: bool
    says: tuple[str, ...]


def contexts_of(found: Inside) -> list[Context]:
    if isinstance(found, Program):
        return [delegate.context for delegate in found.delegates if delegate.context]
    return [found] if isinstance(found, Context) else found.contexts


def against(found: Inside, sdk: Path) -> Answer:
    """Compare with the build of the SDK's libQnnHtp and with the Hexagon archs that it has."""
    contexts = contexts_of(found)
    if not contexts:
        return Answer(True, ("it has nothing for QNN, so any runtime will do",))
    builds, arches = sdk_builds(sdk), sdk_arches(sdk)
    bad: list[str] = []
    good: list[str] = []
    for build in sorted({build for context in contexts for build in context.build_ids}):
        if build in builds:
            good.append(f"both are QNN {build}")
        elif not any(version(build) <= version(other) for other in builds):
            bad.append(
                f"it was compiled by QNN {build} and this is the older {', '.join(builds)}: QNN refuses a "
                "newer context binary with error 5000 (Unknown QNN BinaryInfo version); compile it with this "
                "SDK, or ship the other one's libraries"
            )
        else:
            good.append(
                f"it was compiled by QNN {build} and this is the newer {', '.join(builds)}: QNN reads older "
                "context binaries; measure it, for it is no promise"
            )
    for arch in sorted({arch for context in contexts for arch in context.arches}):
        if arches and arch not in arches:
            names = ", ".join(f"v{each}" for each in arches)
            bad.append(f"it is for HTP v{arch}, and this has {names} alone: the skel would not be found")
        elif arches:
            good.append(f"it has HTP v{arch}")
    if not any(context.build_ids for context in contexts):
        bad.append("it names no QNN build, so nothing says that it was compiled")
    return Answer(not bad, tuple(bad or good))


def sdk_builds(sdk: Path) -> tuple[str, ...]:
    from provisioning.build_id import build_ids

    if not sdk.is_dir():
        raise UsageError(
            f"--against {sdk}: expected the folder of an SDK, found none", remedy="--against $QNN_SDK_ROOT"
        )
    libraries = [*sorted(sdk.glob("lib/*/libQnnHtp.so")), *sdk.glob("libQnnHtp.so")]
    builds = sorted({build for library in libraries for build in build_ids(library)})
    if not builds:
        raise CheckFailed(
            f"{sdk}: expected lib/*/libQnnHtp.so with a build id, found none",
            remedy="--against $QNN_SDK_ROOT",
        )
    return tuple(builds)


def sdk_arches(sdk: Path) -> tuple[int, ...]:
    """The Hexagon archs that it has libraries for; none where it was made without them."""
    names = [path.name for path in (*sdk.glob("lib/hexagon-v*"), *sdk.glob("libQnnHtpV*Skel.so"))]
    found = (re.fullmatch(r"hexagon-v(\d+)|libQnnHtpV(\d+)Skel\.so", name) for name in names)
    return tuple(sorted({int(match[1] or match[2]) for match in found if match}))


def version(build: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", build)[:3])
