"""Ask executorch's compiler for a device, and for a program of one layer, in a process of its own, because a
wrong pair may crash.

Run as a script, this module is that process. It imports the adaptor and no torch, which takes 0.25 s.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_MARK = "qnn-ci-probe: "
_SECONDS = 120
_CODE = re.compile(r"error\s*=\s*(\d+)|: (1\d{3,4})\s*$")


@dataclass(frozen=True, slots=True)
class Answer:
    """How far the compiler came. `device`: it created one. `absent`: no compiler is installed here."""

    step: str
    """The failed step, or the last: `absent`, `adaptor`, `build id`, `soc`, `backend`, `device`, `program`;
    `probe` if this module could not ask."""
    made_device: bool = False
    compiles: bool = True
    """Whether the program is what it should be; True if nobody asked for one."""
    build_id: str = ""
    code: int | None = None
    """QNN's error code."""
    detail: str = ""
    interpreter: str = ""
    chips: frozenset[str] = frozenset()
    """What executorch compiles for, if it was asked for another chip."""


def ask(
    soc: str, variables: Mapping[str, str], interpreter: str = sys.executable, seconds: float = _SECONDS
) -> Answer:
    # Late: as a script this module has none of our packages.
    from provisioning.base.commands import interview

    command = [interpreter, str(Path(__file__).resolve()), soc]
    try:
        process = interview(command, seconds, env=dict(variables))
    except subprocess.TimeoutExpired:
        return Answer("backend", detail=f"no answer within {seconds:g} s", interpreter=interpreter)
    return understand(f"{process.stdout}\n{process.stderr}", process.returncode, interpreter)


def understand(output: str, status: int, interpreter: str) -> Answer:
    """Read the process's output, in which its own lines are marked among QNN's log, and its exit status."""
    fields: dict[str, str] = {"step": "adaptor"}
    log: list[str] = []
    for line in output.splitlines():
        if line.startswith(_MARK):
            fields |= json.loads(line.removeprefix(_MARK))
        elif line.strip():
            log.append(line.strip())
    errors = [line for line in log if re.search(r"\[ERROR\]|Error\b|^[EF] \d\d:|Fail", line)]
    codes = [int(match[1] or match[2]) for line in errors for match in [_CODE.search(line)] if match]
    is_done = fields.get("result") == "ok"
    is_created = fields["step"] == "program" or (fields["step"] == "device" and is_done)
    compiles = fields["step"] != "program" or is_done
    detail = fields.get("detail", "")
    if not (is_created and compiles) and not detail:
        detail = "; ".join(_plain(line) for line in dict.fromkeys(errors))
        if status < 0:
            detail = f"it was ended by signal {-status}" + (f" after: {detail}" if detail else "")
    return Answer(
        fields["step"],
        is_created,
        compiles,
        fields.get("build_id", ""),
        None if is_created or not codes else codes[-1],
        detail or ("" if is_created and compiles else f"it ended with status {status}"),
        interpreter,
        frozenset(fields.get("chips", "").split()),
    )


def _plain(line: str) -> str:
    """A line of QNN's log without its prefixes."""
    return re.sub(r"^(?:\[\w+\]|\s|\[Qnn ExecuTorch\]:|<E>|[EF] [\d:.]+ executorch:\S+\])+", "", line)


def _say(**fields: str) -> None:
    print(f"\n{_MARK}{json.dumps(fields)}", flush=True)


def _main(soc: str) -> int:
    import importlib
    import importlib.util
    import os

    # sys.path has the script's own directory, where modules have names that other packages use.
    own_folder = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry != own_folder]
    if importlib.util.find_spec("executorch") is None:
        _say(step="absent", detail="executorch is not installed")
        return 0
    try:
        schema = importlib.import_module("executorch.backends.qualcomm.serialization.qc_schema")
        adaptor = importlib.import_module("executorch.backends.qualcomm.python.PyQnnManagerAdaptor")
    except ImportError as error:
        _say(step="adaptor", detail=f"{type(error).__name__}: {error}")
        return 1
    _say(step="build id")
    library = Path(os.environ["QNN_SDK_ROOT"], "lib", "x86_64-linux-clang", "libQnnHtp.so")
    _say(step="soc", build_id=adaptor.GetQnnSdkBuildId(str(library)))
    if soc not in schema.QcomChipset.__members__:
        chips = " ".join(schema.QcomChipset.__members__)
        _say(step="soc", detail=f"this executorch does not know the chip {soc}", chips=chips)
        return 1
    encoded = _encoded_options(schema, soc)
    _say(step="backend")
    manager = adaptor.QnnManager(encoded)
    if manager.InitBackend().value != 0:
        # No method may be called from now on, not even the destructor.
        sys.stdout.flush()
        os._exit(1)
    _say(step="device", result="ok")
    try:
        layer = _layer(adaptor)
    except (AttributeError, TypeError):
        # The adaptor of another executorch makes layers otherwise.
        return 0
    _say(step="program", result="")
    manager.InitContext([_GRAPH])
    if problem := _why_not_compiled(manager, layer):
        _say(detail=problem)
        return 1
    _say(result="ok")
    manager.Destroy()
    return 0


