"""`compile`, `audit` and `run` as functions: each starts the command of its name and reads its answer.

This process imports the standard library alone, and torch where a model is handed over that is no file: it
has torch then. The command runs in qnn-ci's locked environment.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMAND = Path(__file__).with_name("command.py")
EXPORTED = "exported"
"""The folder, in that of a program, of what this process exports."""
Document = Mapping[str, Any]
"""An object of JSON that a command wrote."""


class Failed(Exception):
    """The command failed. `answer` is all that it says."""

    def __init__(self, message: str, fix: str, answer: Document) -> None:
        super().__init__(f"{message}\n  try: {fix}" if fix else message)
        self.message, self.fix, self.answer = message, fix, answer


@dataclass(frozen=True)
class Answer:
    """What a command answered."""

    answer: Document
    """The command's document, as manifests/schema/answer.json describes it."""
    folder: Path
    """The folder of its files. One that we made is kept until this process ends, longer only if the command
    failed."""

    @property
    def python(self) -> str:
        """The interpreter that did the work."""
        return str(self.answer["python"])

    @property
    def findings(self) -> Sequence[Document]:
        return list(self.answer["findings"])


@dataclass(frozen=True)
class Compiled(Answer):
    """A program for one chip."""

    record: Document
    """The record that lies beside the program."""

    @property
    def program(self) -> Path:
        """The .pte, or the compiled .onnx."""
        return next(Path(file) for file in self.record["files"] if file.endswith((".pte", ".onnx")))

    @property
    def accuracy(self) -> Mapping[str, float]:
        """Figures against the float model; those named `reference_…` are against the quantized one."""
        return dict(self.record.get("accuracy") or {})

    @property
    def sqnr_db(self) -> float:
        """The SQNR of the HTP emulator's outputs against the float model's, in dB."""
        return float(self.accuracy["sqnr_db"])

    @property
    def delegates(self) -> int:
        return int(self.record["delegates"])

    @property
    def on_cpu(self) -> Sequence[Mapping[str, str]]:
        """The operators that stay on the CPU, with line and reason."""
        return list(self.record.get("on_cpu") or ())


@dataclass(frozen=True)
class Audited(Answer):
    @property
    def precisions(self) -> Mapping[str, Document]:
        """The audit by precision: what HTP takes of the model, what stays on the CPU, why and at what
        cost."""
        return dict(self.answer["precisions"])

    def on_cpu(self, precision: str) -> Sequence[Document]:
        return list(self.precisions[precision]["cpu"])


@dataclass(frozen=True)
class Ran(Answer):
    @property
    def outputs(self) -> Sequence[Path]:
        """A .npy for each output, in order."""
        record = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        return [self.folder / output["file"] for output in record["outputs"]]


