"""The outputs of a program in a folder, as the runner on a device wrote them.

| form | files |
| --- | --- |
| ExecuTorch's runner and ours | `output_<sample>_<index>.raw` |
| qnn-net-run | `Result_<sample>/NAME.raw` |
| numpy, such as of AI Hub's dictionary | one `.npz` with an array for each output, its samples stacked |
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ci.suite.accuracy import Unusable
from provisioning.base.errors import UsageError

if TYPE_CHECKING:
    from ci.models.inputs import Array, Sample

T = TypeVar("T")

_RUNNERS = re.compile(r"output_(\d+)_(\d+)\.raw")
_RESULT = re.compile(r"Result_(\d+)")
_NATIVE = "_native"
"""qnn-net-run ends the names of files with this that have the graph's own type."""
_HEADER = 4096
"""An array in an .npz has at most this many bytes before its values."""
OF_ANOTHER = "another program or another run wrote it"
FORMS = "output_0_0.raw …, Result_0/NAME.raw …, or one .npz"
CONVERT = (
    "numpy.savez('outputs.npz', **{name: numpy.stack(arrays) for name, arrays in"
    " job.download_output_data().items()})"
)


class Form(NamedTuple):
    """A form of outputs, the paths in a folder that have it, and the function that reads them."""

    title: str
    paths: Sequence[Path]
    read: Callable[[Sequence[Path], Sequence[Sample]], list[Sample]]


def read_outputs(folder: Path, like: Sequence[Sample]) -> list[Sample]:
    """Read the outputs of each sample. `like` are the emulator's: they have the names, types and shapes.

    Raises UsageError if the folder has no outputs, and Unusable if they are not those of this program and its
    samples."""
    if not folder.is_dir():
        raise UsageError(f"--outputs {folder}: there is no such folder", fix="name the folder of the outputs")
    entries = sorted(folder.iterdir())
    forms = [
        Form("a runner's", [path for path in entries if _RUNNERS.fullmatch(path.name)], _runner_outputs),
        Form("qnn-net-run's", [path for path in entries if _RESULT.fullmatch(path.name)], _net_run_outputs),
        Form("numpy's", [path for path in entries if path.suffix == ".npz"], _numpy_outputs),
    ]
    having = [form for form in forms if form.paths]
    if not having:
        converting = [path.name for path in entries if path.suffix in (".h5", ".hdf5")]
        fix, found = f"copy the outputs there: {FORMS}", "none"
        if converting:
            fix, found = f"convert it where AI Hub's client is: {CONVERT}", converting[0]
        raise UsageError(f"--outputs {folder}: expected outputs as {FORMS}, found {found}", fix=fix)
    if len(having) > 1:
        titles = " and ".join(f"{form.title} ({form.paths[0].name})" for form in having)
        raise Unusable("extra", f"{folder} has outputs of two runs: {titles}")
    (form,) = having
    return form.read(form.paths, like)


def _runner_outputs(paths: Sequence[Path], like: Sequence[Sample]) -> list[Sample]:
    folder = paths[0].parent
    expected = {
        f"output_{number}_{index}.raw": (number, name)
        for number, sample in enumerate(like)
        for index, name in enumerate(sample)
    }
    names = {path.name for path in paths}
    _require_same(expected, names, len(like))
    samples: list[Sample] = [{} for _ in like]
    for file, (number, name) in expected.items():
        samples[number][name] = _read_raw(folder / file, like[number][name])
    return samples


def _net_run_outputs(paths: Sequence[Path], like: Sequence[Sample]) -> list[Sample]:
    folder = paths[0].parent
    expected = [f"Result_{number}" for number in range(len(like))]
    _require_same(expected, {path.name for path in paths}, len(like))
    samples: list[Sample] = []
    for number, sample in enumerate(like):
        files = {
            path.stem.removesuffix(_NATIVE): path
            for path in sorted((folder / f"Result_{number}").glob("*.raw"))
        }
        chosen = _named_outputs(files, list(sample), f"Result_{number}")
        samples.append({name: _read_raw(path, sample[name]) for name, path in chosen.items()})
    return samples


