"""The everyday commands. One worker process does the work. Files appear in the output all at once."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock, Timeout

from ci.engine.workers.parent import Gone, Worker
from ci.onnx.compile import Refused, ended, ordered, require_installed, setup_of
from ci.onnx.context import read_context, record_path
from ci.onnx.graph import load_graph, source_digest
from ci.onnx.options import described, parse_assignments, settings_of
from ci.onnx.profile import costs, slowest, with_lines
from ci.onnx.samples import read_inputs
from ci.suites.findings import not_in_fp16
from ci.suites.precision import PRECISIONS, precision_named
from ci.suites.profile import PROCESSES, as_text, document, merged, read_document
from ci.suites.profile_page import page_of
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, ToolkitError, UsageError
from provisioning.base.files import write_named
from provisioning.base.settings import store_path
from provisioning.manifest import load_socs, soc_named

SCRATCH = ".qnn-ci-new-"


def compile_model(args: argparse.Namespace) -> int:
    soc = soc_named(args.soc)
    for chip in args.and_soc:
        soc_named(chip)
    settings = settings_of(parse_assignments(args.option), soc=soc, embed=args.embed)
    dimensions = _dimensions(args.dimension)
    precision = _precision(args)
    require_installed()
    _require_file(args.model)
    output = args.output.absolute()
    with _logs() as logs, _output(output) as (scratch, publish), _worker(logs, args.timeout) as worker:
        log = logs / "compile.log"
        name = f"{args.model.stem}_ctx"
        common: dict[str, Any] = {
            "precision": precision,
            "calibrate": args.calibrate or "",
            "search_path": str(Path.cwd()),
            "into": str(scratch),
        }
        with _step(f"checking {args.model}"):
            model = str(args.model.absolute())
            looked = worker("look", log, model=model, dimensions=dimensions, **common)
        for constant in looked["constant"]:
            _say(f"warning: {constant} has one value throughout the samples, which gives no range for it")
        ready = looked["model"]
        if precision_named(precision).quantized:
            with _step(f"quantizing to {precision} by {looked['samples']} samples"):
                ready = worker(
                    "quantize", log, model=looked["model"], per_channel=args.per_channel, **common
                )["model"]
        compiled = scratch / "compiled"
        compiled.mkdir()
        with _step(f"compiling for {args.soc}, running and reloading it"):
            reply = worker(
                "compile",
                log,
                model=ready,
                source=looked["model"],
                soc=args.soc,
                settings=settings.as_dict(),
                path=str(compiled / f"{name}.onnx"),
                embed=args.embed,
                profile=str(compiled / f"{name}_profile.csv") if args.profile_run else "",
                **common,
            )
        if not reply["reload_equal"]:
            raise CheckFailed(
                f"{args.model}: the reloaded context gives other outputs than the session that compiled it",
                remedy=f"{session('diagnose', log)}, then report it to the maker of the provider",
            )
        chips = list(dict.fromkeys([args.soc, *args.and_soc]))
        if len(chips) > 1:
            for path in [each for each in compiled.iterdir() if each.suffix != ".csv"]:
                path.unlink()
            with _step(f"compiling for each of {', '.join(chips)}, and for all into one file"):
                figures = worker(
                    "flexible",
                    log,
                    model=ready,
                    source=looked["model"],
                    chips=chips,
                    settings=settings.as_dict(),
                    path=str(compiled / f"{name}.onnx"),
                    scratch=str(scratch),
                    embed=args.embed,
                    **common,
                )["sqnr_db"]
        written = publish(compiled)
    for path in written:
        print(f"{path.stat().st_size:>12,}  {args.output / path.name}")
    if len(chips) > 1:
        print(
            f"one flexible context for {', '.join(chips)}, which only a device runs; compiled for each alone:"
        )
        print("".join(f"  {chip} {figure:.1f} dB SQNR\n" for chip, figure in figures.items()), end="")
    near = reply["near"]
    whose = f"{_count(looked['compared'], 'sample')} held back" if looked["compared"] else "made-up inputs"
    nodes, build = _count(reply["audit"]["nodes"], "node"), reply["record"]["build_id"]
    print(
        f"{args.soc} {precision}, QNN {build}: {nodes} on HTP, none on the CPU; reload is bit-equal;"
        f" {near['sqnr_db']:.1f} dB SQNR against float on {whose}"
    )
    if precision == "fp16" and reply["half_floats"] is False:
        _say(f"warning: {not_in_fp16(args.soc)}")
    if ddr := reply["ddr"]:
        print(f"  {ddr['read']:,} bytes read from DDR in a run, {ddr['written']:,} written")
    for cost in slowest(output / f"{name}_profile.csv") if args.profile_run else []:
        print(f"  {cost}")
    return 0


def run_model(args: argparse.Namespace) -> int:
    for flag, path in (("--output", args.output), ("--profile-run", args.profile_run)):
        if path and (path.is_dir() or not path.parent.is_dir()):
            found = "it is a directory" if path.is_dir() else "its directory is not there"
            raise UsageError(f"{flag} {path}: {found}", remedy="name a file in a directory that is there")
    _, outputs = _run(args, args.profile_run)
    for name, array in outputs.items():
        shown = ", ".join(f"{value:.5g}" for value in array.ravel()[:4])
        shape = ", ".join(map(str, array.shape))
        print(f"{name}: {array.dtype}[{shape}]  {shown}{', …' if array.size > 4 else ''}")
    if args.output:
        from ci.onnx.arrays import save_one

        part = args.output.with_name(f".{args.output.name}.{os.getpid()}.npz")
        try:
            save_one(part, outputs)
            part.replace(args.output)
        finally:
            part.unlink(missing_ok=True)
    for cost in slowest(args.profile_run) if args.profile_run else []:
        print(f"  {cost}")
    return 0


def profile_model(args: argparse.Namespace) -> int:
    earlier = read_document(args.against) if args.against else {}
    if args.source:
        _require_file(args.source)
    profiles = []
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        for number in range(PROCESSES):
            events = Path(temporary) / f"{number}.csv"
            soc_name, _ = _run(args, events)
            profiles.append(costs(events))
    found = merged(profiles)
    if not found:
        raise CheckFailed(
            f"{args.model}: the provider profiled no operator",
            remedy="leave profiling options out; a model without operators has none",
        )
    if args.source:
        record = read_context(args.model).record
        if record and record.source != source_digest(args.source):
            _say(
                f"warning: {args.source} is not the file that {args.model} was compiled from, or --dimension"
                " changed it; lines are looked up by the names of nodes"
            )
        found = with_lines(found, load_graph(args.source))
    if args.json:
        write_named(args.json, document(found, {"model": str(args.model), "soc": soc_name}))
    if args.page:
        write_named(args.page, page_of(str(args.model), found))
    print("\n".join(as_text(found, earlier if args.against else None, args.against)))
    return 0


def _run(args: argparse.Namespace, profile: Path | None) -> tuple[str, Mapping[str, Any]]:
    """The chip's name and the outputs of a run of a compiled model, which may be profiled."""
    require_installed()
    _require_file(args.model)
    context = read_context(args.model)
    soc_name = args.soc or _soc_of(context.soc_id, args.model)
    soc = soc_named(soc_name)
    settings = settings_of(parse_assignments(args.option), soc=soc, embed=not context.beside)
    inputs = read_inputs(args.input, context.signature)
    if context.record is None:
        _say(f"{record_path(args.model)} is not there, so that a changed byte cannot be told")
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        scratch = Path(temporary)
        from ci.onnx.arrays import save, saved

        save(scratch / "inputs.npz", [inputs])
        with (
            _logs() as logs,
            _worker(logs, args.timeout) as worker,
            _step(f"running {args.model} on {soc_name}"),
        ):
            worker(
                "run",
                logs / "run.log",
                model=str(args.model.absolute()),
                inputs=str(scratch / "inputs.npz"),
                outputs=str(scratch / "outputs.npz"),
                soc=soc_name,
                settings=settings.as_dict(),
                profile=str(profile.absolute()) if profile else "",
                as_it_is=getattr(args, "as_it_is", False),
            )
        outputs = saved(scratch / "outputs.npz")[0]
    return soc_name, outputs


