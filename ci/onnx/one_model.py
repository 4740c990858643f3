"""`compile` and `quantize` of one .onnx: remembered, and written to the user's folder."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.engine.memo import Entry, Memo, native_variables, roots_of
from ci.engine.output import writing_into
from ci.onnx import into_suite
from ci.onnx.asking import (
    Steps,
    count,
    dimensions_of,
    logs_folder,
    precision_of,
    require_file,
    say,
    search_path,
    step,
    steps,
)
from ci.onnx.compile import Refused, require_installed
from ci.onnx.graph import RECIPROCAL, RECIPROCAL_REMEDY
from ci.onnx.options import Settings, files_of, parse_assignments, settings_of
from ci.onnx.profile import slowest
from ci.suites.findings import not_in_fp16
from ci.suites.into_suite import require_place
from ci.suites.precision import precision_named
from ci.suites.user_model import user_model
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed, UsageError
from provisioning.base.files import hash_file, replace_text
from provisioning.base.settings import Selection, selection_of
from provisioning.manifest import soc_named


@dataclass(frozen=True, slots=True)
class Request:
    """What the user asked for."""

    args: argparse.Namespace
    selection: Selection
    model: Path
    precision: str
    dimensions: Mapping[str, int]

    @classmethod
    def of(cls, args: argparse.Namespace) -> Request:
        selection = selection_of(args)
        for chip in selection.socs:
            soc_named(chip)
        named = user_model(args.model, search_path())
        assert named.file is not None
        return cls(
            args,
            selection,
            named.file,
            precision_of(named.file, args.precision),
            dimensions_of(args.dimension),
        )

    @property
    def common(self) -> dict[str, Any]:
        """Parameters of every step."""
        return {
            "precision": self.precision,
            "calibrate": self.args.calibrate or "",
            "search_path": str(search_path()),
        }

    def key(self, memo: Memo, **more: Any) -> dict[str, Any]:
        """The inputs that are known before any work; the files that it touches are discovered by the work."""
        name = memo.roots.name
        search = [str(search_path()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {
            "model": name(str(self.model)),
            "precision": self.precision,
            "samples": self.args.calibrate or "",
            "dimensions": dict(self.dimensions),
            "per channel": self.args.per_channel,
            "python": f"{platform.python_implementation()} {platform.python_version()} {platform.machine()}",
            "variables": native_variables(os.environ),
            "search path": [name(os.path.abspath(each)) for each in search],  # noqa: PTH100
            **more,
        }

    def quantized(
        self, step_of: Steps, logs: Path, into: Path, looked: Mapping[str, Any], name: str = ""
    ) -> Any:
        with step(f"quantizing to {self.precision} by {looked['samples']} samples"):
            return step_of(
                "quantize",
                logs / "compile.log",
                model=looked["model"],
                per_channel=self.args.per_channel,
                name=name or "model_qdq",
                compare=bool(name),
                into=str(into),
                **self.common,
            )

    def looked(self, step_of: Steps, logs: Path, into: Path) -> dict[str, Any]:
        with step(f"checking {self.args.model}"):
            looked = step_of(
                "look",
                logs / "compile.log",
                model=str(self.model),
                dimensions=dict(self.dimensions),
                into=str(into),
                **self.common,
            )
        for constant in looked["constant"]:
            say(f"warning: {constant} has one value throughout the samples, which gives no range for it")
        return looked


@contextmanager
def memory(
    args: argparse.Namespace, model: Path, store: Path, kind: str, *, reuse: bool = True
) -> Iterator[Memo]:
    memo = Memo(store, kind, roots_of(model, store), reuse=reuse and not args.no_cache)
    try:
        yield memo
    finally:
        memo.close()


def remembered(
    args: argparse.Namespace,
    memo: Memo,
    subject: str,
    key: Mapping[str, Any],
    work: Callable[[Steps, Path, Path], dict[str, Any]],
    own: Path,
) -> tuple[Mapping[str, Any], Path]:
    """The facts and the folder of a result, remembered or of `work` done now."""
    found = memo.find(subject, key)
    if isinstance(found, Entry):
        assert found.folder is not None
        say(f"{subject} is cached")
        return found.result, found.folder
    if args.why:
        say(f"{subject}: {found.why}")
    folder = memo.scratch()
    with logs_folder() as logs, steps(logs, args.timeout, forks=True) as step_of:
        try:
            facts = work(step_of, logs, folder)
        except Refused:
            memo.forget(key)
            raise
        done = memo.remember(subject, key, facts, step_of.touched, folder, step_of.common, (own, logs))
    if done.not_remembered:
        say(f"{subject} is not remembered: {done.not_remembered}")
    assert done.folder is not None
    return done.result, done.folder


def compile_model(args: argparse.Namespace) -> int:
    request = Request.of(args)
    settings = {
        chip: settings_of(parse_assignments(args.option), soc=soc_named(chip), embed=args.embed)
        for chip in (*request.selection.socs, *args.and_soc)
    }
    _require_fitting(request)
    suite = args.suite and args.suite.absolute()
    if suite:
        require_place(suite)
        into_suite.require_run(args)
    require_installed()
    require_file(request.model)
    several = len(request.selection.socs) > 1
    with (
        writing_into(args.output.absolute(), request.selection.store) as (scratch, publish),
        memory(
            args, request.model, request.selection.store, "onnx-compile", reuse=not _writes_more(args)
        ) as memo,
    ):
        compiled = [
            Compiled.of(request, memo, chip, settings[chip], scratch, several=several)
            for chip in request.selection.socs
        ]
        new = [Path(shutil.copy(path, scratch)) for each in compiled for path in each.files]
        written = publish(new)
        for each in compiled:
            each.say([path for path in written if path.name in {file.name for file in each.files}])
    if suite:
        model = request.model, request.precision, request.dimensions
        into_suite.extend(suite, *model, args, request.selection)
    return 0


def _require_fitting(request: Request) -> None:
    args = request.args
    for chip in args.and_soc:
        soc_named(chip)
    if args.and_soc and len(request.selection.socs) > 1:
        raise UsageError("--and-soc with several --soc", remedy="one --soc, and --and-soc for others")
    if args.verify == "none" and (args.and_soc or args.profile_run):
        flag = "--and-soc" if args.and_soc else "--profile-run"
        raise UsageError(f"{flag} runs the model, and --verify none does not", remedy="leave out one of them")


def _writes_more(args: argparse.Namespace) -> bool:
    """Whether an option makes the provider write files beside the context, which nothing remembers."""
    return any("dump" in name or name.endswith("_dir") for name in parse_assignments(args.option))


@dataclass(frozen=True, slots=True)
class Compiled:
    """One chip's context, compiled now or earlier."""

    request: Request
    chips: tuple[str, ...]
    name: str
    facts: Mapping[str, Any]
    files: tuple[Path, ...]

    @classmethod
    def of(
        cls, request: Request, memo: Memo, chip: str, settings: Settings, scratch: Path, *, several: bool
    ) -> Compiled:
        args = request.args
        name = f"{request.model.stem}{f'-{chip}' if several else ''}_ctx"
        chips = tuple(dict.fromkeys([chip, *args.and_soc]))
        options = parse_assignments(args.option)
        key = request.key(
            memo,
            name=name,
            chips=list(chips),
            options=dict(options),
            embed=args.embed,
            profiled=args.profile_run,
            verify=args.verify,
            **{
                "files of options": [memo.roots.name(str(path.absolute())) for path in files_of(options)],
                # Relative paths in options begin there.
                "working directory": memo.roots.name(str(search_path())),
            },
        )

        def work(step_of: Steps, logs: Path, folder: Path) -> dict[str, Any]:
            return _compile(request, step_of, logs, folder, scratch, chips, settings, name)

        facts, folder = remembered(args, memo, f"{request.args.model} for {chip}", key, work, scratch)
        return cls(request, chips, name, facts, tuple(sorted(folder.iterdir())))

    def say(self, written: list[Path]) -> None:
        args, facts = self.request.args, self.facts
        for path in written:
            print(f"{path.stat().st_size:>12,}  {args.output / path.name}")
        if figures := facts["for each"]:
            print(
                f"one flexible context for {', '.join(self.chips)}, which only a device runs; compiled for"
                " each alone:"
            )
            print("".join(f"  {chip} {figure:.1f} dB SQNR\n" for chip, figure in figures.items()), end="")
        looked, reply = facts["looked"], facts["reply"]
        near = reply["near"]
        whose = f"{count(looked['compared'], 'sample')} held back" if looked["compared"] else "made-up inputs"
        result = f"{near['sqnr_db']:.1f} dB SQNR against float on {whose}" if near else "not run"
        if near:
            result = f"reload is bit-equal; {result}"
        nodes, build = count(reply["audit"]["nodes"], "node"), reply["record"]["build_id"]
        precision = self.request.precision
        print(f"{self.chips[0]} {precision}, QNN {build}: {nodes} on HTP, none on the CPU; {result}")
        if precision == "fp16" and reply["half_floats"] is False:
            say(f"warning: {not_in_fp16(self.chips[0])}")
        for node in reply["reciprocals"]:
            say(f"warning: {node}: {RECIPROCAL}; {RECIPROCAL_REMEDY}")
        if ddr := reply["ddr"]:
            print(f"  {ddr['read']:,} bytes read from DDR in a run, {ddr['written']:,} written")
        profiles = [path for path in written if path.name == f"{self.name}_profile.csv"]
        for path in profiles:
            for cost in slowest(path):
                print(f"  {cost}")


