"""`inspect`: what is inside a program or a context binary, and whether a QNN runtime can load it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from ci.lowering.onnx_context import CompiledModel, read_model
from ci.lowering.program import Context, Delegate, Options, Program, TensorInfo, read
from provisioning.errors import CheckFailed, UsageError

EXAMPLES = """\
  python -m ci inspect model.pte
  python -m ci inspect model.pte --against $QNN_SDK_ROOT
  python -m ci inspect context.bin --json
  python -m ci inspect model_ctx.onnx --against $QNN_SDK_ROOT
"""

Inside: TypeAlias = Program | Context | CompiledModel
KINDS = {Program: "program", Context: "context", CompiledModel: "onnx"}


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether the runtime can load it, and why in words."""

    loads: bool
    says: tuple[str, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        type=Path,
        metavar="FILE",
        help="an ExecuTorch program, a QNN context binary, or a compiled model of ONNX Runtime (.onnx)",
    )
    parser.add_argument(
        "--against", type=Path, metavar="SDK", help="say whether this SDK's libraries can load it; 1 if not"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def run(args: argparse.Namespace) -> int:
    found: Inside = read_model(args.file) if args.file.suffix == ".onnx" else read(args.file)
    answer = against(found, args.against) if args.against else None
    if args.json:
        document = {"schema": 1, "file": str(args.file), "kind": KINDS[type(found)], **asdict(found)}
        if answer:
            document["against"] = {"sdk": str(args.against), **asdict(answer)}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        sys.stdout.write("\n".join(described(args.file, found)) + "\n")
        if answer:
            word = "can load it" if answer.loads else "cannot load it"
            sys.stdout.write(f"\n{args.against} {word}:\n" + "".join(f"  {line}\n" for line in answer.says))
    return 0 if answer is None or answer.loads else 1


def described(path: Path, found: Inside) -> Iterator[str]:
    if isinstance(found, Context):
        yield f"{path}: QNN context binary, {found.size:,} bytes"
        yield from _context(found, "  ")
        return
    if isinstance(found, CompiledModel):
        yield from _compiled(path, found)
        return
    yield f"{path}: ExecuTorch program, {found.size:,} bytes, schema version {found.version}"
    for method in found.methods:
        yield (
            f"method {method.name}: {method.delegate_calls} delegate calls, "
            f"{method.planned_bytes:,} bytes planned"
        )
        yield from _tensors("input", enumerate(method.inputs))
        yield from _tensors("output", enumerate(method.outputs))
        yield from _on_cpu(method.kernels)
    for index, delegate in enumerate(found.delegates):
        yield from _delegate(index, delegate, found)
    for index, segment in enumerate(found.segments):
        place = f"{segment.size:,} bytes at {segment.offset:,}, aligned to {segment.alignment:,}"
        yield f"segment {index}: {place}"


def _compiled(path: Path, model: CompiledModel) -> Iterator[str]:
    yield f"{path}: model compiled by ONNX Runtime, {model.size:,} bytes"
    yield from _tensors("input", model.inputs)
    yield from _tensors("output", model.outputs)
    yield from _on_cpu(model.kernels)
    for index, node in enumerate(model.nodes):
        if node.context is None:
            yield f"context {index}: {node.name}, in the context of another node"
            continue
        place = f"in {node.file} beside it" if node.file else "inside the model"
        yield f"context {index}: {node.name}, {node.context.size:,} bytes, {place}"
        yield from _context(node.context, "  ")


def _tensors(kind: str, named: Iterable[tuple[int | str, TensorInfo | str]]) -> Iterator[str]:
    for name, tensor in named:
        yield f"  {kind} {name}: {tensor}"


def _on_cpu(kernels: Mapping[str, int]) -> Iterator[str]:
    for name, count in kernels.items():
        yield f"  on the CPU: {name} × {count}"


def _processor(options: Options) -> str:
    if options.processor != "htp":
        return options.processor.upper()
    return f"HTP v{options.arch}, {options.vtcm_mb} MB VTCM"


def _delegate(index: int, delegate: Delegate, program: Program) -> Iterator[str]:
    if delegate.segment is None:
        place = "inside the flatbuffer"
    else:
        place = f"segment {delegate.segment} at {delegate.offset:,}"
    yield f"delegate {index}: {delegate.backend} of {delegate.method}, {delegate.size:,} bytes, {place}"
    if options := delegate.options:
        prepared = "on the device (online)" if options.online_prepare else "ahead of time"
        yield (
            f"  compiled for SoC id {options.soc_id}, {_processor(options)}, {options.precision}, "
            f"prepared {prepared}"
        )
    if delegate.context:
        yield from _context(delegate.context, "  ")


def _context(context: Context, indent: str) -> Iterator[str]:
    sizes = [f"{size / (1 << 20):g} MB" for size in context.vtcm_bytes]
    for name, values in (
        ("QNN build", list(context.build_ids)),
        ("SoC", list(context.socs)),
        ("HTP arch", [f"v{arch}" for arch in context.arches]),
        ("VTCM", sizes),
    ):
        yield f"{indent}{name}: {', '.join(values) or 'not named inside'}"


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
