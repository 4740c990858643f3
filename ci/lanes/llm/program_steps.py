"""What ExecuTorch's workers do. They never import onnxruntime-qnn, which loads another QNN."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ci.lanes.llm.architecture import Architecture
from ci.lanes.llm.config import read_architecture, runner_version
from ci.lanes.llm.decoder import Decoder, load_decoder, require_halves, resized
from ci.lanes.llm.genie import PROGRAM
from ci.lanes.llm.graphs import Encoding, outputs_of_rows, samples
from ci.lanes.llm.orders import README_OF_RECORD, CompileOrder, Written
from ci.lanes.llm.programs import (
    DECODE_METHOD,
    PREFILL_METHOD,
    RunnerLayout,
    edge_encodings,
    in_pytorch,
    lower,
    metadata,
    method_of,
    quantized,
    step_of,
)
from ci.lanes.llm.prompts import TEMPLATE, special_places
from ci.lanes.llm.readers import Step

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


def order_program(order: CompileOrder) -> Written:
    """A checkpoint as a program, with what the device and `check` read beside it."""
    torch.set_grad_enabled(False)
    folder, out = Path(order.model), Path(order.into)
    shape = read_architecture(folder, order.adapter)
    counts = {METHODS[kind]: order.count(kind) for kind in METHODS}
    whole = load_decoder(folder, shape, order.context, order.context)
    layouts = {name: RunnerLayout(resized(whole, count)) for name, count in counts.items()}
    inputs = {name: layout.inputs([0], 0, layout.empty()) for name, layout in layouts.items()}
    modules: dict[str, Any] = dict(layouts)
    edges: Mapping[str, Encoding] = {}
    if order.quantized:
        rows = order.calibration
        outputs, special = outputs_of_rows(whole, rows), special_places(folder, shape, rows)
        calls = {
            name: layouts[name].calibration(samples(whole, rows, outputs, order.context, count, special))
            for name, count in counts.items()
        }
        modules = quantized(layouts, calls, order.precision, order.soc)
        edges = edge_encodings(modules[DECODE_METHOD])
        for name, module in modules.items():
            torch.export.save(torch.export.export(module, inputs[name]), on_cpu_file(out, name))
    else:
        require_halves(whole)
    constants = metadata(shape, order.context, order.prefill, edges)
    lower(modules, inputs, constants, order.soc, out / PROGRAM, edges["mask"].dtype if edges else "")
    for name in SHIPPED:
        if (folder / name).is_file():
            shutil.copy(folder / name, out)
    name = runner_version(folder, shape.model_type)
    readme = README.format(
        name=folder.name,
        program=PROGRAM,
        version=f"--decoder_model_version {name} " if name else "",
        soc=order.soc,
        precision=order.precision,
        context=order.context,
        prefill=order.prefill,
    )
    readme += README_OF_RECORD if order.quantized else ""
    (out / "README.md").write_text(readme, encoding="utf-8")
    return Written(1, (out / PROGRAM).stat().st_size)


def on_cpu_file(out: Path, method: str) -> Path:
    """The quantized method, which `check` runs on the CPU."""
    return out / f"{method}_cpu.pt2"


def steps(
    order: CompileOrder, shape: Architecture, kind: str, parts: Sequence[int], *, cpu: bool = False
) -> dict[str, Step]:
    """Of a method, which has all layers, and of the quantized one on the CPU."""
    out, method = Path(order.into), METHODS[kind]
    with torch.device("meta"):
        decoder = Decoder(shape, order.count(kind), order.context)
    layout = RunnerLayout(decoder)
    encodings: Mapping[str, Encoding] = {}
    found: dict[str, Step] = {}
    if order.quantized:
        module = torch.export.load(on_cpu_file(out, method)).module()
        encodings = edge_encodings(module)
        found["cpu"] = step_of(layout, in_pytorch(module), {})
    if not cpu:
        found["htp"] = step_of(layout, method_of(out / PROGRAM, method), encodings)
    return found
