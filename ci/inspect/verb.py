"""`inspect`: what is inside a program, whether an SDK can load it, and its compiled graphs taken out."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from ci.artifacts.against_sdk import Inside, compare_with_sdk
from ci.artifacts.compiled_onnx import CompiledModel, Dlc, read_dlc, read_model
from ci.artifacts.program import (
    DLC_MARK,
    QNN_BACKEND,
    CompiledProgram,
    ContextStrings,
    Delegate,
    TensorInfo,
    bytes_of,
    context_in,
    first_bytes,
    read,
)
from ci.artifacts.torch_files import refuse_torch_file
from ci.models.not_models import programs_in, refuse_no_program
from provisioning.base import answer
from provisioning.base.commands import leave_out
from provisioning.base.errors import CheckFailed, EnvironmentLacking, UsageError, exit_code_of
from provisioning.base.files import replace_bytes
from provisioning.base.flags import add_valued
from provisioning.base.foreign import escape_line, limit_work
from provisioning.base.selection import add_selection, selection_of

EXAMPLES = """\
  python -m ci inspect model.pte
  python -m ci inspect model.pte --against $QNN_SDK_ROOT
  python -m ci inspect context.bin --json
  python -m ci inspect model_ctx.onnx --against $QNN_SDK_ROOT
  python -m ci inspect model.pte --extract contexts/
  python -m ci inspect libQnnHtpV73Skel.so
  python -m ci inspect app.apk --soc SM8750