def _numpy_outputs(paths: Sequence[Path], like: Sequence[Sample]) -> list[Sample]:
    import numpy

    if len(paths) > 1:
        raise Unusable("extra", f"{paths[0].name} and {paths[1].name} are outputs of two runs")
    (path,) = paths
    try:
        most = sum(array.nbytes + _HEADER for sample in like for array in sample.values())
        with zipfile.ZipFile(path) as archive:
            size = sum(file.file_size for file in archive.infolist())
        if size > most:
            message = f"{path.name}: expected at most {most:,} bytes of outputs, found {size:,}"
            raise Unusable("shape", message)
        with numpy.load(path, allow_pickle=False) as arrays:
            stacked = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise Unusable("missing", f"{path.name}: expected arrays of numpy.savez, found {error}") from error
    chosen = _named_outputs(stacked, list(like[0]), path.name)
    for name, array in chosen.items():
        if array.ndim == 0 or len(array) != len(like):
            count = len(array) if array.ndim else 0
            raise Unusable("missing", f"{path.name}: {name}: expected {len(like)} samples, found {count}")
    samples = []
    for number, sample in enumerate(like):
        arrays_of_sample = {name: array[number] for name, array in chosen.items()}
        samples.append(_check_shapes(number, arrays_of_sample, sample))
    return samples


def _require_same(expected: Collection[str], found: set[str], samples: int) -> None:
    absent = [name for name in expected if name not in found]
    if absent:
        count = f"{len(absent)} of {len(expected)} outputs are missing"
        raise Unusable("missing", f"{count}, {min(absent)} first: the program has {samples} samples")
    if extra := sorted(found - {*expected}):
        message = f"{extra[0]}: the program has {samples} samples and no such output; {OF_ANOTHER}"
        raise Unusable("extra", message)


def _named_outputs(found: dict[str, T], names: Sequence[str], where: str) -> dict[str, T]:
    """Return what was found for each output, by its name. The only output may have any name."""
    if len(names) == len(found) == 1:
        return dict(zip(names, found.values(), strict=True))
    plain = {plain_name(name): value for name, value in found.items()}
    chosen = {}
    for name in names:
        forms = [form for form in (plain_name(name), f"output_{name}") if form in plain]
        if not forms:
            having = ", ".join(sorted(found)[:8]) or "none"
            raise Unusable("missing", f"{where}: expected the output {name}, found {having}")
        chosen[name] = plain.pop(forms[0])
    if plain:
        raise Unusable("extra", f"{where}: the program has no output {min(plain)}; {OF_ANOTHER}")
    return chosen


def plain_name(name: str) -> str:
    """Return the name as QNN writes it, where a name has letters, digits and underscores alone."""
    return re.sub(r"\W", "_", name)


def _read_raw(path: Path, like: Array) -> Array:
    import numpy

    size, dtype = path.stat().st_size, like.dtype
    if like.dtype.itemsize == 8 and size * 2 == like.nbytes:
        # QNN has no integers of 64 bits.
        dtype = numpy.dtype(like.dtype.str.replace("8", "4"))
    elif size != like.nbytes:
        place = f"{path.parent.name}/{path.name}"
        shape = ", ".join(map(str, like.shape))
        raise Unusable(
            "shape",
            f"{place}: expected {like.nbytes:,} bytes ({like.dtype}[{shape}]), found {size:,}: the file is"
            " cut, or another program wrote it",
        )
    return numpy.fromfile(path, dtype=dtype).reshape(like.shape).astype(like.dtype, copy=False)


def _check_shapes(number: int, arrays: Sample, like: Sample) -> Sample:
    """Return the arrays in the emulator's shapes. AI Hub may give them with the graph's own dimensions."""
    checked = {}
    for name, array in arrays.items():
        expected = like[name]
        if array.size != expected.size or array.dtype.kind != expected.dtype.kind:
            kinds = [f"{row.dtype}[{', '.join(map(str, row.shape))}]" for row in (expected, array)]
            message = f"output {name} of sample {number}: expected {kinds[0]}, found {kinds[1]}"
            raise Unusable("shape", message)
        checked[name] = array.reshape(expected.shape).astype(expected.dtype, copy=False)
    return checked
