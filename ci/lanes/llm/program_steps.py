"""What ExecuTorch's workers do. They never import onnxruntime-qnn, which loads another QNN."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.compiled import Compiled, TokenReader
from ci.lanes.llm.config import read_architecture, upstream_name
from ci.lanes.llm.decoder import Decoder, load_decoder, require_halves, resized
from ci.lanes.llm.genie import PROGRAM, GeneratedText
from ci.lanes.llm.graphs import Encoding, outputs_of_rows, samples
from ci.lanes.llm.measure import DECODE, PREFILL, ProgramFolders, figures, texts
from ci.lanes.llm.programs import (
    DECODE_METHOD,
    PREFILL_METHOD,
    HandedOver,
    RunnerLayout,
    TensorReader,
    edge_encodings,
    in_pytorch,
    lower,
    metadata,
    methods,
    quantized,
)
from ci.lanes.llm.prompts import TEMPLATE, special_places, windows
from ci.lanes.llm.reference import greedy_text, load_reference
from ci.models.arrays import Array

METHODS = {"prefill": PREFILL_METHOD, "decode": DECODE_METHOD}
"""By what `check` calls a kind of graph."""
SHIPPED = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", TEMPLATE,
)  # fmt: skip
README = """\
# {name} through ExecuTorch

Made by `compile --through executorch` for {soc}, {precision}, a context of {context} tokens, prefill by
{prefill}. {program} has the methods prefill_forward and kv_forward, with the inputs, outputs and constants of
executorch's own language models. Upstream's qnn_llama_runner reads it, which `build_android` builds. Push
this folder to the device with the runner and QNN's libraries, and run in it:

    ./qnn_llama_runner --model_path {program} --tokenizer_path tokenizer.json --eval_mode 1 \\
        {version}--prompt "The answer is"

The .pt2 files are for `check` alone.
"""


def order_executorch(order: Mapping[str, Any]) -> dict[str, Any]:
    torch.set_grad_enabled(False)
    place = ProgramFolders.of(order)
    run = place.run
    speaker, readers = tensor_readers(place)
    reference = load_reference(place.model)
    facts: dict[str, Any] = {"bytes": (place.into / PROGRAM).stat().st_size}

    def say(prompts: Sequence[Sequence[int]], most: int, *, endless: bool) -> list[GeneratedText]:
        ends = place.endless().eos if endless else place.shape.eos
        return [answer(place, speaker, prompt, most, ends) for prompt in prompts]

    facts["texts"], facts["speed"] = texts(place, reference, say)
    if run.quantized:
        facts["figures"] = figures(place, reference, readers)
    return facts


def tensor_readers(place: ProgramFolders) -> tuple[TokenReader, dict[str, TokenReader]]:
    """Prefill and decode as two methods of one program. The reader that speaks, and those to judge: on HTP
    and, quantized, as PyTorch computes them."""
    path, precision = place.into / PROGRAM, place.run.precision
    counts = (PREFILL, DECODE)
    written = write_program(place.model, place.shape, place.chip, precision, counts, place.calibration, path)
    steps = methods(path, list(written.layouts))
    readers: dict[str, TokenReader] = {}

    def add(where: str, reader_of: Callable[[str], TensorReader]) -> HandedOver:
        prefill, decode = reader_of(PREFILL_METHOD), reader_of(DECODE_METHOD)
        readers[f"prefill_{where}"] = prefill
        # After one block of prefill, so that the figures show a cache that is not the same in both.
        readers[f"decode_{where}"] = HandedOver(prefill, decode, PREFILL)
        # Prefill's cache is shorter than the context: what lies beyond would be lost to decode.
        return HandedOver(prefill, decode, place.context - PREFILL)

    speaker = add(
        "htp", lambda name: TensorReader(written.layouts[name], steps[name], written.encodings.get(name, {}))
    )
    if place.run.quantized:
        add("cpu", lambda name: TensorReader(written.layouts[name], in_pytorch(written.modules[name])))
    return speaker, readers


@dataclass(frozen=True)
class Written:
    """A program's methods by name: the float layout, what was lowered, and its integers."""

    layouts: Mapping[str, RunnerLayout]
    modules: Mapping[str, Any]
    encodings: Mapping[str, Mapping[str, Encoding]]


