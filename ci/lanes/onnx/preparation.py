"""Prepare a case's model, once for all its programs: export it or check it, choose its samples, and save the
float model's outputs for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from ci.explain.onnx_graph import make_plain
from ci.lanes.onnx import provider
from ci.lanes.onnx.model_file import (
    NotCompilable,
    Size,
    external_files,
    fix_dimensions,
    is_context,
    load_graph,
    problems_of,
    signature_of,
    size_of,
)
from ci.lanes.onnx.orders import ExportedFile, ExportToFile, PreparedModel, Preparing
from ci.lanes.onnx.samples import (
    Divided,
    calibration_samples,
    divide_samples,
    draw_resembling,
)
from ci.lanes.onnx.suite import OnnxCase, OnnxOrder
from ci.lanes.onnx.task_files import CALIBRATION, EXPECTED, SAMPLES
from ci.models.inputs import (
    DRAWN_COMPARED,
    GraphSignature,
    InputsUsed,
    Sample,
    draw_sample,
    drawn_compared,
    most_calibrating,
    order_files,
    save,
)
from ci.models.user_model import modules_in
from ci.models.wheels import locate_file
from ci.suite.onnx_runtime import run_on_cpu
from provisioning.base import commands
from provisioning.base.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from ci.models.factory import ModelWithInputs

OPSET = 20
COMPARED_SEED = 1 << 20
"""Drawn samples that are compared have numbers from here on, except for the first; samples that calibrate
have other numbers."""

Notes = Sequence[tuple[str, str]]


def prepare(order: OnnxOrder, preparing: Preparing) -> PreparedModel:
    """Export or check the model, and save inputs and the float model's outputs beside it."""
    case, into = order.case, order.into
    count = order.run.calibration if preparing.calibration is None else preparing.calibration
    notes: Notes = ()
    if case.factory:
        model, divided, notes = _export_model(order, count)
    else:
        model = look(locate_file(case.model, order.search_path), case.dimensions, into)
        divided = _samples_of_file(order, model, count)
    signature = signature_of(load_graph(model))
    if preparing.drawn and not divided.calibrating:
        divided = _draw_calibrating(divided, signature, count)
    if not preparing.compares:
        divided = divided._replace(compared=[])
    elif not divided.compared:
        divided = _draw_compared(divided, signature, case.inferences or _compared_count(model))
    save(into / SAMPLES, divided.compared)
    save(into / CALIBRATION, divided.calibrating)
    save(into / EXPECTED, run_on_cpu(model, divided.compared))
    return PreparedModel(
        model=str(model),
        used=divided.used,
        inputs=tuple(str(tensor) for tensor in signature.inputs),
        notes=tuple(notes),
        modules=tuple(modules_in(order.search_path)),
    )


def _samples_of_file(order: OnnxOrder, model: Path, count: int | None) -> Divided:
    """Return the user's samples of an .onnx; none if the case names none."""
    case = order.case
    if not case.samples:
        return divide_samples([], case.inferences, count)
    samples = calibration_samples(case.samples, signature_of(load_graph(model)), order.search_path)
    return divide_samples(samples, case.inferences, count)


def _draw_calibrating(divided: Divided, signature: GraphSignature, count: int | None) -> Divided:
    most = most_calibrating(count, has_data=False)
    calibrating = [draw_sample(signature, seed) for seed in range(1, most + 1)]
    return divided._replace(calibrating=calibrating, used=replace(divided.used, calibrating=most))


def _draw_compared(divided: Divided, signature: GraphSignature, count: int) -> Divided:
    compared = [draw_sample(signature)]
    for number in range(count - 1):
        compared.append(draw_sample(signature, COMPARED_SEED + number))
    return divided._replace(compared=compared, used=replace(divided.used, compared=count))


def _compared_count(model: Path) -> int:
    operations = 2 * size_of(load_graph(model)).macs
    return drawn_compared(operations)