"""

KINDS = {CompiledProgram: "program", ContextStrings: "context", CompiledModel: "onnx"}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="an ExecuTorch program, a QNN context binary, a DLC, a compiled model of ONNX Runtime (.onnx), "
        "a library; or packages, for their QNN libraries: an APK, an AAR, a folder "
        "(of split APKs, for Genie)",
    )
    add_valued(
        parser, "--against", "SDK", "exit 1 if this SDK's libraries cannot load the program", type=Path
    )
    add_valued(parser, "--extract", "DIR", "write the program's context binaries or DLCs to DIR", type=Path)
    add_selection(parser)


def run(args: argparse.Namespace) -> int:
    paths = (below for path in args.files for below in (path.rglob("*") if path.is_dir() else (path,)))
    size = sum(path.stat().st_size for path in paths if path.is_file())
    message = f"{args.files[0]}: reading it takes more memory or time than a file of its size may"
    with limit_work(size, CheckFailed(message, fix="compile, build or download it again")):
        return _inspect(args)


def _inspect(args: argparse.Namespace) -> int:
    # Imported late: it loads pydantic, and what reads archives and signatures.
    from ci.inspect import library, package

    file: Path = args.files[0]
    programs = programs_in(file) if file.is_dir() else []
    if programs and not any(file.rglob("*.so")):
        fix = f"name a program in it: {', '.join(str(file / name) for name in programs)}"
        raise UsageError(f"{file}: expected a program or a package, found a folder of programs", fix=fix)
    if all(package.is_package(path) for path in args.files):
        _refuse_flags(file, "package", args.against, args.extract)
        return package.run(args.files, selection_of(args))
    if args.files[1:]:
        raise UsageError(
            f"expected one file, or packages alone, found {len(args.files)}", fix="inspect them one by one"
        )
    head = first_bytes(file)
    if kind := library.kind_of(head):
        _refuse_flags(file, kind, args.against, args.extract)
        return _show(file, kind, library.facts(file, kind))
    refuse_torch_file(file)
    refuse_no_program(file, file)
    if head.startswith(DLC_MARK):
        _refuse_flags(file, "DLC", args.against, args.extract)
        return _show(file, "dlc", _dlc(read_dlc(file)))
    contents: Inside = read_model(file) if file.suffix == ".onnx" else read(file)
    loading = compare_with_sdk(contents, args.against) if args.against else None
    files: list[Path] = []
    if args.extract:
        if not isinstance(contents, CompiledProgram):
            raise UsageError(
                f"--extract is for ExecuTorch's programs, and {file} is none",
                fix="leave it out: a context binary is one itself, and lies beside a compiled .onnx",
            )
        files = extract(file, contents, args.extract)
    answer.add(file=str(file), kind=KINDS[type(contents)], **asdict(contents))
    sys.stdout.writelines(f"{escape_line(line)}\n" for line in describe_contents(file, contents))
    sys.stdout.writelines(f"extracted {escape_line(str(path))}\n" for path in files)
    if loading:
        answer.add(against={"sdk": str(args.against), **asdict(loading)})
        word = "can load it" if loading.loads else "cannot load it"
        sys.stdout.write(f"\n{args.against} {word}:\n")
        sys.stdout.writelines(f"  {escape_line(line)}\n" for line in loading.says)
    return exit_code_of(good=loading is None or loading.loads)


def _refuse_flags(path: Path, kind: str, sdk: Path | None, into: Path | None) -> None:
    if sdk or into:
        flag = "--against" if sdk else "--extract"
        raise UsageError(f"{flag} is for programs, and {path} is a {kind}", fix=leave_out(flag))


def _show(path: Path, kind: str, values: Mapping[str, object]) -> int:
    answer.add(file=str(path), kind=kind, **values)
    lines = [f"{path}: {values['what']}"]
    for name, value in values.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        if name != "what":
            lines.append(f"  {name}: {text or 'none'}")
    sys.stdout.writelines(f"{escape_line(line)}\n" for line in lines)
    return 0


def _dlc(contents: Dlc) -> dict[str, object]:
    text = "a QNN graph that is not compiled yet"
    if contents.chips:
        text = f"a flexible context for {', '.join(contents.chips)}"
    return {
        "what": f"DLC, {text}, {contents.size:,} bytes",
        "QNN build": list(contents.builds),
        "members": [f"{name} ({size:,} bytes)" for name, size in contents.members.items()],
    }


def describe_contents(path: Path, contents: Inside) -> Iterator[str]:
    if isinstance(contents, ContextStrings):
        yield f"{path}: QNN context binary, {contents.size:,} bytes"
        yield from _context(contents, "  ")
        return
    if isinstance(contents, CompiledModel):
        yield from _model(path, contents)
        return
    yield f"{path}: ExecuTorch program, {contents.size:,} bytes, schema version {contents.version}"
    for method in contents.methods:
        yield (
            f"method {method.name}: {method.delegate_calls} delegate calls, "
            f"{method.planned_bytes:,} bytes planned"
        )
        yield from _tensors("input", enumerate(method.inputs))
        yield from _tensors("output", enumerate(method.outputs))
        yield from _kernel_lines(method.kernels)
    for index, delegate in enumerate(contents.delegates):
        yield from _delegate(index, delegate)
    for index, segment in enumerate(contents.segments):
        place = f"{segment.size:,} bytes at {segment.offset:,}, aligned to {segment.alignment:,}"
        yield f"segment {index}: {place}"


def _model(path: Path, model: CompiledModel) -> Iterator[str]:
    yield f"{path}: model compiled by ONNX Runtime, {model.size:,} bytes"
    yield from _tensors("input", model.inputs)
    yield from _tensors("output", model.outputs)
    yield from _kernel_lines(model.kernels)
    for index, node in enumerate(model.nodes):
        if node.context is None:
            yield f"context {index}: {node.name}, in the context of another node"
            continue
        place = f"in {node.file} beside it" if node.file else "inside the model"
        yield f"context {index}: {node.name}, {node.context.size:,} bytes, {place}"
        yield from _context(node.context, "  ")


def _tensors(kind: str, tensors: Iterable[tuple[int | str, TensorInfo | str]]) -> Iterator[str]:
    for name, tensor in tensors:
        yield f"  {kind} {name}: {tensor}"


def _kernel_lines(kernels: Mapping[str, int]) -> Iterator[str]:
    for name, count in kernels.items():
        yield f"  on the CPU: {name} × {count}"


def _delegate(index: int, delegate: Delegate) -> Iterator[str]:
    if delegate.segment is None:
        place = "inside the flatbuffer"
    else:
        place = f"segment {delegate.segment} at {delegate.offset:,}"
    yield f"delegate {index}: {delegate.backend} of {delegate.method}, {delegate.size:,} bytes, {place}"
    if options := delegate.options:
        moment = "on the device (online)" if options.online_prepare else "ahead of time"
        htp = f"HTP v{options.arch}, {options.vtcm_mb} MB VTCM"
        processor = htp if options.processor == "htp" else options.processor.upper()
        yield (
            f"  compiled for SoC id {options.soc_id}{_name_soc(options.soc_id)}, {processor}, "
            f"{options.precision}, prepared {moment}"
        )
    if delegate.context:
        yield from _context(delegate.context, "  ")


def _name_soc(number: int) -> str:
    from provisioning.manifest import load_socs

    return next((f" ({name})" for name, soc in load_socs().items() if soc.id == number), "")


def _chip(name: str) -> str:
    """A chip with QNN's and the kernel's number for it, which are easily confused."""
    from provisioning.manifest import load_socs

    soc = load_socs().get(name)
    if soc is None:
        return name
    kernel = " or ".join(map(str, soc.kernel_ids))
    return f"{name} (QNN's {soc.id}" + (f", soc_id {kernel} on the device)" if kernel else ")")


def _context(context: ContextStrings, indent: str) -> Iterator[str]:
    sizes = [f"{size / (1 << 20):g} MB" for size in context.vtcm_bytes]
    for name, values in (
        ("QNN build", list(context.build_ids)),
        ("SoC", [_chip(name) for name in context.socs]),
        ("HTP arch", [f"v{arch}" for arch in context.arches]),
        ("VTCM", sizes),
        ("graphs", list(context.graphs)),
    ):
        yield f"{indent}{name}: {', '.join(values) or 'not named inside'}"


# Compiled graphs taken out of a program


MOST_SHARED = 10
"""Methods may share a context: so many times a program's size is written at most."""


