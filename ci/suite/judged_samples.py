"""The samples that the emulator judged a program with, in one file: a device is judged with the same.

`compile --keep-samples` writes it beside the program. Its arrays are `<what>/<sample>/<name>`, and `facts` is
a text of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ci.suite.model_outputs import ChosenValues, ModelOutputs
from ci.work import digest_of, read, to_json
from provisioning.base.commands import session
from provisioning.base.errors import CheckFailed
from provisioning.base.files import hash_file

if TYPE_CHECKING:
    from ci.models.inputs import Array, Sample

SUFFIX = ".samples.npz"

FACTS = "facts"
INPUTS, EXPECTED, REFERENCE, EMULATED = "inputs", "expected", "reference", "emulator"
CHOSEN = "chosen_"
"""The values that outputs of indices chose among are named so, before the name of these outputs."""


@dataclass(frozen=True, slots=True)
class ChosenAlong:
    """The dimension that an output's indices choose along, and the noise of the values there."""

    dim: int
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFacts:
    program: str
    """The digest of the program's files (`digest_of_files`): the samples are of no other program."""
    soc: str
    build_id: str
    """The QNN build that compiled the program."""
    kind: str
    """How the program is quantized, as its run is named."""
    non_finite: bool = False
    choices: Mapping[str, Mapping[str, ChosenAlong]] = field(default_factory=dict)
    """Maps EXPECTED or REFERENCE to the outputs that are indices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedSamples:
    facts: SampleFacts
    inputs: Sequence[Sample]
    exact: ModelOutputs
    """What the float model gave."""
    reference: ModelOutputs
    """What the quantized model gave on the CPU; empty for a float program."""
    emulated: Sequence[Sample]
    """What the program gave on the emulator."""


def samples_path(program: Path) -> Path:
    return program.with_name(program.stem + SUFFIX)


def digest_of_files(files: Sequence[Path]) -> str:
    """Return the digest of a program's files, whatever their names are."""
    return digest_of([hash_file(path) for path in files])


def write_samples(path: Path, samples: JudgedSamples) -> None:
    import numpy

    choices: dict[str, Mapping[str, ChosenAlong]] = {}
    arrays: dict[str, Array] = {}
    for what, outputs in ((EXPECTED, samples.exact), (REFERENCE, samples.reference)):
        arrays.update(_arrays_of(what, outputs.by_sample))
        choices[what] = {name: ChosenAlong(row.dim, row.noise) for name, row in outputs.chosen.items()}
        for name, row in outputs.chosen.items():
            for number, array in enumerate(row.values):
                arrays[f"{CHOSEN}{what}/{number}/{name}"] = array
    arrays.update(_arrays_of(INPUTS, samples.inputs))
    arrays.update(_arrays_of(EMULATED, samples.emulated))
    facts = {**to_json(samples.facts), "choices": {what: _plain(rows) for what, rows in choices.items()}}
    numpy.savez(path, **{FACTS: numpy.array(json.dumps(facts))}, **arrays)  # type: ignore[arg-type]


def read_samples(path: Path) -> JudgedSamples:
    """Read what `write_samples` wrote. Raises CheckFailed for anything else."""
    import numpy

    arrays: dict[str, dict[int, Sample]] = {}
    try:
        with numpy.load(path, allow_pickle=False) as archive:
            facts = read(SampleFacts, json.loads(str(archive[FACTS])))
            for key in archive.files:
                if key != FACTS:
                    what, number, name = key.split("/", 2)
                    arrays.setdefault(what, {}).setdefault(int(number), {})[name] = archive[key]
    except Exception as error:
        # Depending on the damage, numpy, zlib, json or pydantic raises.
        raise CheckFailed(
            f"{path}: expected samples that `compile --keep-samples` wrote, found something else ({error})",
            fix=session("compile", "MODEL", "--keep-samples", "-o", path.parent),
        ) from error
    by_what = {what: _ordered_samples(rows) for what, rows in arrays.items()}

    def outputs_of(what: str) -> ModelOutputs:
        chosen = by_what.get(CHOSEN + what, [])
        choices = facts.choices.get(what, {})
        rows = {}
        for name, choice in choices.items():
            rows[name] = ChosenValues([sample[name] for sample in chosen], choice.dim, choice.noise)
        return ModelOutputs(by_what.get(what, []), rows)

    return JudgedSamples(
        facts=facts,
        inputs=by_what.get(INPUTS, []),
        exact=outputs_of(EXPECTED),
        reference=outputs_of(REFERENCE),
        emulated=by_what.get(EMULATED, []),
    )


def _ordered_samples(samples: Mapping[int, Sample]) -> list[Sample]:
    return [samples[number] for number in sorted(samples)]


def _arrays_of(what: str, samples: Sequence[Sample]) -> Iterator[tuple[str, Array]]:
    for number, sample in enumerate(samples):
        for name, array in sample.items():
            yield f"{what}/{number}/{name}", array


def _plain(choices: Mapping[str, ChosenAlong]) -> dict[str, object]:
    return {name: to_json(choice) for name, choice in choices.items()}