def _compile(
    request: Request,
    step_of: Steps,
    logs: Path,
    folder: Path,
    scratch: Path,
    chips: tuple[str, ...],
    settings: Settings,
    name: str,
) -> dict[str, Any]:
    """Put the context and what belongs to it into the folder."""
    args, log = request.args, logs / "compile.log"
    looked = request.looked(step_of, logs, scratch)
    ready = looked["model"]
    if precision_named(request.precision).quantized:
        ready = request.quantized(step_of, logs, scratch, looked)["model"]
    what: dict[str, Any] = {
        "model": ready,
        "source": looked["model"],
        "settings": settings.as_dict(),
        "path": str(folder / f"{name}.onnx"),
        "embed": args.embed,
        "verify": args.verify == "emulator",
        "into": str(scratch),
        **request.common,
    }
    with step(f"compiling for {chips[0]}, running and reloading it"):
        profile = str(folder / f"{name}_profile.csv") if args.profile_run else ""
        reply = step_of("compile", log, soc=chips[0], profile=profile, **what)
    if not reply["reload_equal"]:
        raise CheckFailed(
            f"{args.model}: the reloaded context gives other outputs than the session that compiled it",
            remedy=f"{session('diagnose', log)}, then report it to the maker of the provider",
        )
    figures: dict[str, float] = {}
    if len(chips) > 1:
        for path in [each for each in folder.iterdir() if each.suffix != ".csv"]:
            path.unlink()
        with step(f"compiling for each of {', '.join(chips)}, and for all into one file"):
            figures = step_of("flexible", log, chips=list(chips), scratch=str(scratch), **what)["sqnr_db"]
    return {"looked": looked, "reply": reply, "for each": figures}


