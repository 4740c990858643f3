"""Find the samples in a folder, and say what to write where there are none. Imports nothing heavy."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from ci.models.user_model import SAMPLE_FILES, BadFactory
from provisioning.base.commands import Fix, quote_command

IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
SHOWN = 3
"""A message names at most this many files of a folder."""


def sample_files(folder: Path) -> list[Path]:
    """Return the files of samples, in order. Raises BadFactory if there are none."""
    paths = folder.iterdir() if folder.is_dir() else ()
    files = sorted(path for path in paths if path.suffix in SAMPLE_FILES)
    if not files:
        raise _no_samples(folder)
    return files


def _no_samples(folder: Path) -> BadFactory:
    words = f"{folder}: expected samples as {', '.join(SAMPLE_FILES)}"
    if not folder.is_dir():
        near = get_close_matches(folder.name, [path.name for path in folder.parent.glob("*/")], n=1)
        if near:
            return BadFactory(f"{words}, found no such folder", f"did you mean {near[0]}?")
        create = Fix("{}, and write a file for each sample into it", quote_command("mkdir", folder))
        return BadFactory(f"{words}, found no such folder", create)
    names = sorted(path.name for path in folder.iterdir())
    if not names:
        fix = f'`numpy.save("{folder}/0.npy", array)`, a file for each sample, of the shape of the input'
        return BadFactory(f"{words}, found an empty folder", fix)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    first = folder / names[0]
    array = "array"
    if first.suffix.lower() in IMAGES:
        array = f'(numpy.asarray(PIL.Image.open("{first}"), "float32") / 255).transpose(2, 0, 1)[None]'
    line = f'`numpy.save("{first.with_suffix(".npy")}", {array})`'
    fix = f"{line}, with what your own code does to it before the model"
    return BadFactory(f"{words}, found {', '.join(names[:SHOWN])}{more}", fix)