def extract(path: Path, contents: CompiledProgram, into: Path) -> list[Path]:
    """Write each graph into the folder; nothing is written if one of them cannot be read."""
    parts = [*_contexts_of_program(path, contents)]
    if not parts:
        raise CheckFailed(f"{path}: there is nothing compiled for QNN in it", fix="name another file")
    files = []
    try:
        for name, data in parts:
            replace_bytes(into / name, data)
            files.append(into / name)
    except OSError as error:
        for file in files:
            file.unlink(missing_ok=True)
        raise EnvironmentLacking(f"{into}: {error.strerror}", fix="--extract another folder") from error
    return files


def _contexts_of_program(path: Path, program: CompiledProgram) -> Iterator[tuple[str, bytes | memoryview]]:
    data = bytes_of(path)
    size = sum(delegate.size for delegate in program.delegates)
    if size > MOST_SHARED * len(data):
        raise CheckFailed(
            f"{path}: its delegates share their data: {size:,} bytes of a file of {len(data):,}",
            fix="compile it again",
        )
    counts: dict[str, int] = {}
    for delegate in program.delegates:
        if delegate.backend != QNN_BACKEND:
            continue
        index = counts[delegate.method] = counts.get(delegate.method, -1) + 1
        if delegate.segment is None:
            raise CheckFailed(
                f"{path}: delegate {index} of {delegate.method} is inside the flatbuffer, not in a segment",
                fix="write the program with extract_delegate_segments, which is executorch's default",
            )
        if Path(delegate.method).name != delegate.method:
            raise CheckFailed(f"{path}: a method is called {delegate.method!r}, which is no file name")
        suffix, context = context_in(data[delegate.offset : delegate.offset + delegate.size])
        yield f"{path.stem}.{delegate.method}_{index}{suffix}", context
