"""Whether an SDK's QNN libraries can load a program, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ci.artifacts.compiled_onnx import CompiledModel
from ci.artifacts.program import CompiledProgram, ContextStrings
from provisioning.base.errors import CheckFailed, UsageError

Inside: TypeAlias = CompiledProgram | ContextStrings | CompiledModel


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    loads: bool
    says: tuple[str, ...]
    """The reasons, as text."""


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """A part of a file that QNN must load."""

    name: str
    context: ContextStrings
    arches: tuple[int, ...]
    needs_arch: bool = True
    online: bool = False


def compare_with_sdk(contents: Inside, sdk: Path) -> LoadVerdict:
    """Compare every part with the builds of the SDK's libQnnHtp and with the Hexagon archs that it has."""
    parts = list(parts_of(contents))
    if not parts:
        return LoadVerdict(True, ("it has nothing for QNN, so any runtime will do",))
    return judge(parts, sdk_builds(sdk), sdk_arches(sdk))


def judge(parts: Sequence[LoadedPart], builds: Sequence[str], arches: Sequence[int]) -> LoadVerdict:
    """Whether libraries of these builds, and of these archs if they are known, load all parts."""
    reasons: dict[tuple[bool, str], list[str]] = {}
    for part in parts:
        for reason in (*_judge_builds(part, builds), *_judge_arches(part, arches)):
            reasons.setdefault(reason, []).append(part.name)
    loads = all(good for good, _ in reasons)
    return LoadVerdict(
        loads,
        tuple(
            text if len(names) == len(parts) else f"{', '.join(names)}: {text}"
            for (good, text), names in reasons.items()
            if good is loads
        ),
    )


def parts_of(contents: Inside) -> Iterator[LoadedPart]:
    if isinstance(contents, ContextStrings):
        yield LoadedPart("context", contents, contents.arches)
    elif isinstance(contents, CompiledProgram):
        for index, delegate in enumerate(contents.delegates):
            if delegate.context is None:
                continue
            options = delegate.options
            yield LoadedPart(
                f"delegate {index}",
                delegate.context,
                delegate.context.arches or ((options.arch,) if options and options.arch else ()),
                needs_arch=options is None or options.processor == "htp",
                online=options is not None and options.online_prepare,
            )
    else:
        for index, node in enumerate(contents.nodes):
            if node.context:
                yield LoadedPart(f"context {index}", node.context, node.context.arches)


def _judge_builds(part: LoadedPart, builds: Sequence[str]) -> Iterator[tuple[bool, str]]:
    for build in part.context.build_ids:
        if build in builds:
            yield True, f"both are QNN {build}"
        elif not any(version(build) <= version(own) for own in builds):
            yield (
                False,
                f"it was compiled by QNN {build} and this is the older {', '.join(builds)}: QNN refuses a "
                "newer context binary with error 5000 (Unknown QNN BinaryInfo version); compile it with this "
                "SDK, or ship the other one's libraries",
            )
        else:
            yield (
                True,
                f"it was compiled by QNN {build} and this is the newer {', '.join(builds)}: QNN reads older "
                "context binaries, but does not promise to: run it to be sure",
            )
    if not part.context.build_ids:
        why = "it is compiled on the device" if part.online else "it does not say whether it was compiled"
        yield False, f"it names no QNN build ({why}), so this cannot be judged: run it to be sure"


def _judge_arches(part: LoadedPart, arches: Sequence[int]) -> Iterator[tuple[bool, str]]:
    if not arches or not part.needs_arch:
        return
    names = ", ".join(f"v{arch}" for arch in arches)
    for arch in part.arches:
        if arch in arches:
            yield True, f"it has HTP v{arch}"
        else:
            yield False, f"it is for HTP v{arch}, but this has only {names}: the skel would be missing"
    if not part.arches:
        yield False, f"it names no HTP arch, so this cannot be decided; this has {names}"


def sdk_builds(sdk: Path) -> tuple[str, ...]:
    from provisioning.build_ids import build_ids

    if not sdk.is_dir():
        raise UsageError(
            f"--against {sdk}: expected the folder of an SDK, found none", fix="--against $QNN_SDK_ROOT"
        )
    libraries = [*sorted(sdk.glob("lib/*/libQnnHtp.so")), *sdk.glob("libQnnHtp.so")]
    builds = sorted({build for library in libraries for build in build_ids(library)})
    if not builds:
        raise CheckFailed(
            f"{sdk}: expected lib/*/libQnnHtp.so with a build id, found none",
            fix="--against $QNN_SDK_ROOT",
        )
    return tuple(builds)


def sdk_arches(sdk: Path) -> tuple[int, ...]:
    """The Hexagon archs that the SDK has libraries for; none if it was provisioned without them."""
    names = [path.name for path in (*sdk.glob("lib/hexagon-v*"), *sdk.glob("libQnnHtpV*Skel.so"))]
    matches = (re.fullmatch(r"hexagon-v(\d+)|libQnnHtpV(\d+)Skel\.so", name) for name in names)
    return tuple(sorted({int(match[1] or match[2]) for match in matches if match}))


def version(build: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", build)[:3])