def compile(
    model: object,
    inputs: object = None,
    *,
    precision: str | None = None,
    soc: str | None = None,
    calibrate: str | os.PathLike[str] | Sequence[object] | None = None,
    output: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> Compiled:
    """Compile a model, run it on the HTP emulator and compare it with float. Raises Failed.

    `model` is a torch module with its `inputs`, what torch.export gave, or what the command takes: a .pt2, an
    .onnx, "file.py:function". `calibrate` is a folder of samples, or samples as inputs are. `options` are
    more flags of `qnn-ci compile`."""
    __tracebackhide__ = True
    with _request("compile", model, inputs, soc, calibrate, output) as request:
        request.words += ["--precision", precision] if precision else []
        # A test searches nothing.
        request.words += ["-o", str(request.folder), "--no-search", *options]
        answer = request.answered()
    return Compiled(answer, request.folder, answer["programs"][0])


def audit(
    model: object,
    inputs: object = None,
    *,
    precisions: Sequence[str] = (),
    soc: str | None = None,
    calibrate: str | os.PathLike[str] | Sequence[object] | None = None,
    options: Sequence[str] = (),
) -> Audited:
    """Find what of a model HTP takes at each precision, and what stays on the CPU.

    Raises Failed if it cannot be known; a precision that does not compile is a row with `error`."""
    __tracebackhide__ = True
    with _request("audit", model, inputs, soc, calibrate) as request:
        request.words += [word for name in precisions for word in ("--precision", name)]
        request.words += options
        answer = request.answered(needs="precisions")
    return Audited(answer, request.folder)


def run(
    program: str | os.PathLike[str],
    *inputs: object,
    output: str | os.PathLike[str] | None = None,
    options: Sequence[str] = (),
) -> Ran:
    """Run a program on the HTP emulator. An input is a .npy file, an array of numpy or a tensor. Raises
    Failed."""
    __tracebackhide__ = True
    with _request("run", os.fspath(program), output=output) as request:
        for number, array in enumerate(inputs):
            request.words += ["--input", str(_input(array, request.scratch / f"{number}.npy"))]
        request.words += ["-o", str(request.folder), *options]
        answer = request.answered()
    return Ran(answer, request.folder)


@dataclass
class _Request:
    """A command that is to be started."""

    verb: str
    folder: Path
    """The folder that the command writes into."""
    scratch: Path
    variables: dict[str, str] = field(default_factory=lambda: {**os.environ})
    words: list[str] = field(default_factory=list)
    files: dict[Path, bytes] = field(default_factory=dict)
    """The model and the samples of this process, which the command reads."""

    def answered(self, needs: str = "") -> Document:
        """Run the command. Returns its answer if it passed, or has this field."""
        __tracebackhide__ = True
        file = self.scratch / "answer.json"
        command = [sys.executable, str(COMMAND), self.verb, "--json", str(file), *self.words]
        with _alone_in(self.folder.absolute()):
            for path, content in self.files.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.is_file() or path.read_bytes() != content:
                    path.write_bytes(content)
            process = subprocess.run(
                command,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
        sys.stderr.write(process.stderr + process.stdout)
        if not file.is_file():
            last = (process.stderr.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise Failed(f"{self.verb} ended without an answer: {last}", "", {})
        answer: Document = json.loads(file.read_text(encoding="utf-8"))
        if process.returncode and not (needs and needs in answer):
            errors = [row for row in answer["findings"] if row["severity"] == "error"]
            message = "; ".join(row["message"] for row in errors) or f"exit code {process.returncode}"
            raise Failed(message, next((row["fix"] for row in errors), ""), answer)
        return answer


@contextmanager
def _request(
    verb: str,
    model: object,
    inputs: object = None,
    soc: str | None = None,
    calibrate: Any = None,
    output: str | os.PathLike[str] | None = None,
) -> Iterator[_Request]:
    __tracebackhide__ = True
    folder = Path(output or tempfile.mkdtemp(prefix="qnn-ci-"))
    with tempfile.TemporaryDirectory(prefix="qnn-ci-") as scratch:
        request = _Request(verb, folder, Path(scratch))
        # In the user's folder it has one name each time, and commands that name it can be typed.
        place = request.scratch if output is None else folder.absolute() / EXPORTED
        if output is None:
            # The user's folder gets no logs of a test run.
            request.variables.setdefault("QNN_CI_REPORTS", str(folder / "reports"))
        if isinstance(model, (str, os.PathLike)):
            path = os.fspath(model)
            if inputs is not None:
                raise TypeError(f"{path} has its own inputs: pass none")
        else:
            path = str(place / f"{type(model).__name__.lower()}.pt2")
            request.files[Path(path)] = _export_to_bytes(model, inputs)
        request.words.append(path)
        if soc:
            request.words += ["--soc", soc]
        if calibrate is not None:
            if not isinstance(calibrate, (str, os.PathLike)):
                samples = _samples(calibrate)
                calibrate = place / f"samples-{hashlib.sha256(b''.join(samples)).hexdigest()[:8]}"
                request.files |= {
                    calibrate / f"{number:05}.pt": sample for number, sample in enumerate(samples)
                }
            request.words += ["--calibrate", os.fspath(calibrate)]
        yield request
    if output is None:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def _export_to_bytes(model: object, inputs: object) -> bytes:
    """Export a module to a .pt2, which the user's own torch writes. Equal modules give equal bytes, so the
    command's cache knows them again."""
    import torch

    program: Any = model
    if isinstance(model, torch.nn.Module):
        if inputs is None:
            raise TypeError("a torch module needs example inputs: compile(net, inputs)")
        args, keywords = ((), dict(inputs)) if isinstance(inputs, Mapping) else (_tuple(inputs), {})
        modes = {module: module.training for module in model.modules()}
        try:
            with torch.no_grad():
                program = torch.export.export(model.eval(), args, keywords)
        finally:
            for module, training in modes.items():
                module.training = training
    # A file's own name would be in its bytes.
    content = io.BytesIO()
    torch.export.save(program, content)
    return content.getvalue()


def _samples(samples: Iterable[object]) -> list[bytes]:
    import torch

    contents = []
    for sample in samples:
        content = io.BytesIO()
        torch.save(_tuple(sample), content)
        contents.append(content.getvalue())
    return contents


def _input(value: object, path: Path) -> Path:
    if isinstance(value, (str, os.PathLike)):
        return Path(value)
    import numpy

    numpy.save(path, numpy.asarray(value))
    return path


def _tuple(inputs: object) -> tuple[Any, ...]:
    return tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Let one process at a time (of xdist) write to a folder: a command refuses one that is in use."""
    name = f"qnn-ci-{os.getuid()}-{hashlib.sha256(os.fsencode(folder)).hexdigest()[:2]}.lock"
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(Path(tempfile.gettempdir(), name), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