def look(model: Path, dimensions: Mapping[str, Size], into: Path) -> Path:
    """Refuse what cannot be compiled; return the model made plain, with its named dimensions fixed."""
    graph = load_graph(model)
    if is_context(graph):
        message = f"{model} is compiled already"
        raise UsageError(message, fix=commands.session("run", model, "--input", "FILE.npy"))
    data_files = external_files(graph, model.parent)
    if dimensions:
        fix_dimensions(graph, dimensions)
    if problems := problems_of(graph):
        raise NotCompilable(model, problems)
    if not make_plain(graph) and not dimensions:
        return model
    proto = onnx.load(str(model))
    if dimensions:
        fix_dimensions(proto, dimensions)
        proto = onnx.shape_inference.infer_shapes(proto)
    make_plain(proto)
    path = into / "static.onnx"
    if data_files:
        # Its weights are external data again: one file may not hold more than 2 GB.
        onnx.save(proto, str(path), save_as_external_data=True, location="static.bin")
    else:
        onnx.save(proto, str(path))
    return path


def _export_model(order: OnnxOrder, count: int | None) -> tuple[Path, Divided, Notes]:
    """Export what the case's factory makes, and return the file, its samples, and notes for the author."""
    from ci.models.model_samples import inputs_named

    case = order.case
    assert case.factory is not None
    model, subject = provider.export(
        case.factory,
        case.arguments,
        order.search_path,
        order.into,
        OPSET,
        inputs_named(case.samples, case.inputs, order.search_path),
        non_finite=case.non_finite,
    )
    if isinstance(subject, dict):
        return model, _resembling_samples(subject, case, count), ()
    return model, _choose_samples(model, subject, case.inferences, count), subject.notes


def _choose_samples(
    model: Path, subject: ModelWithInputs, inferences: int | None, calibration: int | None
) -> Divided:
    """Return the samples of a PyTorch model, by the names of the exported model's inputs."""
    choice = subject.choose(inferences, calibration)
    names = [tensor.name for tensor in signature_of(load_graph(model)).inputs]

    def name_inputs(samples: Sequence[tuple[Tensor, ...]]) -> list[Sample]:
        named = []
        for sample in samples:
            named.append({name: tensor.numpy() for name, tensor in zip(names, sample, strict=True)})
        return named

    return Divided(name_inputs(choice.compared), name_inputs(choice.calibrating), choice.used)


def _resembling_samples(sample: Sample, case: OnnxCase, count: int | None) -> Divided:
    """Calibrate and compare an ONNX model by its one sample. A case whose results are recorded also gets
    drawn ones."""
    if not case.recorded:
        return _only_sample(sample)
    from ci.models.factory import CALIBRATION_SEED

    count = most_calibrating(count, has_data=False)
    samples = [draw_resembling(sample, number) for number in range(case.inferences or DRAWN_COMPARED)]
    calibration = [draw_resembling(sample, CALIBRATION_SEED + index) for index in range(count)]
    return Divided(samples, [*samples, *calibration][:count], InputsUsed(len(samples), count))


def _only_sample(sample: Sample) -> Divided:
    return Divided([sample], [sample], InputsUsed(1, 1, given=1))


def export_file(request: ExportToFile) -> ExportedFile:
    """Write a PyTorch model as an .onnx, and a file for each sample, of the user or of the model's own
    function."""
    from ci.models.model_samples import inputs_named

    into = Path(request.into)
    model, subject = provider.export(
        request.factory,
        {},
        Path(request.search_path),
        into,
        OPSET,
        inputs_named(request.samples, (), Path(request.user_folder)),
        own_names=True,
    )
    notes: Notes = ()
    if isinstance(subject, dict):
        divided = _only_sample(subject)
    else:
        divided = _choose_samples(model, subject, request.inferences, request.calibration)
        notes = subject.notes
    model.rename(into / request.model)
    _write_samples(divided, into / request.folder)
    compared = None if divided.used.given else divided.used.compared
    return ExportedFile(tuple(message for _, message in notes), compared)


def _write_samples(divided: Divided, folder: Path) -> None:
    """Write a file for each sample, in the order in which a suite would divide them as here."""
    import numpy as np

    folder.mkdir()
    is_single = divided.used.given == 1
    samples = divided.compared if is_single else order_files(divided.compared, divided.calibrating)
    for number, sample in enumerate(samples):
        np.savez(folder / f"{number:03}.npz", **sample)  # type: ignore[arg-type]