def audit_model(args: argparse.Namespace) -> int:
    """Returns 1 if a node would stay on the CPU."""
    soc = soc_named(args.soc)
    settings = settings_of(parse_assignments(args.option), soc=soc, embed=False)
    dimensions = _dimensions(args.dimension)
    precision = precision_named(_precision(args))
    if precision.quantized:
        raise UsageError(
            f"--precision {precision.name}: audit looks at the model as it is",
            remedy="leave --precision out: operators are the same, and compile names what types keep out",
        )
    require_installed()
    _require_file(args.model)
    with tempfile.TemporaryDirectory(prefix="qnn-ci-onnx-") as temporary:
        scratch = Path(temporary)
        with _logs() as logs, _worker(logs, args.timeout) as worker:
            problems: list[dict[str, Any]] = []
            model = str(args.model.absolute())
            common = {"precision": precision.name, "into": str(scratch)}
            try:
                looked = worker(
                    "look", logs / "look.log", model=model, dimensions=dimensions, calibrate="", **common
                )
                model = looked["model"]
            except Refused as refused:
                problems = list(refused.details.get("problems", []))
                if not problems:
                    raise
            audit = {"nodes": 0, "unsupported": [], "graphs": 0}
            if not any(problem["rule"] == "onnx-dynamic-shape" for problem in problems):
                audit = worker(
                    "audit",
                    logs / "audit.log",
                    model=model,
                    soc=args.soc,
                    settings=settings.as_dict(),
                    **common,
                )
    found = {"model": str(args.model), "soc": args.soc, "problems": problems, **_audit_facts(audit)}
    if args.json:
        print(json.dumps({"schema": 1, **found}, indent=2))
    else:
        print(_audit_text(args, problems, audit))
    return 1 if problems or audit["unsupported"] else 0