def write_program(
    model: Path,
    shape: Architecture,
    chip: str,
    precision: str,
    counts: tuple[int, int],
    calibration: Callable[[], Sequence[Sequence[int]]],
    path: Path,
) -> Written:
    """Prefill and decode of so many tokens; `calibration` gives the rows of tokens to quantize by."""
    names = dict(zip((PREFILL_METHOD, DECODE_METHOD), counts, strict=True))
    whole = load_decoder(model, shape, shape.context, shape.context)
    if precision == "fp16":
        require_halves(whole)
    layouts = {name: RunnerLayout(resized(whole, count)) for name, count in names.items()}
    inputs = {name: layout.inputs([0], 0, layout.empty()) for name, layout in layouts.items()}
    modules: dict[str, Any] = dict(layouts)
    encodings: dict[str, dict[str, Encoding]] = {}
    if precision != "fp16":
        rows = calibration()
        outputs, special = outputs_of_rows(whole, rows), special_places(model, shape, rows)
        calls = {
            name: layouts[name].calibration(samples(whole, rows, outputs, shape.context, count, special))
            for name, count in names.items()
        }
        modules = quantized(layouts, calls, precision, chip)
        encodings = {name: edge_encodings(module) for name, module in modules.items()}
    edges = encodings.get(DECODE_METHOD, {})
    lower(
        modules,
        inputs,
        metadata(shape, shape.context, counts[0], edges),
        chip,
        path,
        edges["mask"].dtype if edges else "",
    )
    return Written(layouts, modules, encodings)


def order_program(order: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint of the user's as a program: for `compile --through executorch`."""
    torch.set_grad_enabled(False)
    folder, out, context = Path(order["model"]), Path(order["into"]), int(order["context"])
    shape, soc = replace(read_architecture(folder, order["adapter"]), context=context), order["soc"]
    precision, text = order["precision"], Path(order["calibrate"])
    rows = partial(windows, folder, shape, text, context)
    written = write_program(folder, shape, soc, precision, (int(order["prefill"]), 1), rows, out / PROGRAM)
    for name in SHIPPED:
        if (folder / name).is_file():
            shutil.copy(folder / name, out)
    if precision != "fp16":
        for name, module in written.modules.items():
            layout = written.layouts[name]
            exported = torch.export.export(module, layout.inputs([0], 0, layout.empty()))
            torch.export.save(exported, on_cpu_file(out, name))
    name = upstream_name(folder, shape.model_type)
    version = f"--decoder_model_version {name} " if name else ""
    readme = README.format(
        name=folder.name,
        program=PROGRAM,
        version=version,
        **{name: order[name] for name in ("soc", "precision", "context", "prefill")},
    )
    (out / "README.md").write_text(readme, encoding="utf-8")
    return {"binaries": 1, "bytes": (out / PROGRAM).stat().st_size}


def on_cpu_file(out: Path, method: str) -> Path:
    """The quantized method, which `check` runs on the CPU."""
    return out / f"{method}_cpu.pt2"


class LoweredProgram(Compiled):
    """A program of ExecuTorch's: one part with all layers."""

    def readers(self, kind: str, *, cpu: bool = False, only: int | None = None) -> dict[str, TensorReader]:
        method, context = METHODS[kind], int(self.record["context"])
        count = int(self.record["prefill"]) if kind == "prefill" else 1
        with torch.device("meta"):
            decoder = Decoder(self.shape, count, context)
        layout, readers = RunnerLayout(decoder), dict[str, TensorReader]()
        encodings: Mapping[str, Encoding] = {}
        if self.quantized:
            module = torch.export.load(on_cpu_file(self.out, method)).module()
            encodings = edge_encodings(module)
            readers[f"{kind}_cpu"] = TensorReader(layout, in_pytorch(module))
        if not cpu:
            step = methods(self.out / PROGRAM, [method])[method]
            readers = {f"{kind}_htp": TensorReader(layout, step, encodings)} | readers
        return readers

    @property
    def cache(self) -> int:
        return 0


def answer(
    place: ProgramFolders, reader: TokenReader, prompt: Sequence[int], most: int, ends: Collection[int]
) -> GeneratedText:
    """What the program says, by Genie's measures."""
    began, times = time.monotonic(), list[float]()

    def read(tokens: Sequence[int]) -> Array:
        row: Array = reader.read(tokens)[-1]
        times.append(time.monotonic() - began)
        return row

    reader.restart()
    text = greedy_text(read, [*place.shape.beginning, *prompt], most, ends, place.context)
    return GeneratedText(text.tokens, text.stopped, times[-1], times[0])
