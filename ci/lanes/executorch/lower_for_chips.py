"""Lower a model for several chips, and do once what does not depend on the chip.

Quantizing, exporting and ExecuTorch's passes take nearly all of the time; a chip begins to count where the
partitioner asks QNN's backend. `lower_for_chips` holds there (ci/work/template.py), and each chip goes on in
a fork. Its program has the bytes of one that is lowered alone, but for the time in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from executorch.backends.qualcomm._passes.qnn_pass_manager import get_qnn_pass_manager_cls
from executorch.backends.qualcomm.partition.qnn_partitioner import QnnPartitioner
from executorch.backends.qualcomm.serialization.qc_schema import QnnExecuTorchBackendType
from executorch.backends.qualcomm.utils.qnn_manager_lifecycle import QnnManagerContext
from executorch.backends.qualcomm.utils.utils import qnn_edge_config
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch.export import ExportedProgram

from ci.lanes.executorch.export import ChipModel, Failed
from ci.lanes.executorch.lower import Lowering, compiler_spec_of, write_program
from ci.lanes.executorch.orders import ChipProgram, ChipsRequest
from ci.lanes.executorch.quantization import ComputedModel, chips_annotated_alike, step_of
from ci.models.exported import NoDigest
from ci.models.inference import copy_sample
from ci.work import hold

METHOD = "forward"


def lower_for_chips(chip_model: ChipModel, request: ChipsRequest) -> ChipProgram:
    """Lower the model as far as it is the same for the chips. Each fork lowers it on for one of them, and
    returns its program."""
    chips = _chips_alike(chip_model, request.chips) if chip_model.run.quantizes else request.chips
    computed = ComputedModel.of(chip_model)
    lowering = Lowering(chip_model, computed.module)
    with step_of("compile"), lowering.spy.installed():
        lowering.spy.on_cpu = lowering.cpu_nodes
        with ExitStack() as manager:
            partitioner = _WaitingPartitioner(lowering, chips, manager)
            edge = _lower(lowering, partitioner)
        lowered = lowering.finish(edge)
    return write_program(lowering, lowered, computed, Path(str(partitioner.request["into"])))


def _chips_alike(chip_model: ChipModel, chips: Sequence[str]) -> Sequence[str]:
    """Return the chips that the quantized model fits."""
    try:
        return chips_annotated_alike(chip_model, chips)
    except NoDigest:
        return [chip_model.soc]


def _lower(lowering: Lowering, partitioner: Partitioner) -> EdgeProgramManager:
    """Do what `to_edge_transform_and_lower_to_qnn` does for one method. Its partitioner would initialize QNN
    for one chip before the passes."""
    chip_model = lowering.chip_model
    exported = torch.export.export(lowering.module, copy_sample(chip_model.sample), strict=True)
    passes = get_qnn_pass_manager_cls(QnnExecuTorchBackendType.kHtpBackend)()
    aten = passes.transform_for_export_pipeline(exported)
    transforms = passes.get_to_edge_transform_passes(
        exported, compiler_specs=compiler_spec_of(chip_model), skip_node_id_set=lowering.cpu_nodes
    )
    edge: EdgeProgramManager = to_edge_transform_and_lower(
        {METHOD: aten},
        transform_passes={METHOD: transforms},
        partitioner={METHOD: [partitioner]},
        compile_config=qnn_edge_config(),
    )
    return edge


class _WaitingPartitioner(Partitioner):
    """Waits where ExecuTorch partitions. In each fork it partitions for the fork's chip."""

    def __init__(self, lowering: Lowering, chips: Sequence[str], manager: ExitStack) -> None:
        super().__init__()
        self.request: Mapping[str, object] = {}
        """The request of the fork's task."""
        self._lowering, self._chips, self._manager = lowering, chips, manager

    def ops_to_not_decompose(self, program: ExportedProgram) -> object:
        return self._for_chip().ops_to_not_decompose(program)

    def partition(self, program: ExportedProgram) -> PartitionResult:
        self.request, lowering = hold({}), self._lowering
        soc = str(self.request["soc"])
        if soc not in self._chips:
            raise Failed("compile", f"the quantizer treats {soc} in another way")
        lowering.chip_model = replace(lowering.chip_model, soc=soc)
        lowering.log_begin = 0
        self._manager.enter_context(QnnManagerContext({METHOD: compiler_spec_of(lowering.chip_model)}))
        return self._for_chip().partition(program)

    def _for_chip(self) -> QnnPartitioner:
        spec = compiler_spec_of(self._lowering.chip_model)
        return QnnPartitioner(spec, skip_node_id_set=self._lowering.cpu_nodes)