def list_options(args: argparse.Namespace) -> int:
    print(described())
    print("precisions")
    for precision in PRECISIONS.values():
        print(f"  {precision.name}  {precision.summary}")
    return 0


def _audit_facts(audit: dict[str, Any]) -> dict[str, Any]:
    return {name: audit[name] for name in ("nodes", "unsupported", "graphs")}


def _audit_text(args: argparse.Namespace, problems: list[dict[str, Any]], audit: dict[str, Any]) -> str:
    lines = [f"{args.model} on {args.soc}"]
    for problem in problems:
        lines += [f"  {problem['subject']}: {problem['message']}", f"    fix: {problem['remedy']}"]
    for node in audit["unsupported"]:
        lines.append(f"  {node['node']} ({node['operator']}) stays on the CPU: {node['reason']}")
    if audit["nodes"]:
        taken = audit["nodes"] - len(audit["unsupported"])
        nodes, graphs = _count(audit["nodes"], "node"), _count(audit["graphs"], "graph")
        lines.append(f"  {taken} of {nodes} on HTP, in {graphs}")
    else:
        lines.append("  the provider was not asked, because it takes only models of fixed shapes")
    return "\n".join(lines)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _precision(args: argparse.Namespace) -> str:
    if args.precision:
        return precision_named(args.precision).name
    require_installed()
    _require_file(args.model)
    operators = {node.op_type for node in load_graph(args.model).graph.node}
    return "qdq" if "QuantizeLinear" in operators else "fp16"


def _dimensions(assignments: list[str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for assignment in assignments:
        match = re.fullmatch(r"([^=]+)=([1-9]\d*)", assignment)
        if not match:
            raise UsageError(
                f"--dimension {assignment}: expected NAME=N with N from 1 on", remedy="--dimension batch=1"
            )
        name, size = match[1], int(match[2])
        if sizes.setdefault(name, size) != size:
            raise UsageError(f"--dimension {name} is both {sizes[name]} and {size}", remedy="give it once")
    return sizes


def _soc_of(soc_id: int, model: Path) -> str:
    for name, soc in load_socs().items():
        if soc.id == soc_id:
            return name
    raise CheckFailed(
        f"{model} says that it is for chip {soc_id}, which manifests/socs.toml does not have",
        remedy="say which chip with --soc",
    )


def _require_file(path: Path) -> None:
    if not path.is_file():
        found = "it is a directory" if path.is_dir() else "there is no such file"
        raise UsageError(f"{path}: {found}", remedy="name an .onnx that is there")


@contextmanager
def _output(folder: Path) -> Iterator[tuple[Path, Any]]:
    """A scratch folder below `folder`, and a function that moves the compiled files into `folder`.

    Only one process at a time, because two compiles into one folder would mix. Nothing else is left behind.
    """
    with _mutex(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Left by a killed compile.
            for left in folder.glob(f"{SCRATCH}*"):
                shutil.rmtree(left)
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
        except OSError as error:
            raise UsageError(
                f"{folder} cannot be written: {error.strerror or error}",
                remedy="name a directory that you may write",
            ) from error
        try:
            yield scratch, lambda compiled: _publish(compiled, folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()


@contextmanager
def _mutex(folder: Path) -> Iterator[None]:
    """Held by one compile into the folder. Its file lies elsewhere, so that the folder contains only
    models."""
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
    path = store_path() / "locks" / f"onnx-{name}"
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout as error:
        raise UsageError(
            f"{folder}: another compile is writing there", remedy="wait for it, or choose another -o"
        ) from error


def _publish(compiled: Path, folder: Path) -> list[Path]:
    """Move each file in one step, the record last: without it, the others do not count as a model."""
    files = sorted(
        compiled.iterdir(), key=lambda path: (path.suffix == ".json", path.suffix == ".onnx", path.name)
    )
    for path in files:
        path.replace(folder / path.name)
    return [folder / path.name for path in files]


@contextmanager
def _logs() -> Iterator[Path]:
    """A folder for logs. It is kept only if an error message names it."""
    folder = Path(tempfile.mkdtemp(prefix="qnn-ci-onnx-"))
    kept = False
    try:
        yield folder
    except ToolkitError as error:
        kept = str(folder) in f"{error.message} {error.remedy}"
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


class Ask(Protocol):
    def __call__(self, what: str, log: Path, **parameters: Any) -> dict[str, Any]: ...


@contextmanager
def _worker(logs: Path, timeout: float) -> Iterator[Ask]:
    """Asks a worker for a step; raises CheckFailed if the worker ended."""
    worker = Worker(setup_of(logs, timeout=timeout))

    def ask(what: str, log: Path, **parameters: Any) -> dict[str, Any]:
        try:
            return ordered(worker, what, log, **parameters)
        except Gone as gone:
            raise ended(gone, what, log) from gone

    try:
        yield ask
    finally:
        worker.end()


@contextmanager
def _step(what: str) -> Iterator[None]:
    _say(f"{what} …")
    began = time.monotonic()
    yield
    _say(f"{what}: {time.monotonic() - began:.1f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