def _encoded_options(schema: Any, soc: str) -> bytes:
    """Return the compiler's options for a chip, in the form that QNN's manager reads."""
    import dataclasses
    import tempfile

    options = schema.QnnExecuTorchOptions(
        schema._soc_info_table[schema.QcomChipset[soc]],
        schema.QnnExecuTorchBackendOptions(
            schema.QnnExecuTorchBackendType.kHtpBackend,
            htp_options=schema.QnnExecuTorchHtpBackendOptions(),
        ),
    )
    options.log_level = schema.QnnExecuTorchLogLevel.kLogLevelError
    with tempfile.TemporaryDirectory() as scratch:
        text = Path(scratch, "options.json")
        text.write_text(json.dumps(_drop_none(dataclasses.asdict(options))), encoding="utf-8")
        schema_file = Path(str(schema.__file__)).parent / "qc_compiler_spec.fbs"
        subprocess.run([_flatc(), "--binary", "-o", scratch, schema_file, text], check=True)
        return Path(scratch, "options.bin").read_bytes()


def _why_not_compiled(manager: Any, layer: Any) -> str:
    """Compile a graph of one layer, and say why that gives no program; empty if it does."""
    try:
        program = bytes(manager.Compile([_GRAPH], [[layer.GetOpWrapper()]]))
    except RuntimeError as error:
        return str(error)
    lacking = [name for name in (_GRAPH, _INPUT, _OUTPUT) if name.encode() not in program]
    return f"its program of {len(program)} bytes names no {' and no '.join(lacking)}" if lacking else ""


_GRAPH, _INPUT, _OUTPUT = "forward", "input_0_x", "output_y"
_WIDTH = 32


def _layer(adaptor: Any) -> Any:
    """A layer with 8-bit weights, which every chip takes."""
    import numpy as np

    kinds = adaptor.Qnn_TensorType_t
    encoding = adaptor.Qnn_QuantizationEncoding_t.QNN_QUANTIZATION_ENCODING_SCALE_OFFSET
    weights = (np.arange(_WIDTH * _WIDTH) % 256).astype(np.uint8).reshape(_WIDTH, _WIDTH)

    def tensor(name: str, kind: object, shape: list[int], data: Any = None) -> Any:
        content = np.array([], np.uint8) if data is None else data
        form = (adaptor.Qnn_DataType_t.QNN_DATATYPE_UFIXED_POINT_8, encoding, {"scale": 0.1, "offset": -128})
        return adaptor.TensorWrapper(
            name, kind, *form, len(shape), shape, [0] * len(shape), content, data is not None
        )

    row = [1, _WIDTH]
    layer = adaptor.PyQnnOpWrapper("layer", "qti.aisw", "FullyConnected")
    layer.AddInputTensors(
        [
            tensor(_INPUT, kinds.QNN_TENSOR_TYPE_APP_WRITE, row),
            tensor("weights", kinds.QNN_TENSOR_TYPE_STATIC, [_WIDTH, _WIDTH], weights),
        ]
    )
    layer.AddOutputTensors([tensor(_OUTPUT, kinds.QNN_TENSOR_TYPE_APP_READ, row)])
    return layer


def _flatc() -> str:
    """Find the program where ExecuTorch looks for it: in its package, else FLATC_EXECUTABLE or PATH."""
    import importlib.util
    import os

    spec = importlib.util.find_spec("executorch")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for place in ("exir/_serialize/flatbuffers-flatc", "data/bin/flatc"):
            if (program := Path(folder, place)).is_file():
                return str(program)
    return os.environ.get("FLATC_EXECUTABLE", "flatc")


def _drop_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _drop_none(item) for key, item in value.items() if item is not None}
    return value


if __name__ == "__main__":
    try:
        sys.exit(_main(sys.argv[1]))
    except Exception as error:
        _say(step="probe", detail=f"{type(error).__name__}: {error}")
        raise