def quantize_model(args: argparse.Namespace) -> int:
    request = Request.of(args)
    if not precision_named(request.precision).quantized:
        raise UsageError(f"{request.precision} quantizes nothing", remedy="--precision u16u8, u8u8 …")
    require_installed()
    require_file(request.model)
    name = f"{request.model.stem}-{request.precision}"
    with (
        writing_into(args.output.absolute(), request.selection.store) as (scratch, publish),
        memory(args, request.model, request.selection.store, "onnx-quantize") as memo,
    ):

        def work(step_of: Steps, logs: Path, folder: Path) -> dict[str, Any]:
            looked = request.looked(step_of, logs, scratch)
            reply = request.quantized(step_of, logs, scratch, looked, name)
            for path in scratch.glob(f"{name}*"):
                shutil.move(path, folder / path.name)
            return {"looked": looked, "near": reply["near"], "packages": reply["packages"]}

        facts, folder = remembered(
            args, memo, f"{args.model} in {request.precision}", request.key(memo), work, scratch
        )
        new = [Path(shutil.copy(path, scratch)) for path in sorted(folder.iterdir())]
        record = scratch / f"{name}.json"
        replace_text(record, _record(request, new, facts))
        for path in publish([*new, record]):
            print(f"{path.stat().st_size:>12,}  {args.output / path.name}")
    compared = facts["looked"]["compared"]
    whose = f"{count(compared, 'sample')} held back" if compared else "made-up inputs"
    print(
        f"{request.precision}: {facts['near']['sqnr_db']:.1f} dB SQNR against float on {whose}, both by ONNX"
        " Runtime on the CPU"
    )
    return 0


def _record(request: Request, files: list[Path], facts: Mapping[str, Any]) -> str:
    document = {
        "schema": 1,
        "model": request.model.name,
        "files": {path.name: hash_file(path) for path in files},
        "precision": request.precision,
        "stack": facts["packages"],
        "inputs": facts["looked"]["inputs"],
        "accuracy": facts["near"],
    }
    return json.dumps(document, indent=2) + "\n"
