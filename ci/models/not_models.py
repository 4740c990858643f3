"""Recognize what people type as MODEL that is no model, and say what to type instead.

Files are recognized by their names: a TensorFlow graph, a Keras model, a log. `refusal` is for commands that
take a model, `refuse_no_program` for those that take a compiled program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from provisioning.base.commands import Command, Fix, quote_command, session
from provisioning.base.errors import UnknownName, UsageError

MODEL_HELP = "a .pt2 (torch.export.save), file.py:function, module:function, or model.onnx"

EXPORT = "torch.export.save(torch.export.export(model.eval(), example_inputs), 'model.pt2')"
HOW = Fix(
    "write a function that returns the model and its inputs, `def net(): return model, (x,)`, into net.py,"
    " and name net.py:net; an example: {}",
    ("example",),
)

FUNCTION = re.compile(r"^def ([A-Za-z]\w*)", re.MULTILINE)
CLASS = re.compile(r"^class ([A-Za-z]\w*)\b.*Module\b", re.MULTILINE)
ADDRESS = re.compile(r"\w+://\S+")
OF_HUB = re.compile(
    r"(?:(?:https?://)?(?:huggingface\.co|hf\.co)/|hf://)?(?P<name>[\w-][\w.-]*/(?P<folder>[\w-][\w.-]*))/?"
)
MEMBER = re.compile(r"(?P<file>.+\.py):(?P<member>(?P<owner>[A-Za-z_]\w*)\.[\w.]+)")
DOTTED_PATH = re.compile(r"([A-Za-z_][\w.]*)\.([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind says what a file is and what to do with it: FILE stands for the path, STEM for the path without
    its ending."""

    words: str
    fix: str
    commands: tuple[Command, ...] = ()

    def fix_for(self, path: Path) -> Fix:
        def name_file(text: str) -> str:
            return text.replace("FILE", str(path)).replace("STEM", str(path.with_suffix("")))

        commands = [tuple(map(name_file, command)) for command in self.commands]
        return Fix(name_file(self.fix), *commands)


ONNX = (("compile", "STEM.onnx", "-o", "out"),)
EXPORT_THERE = "export it to ONNX with the framework that wrote it; then {}"
ARRAYS = Kind("arrays", "name the model; samples go to --calibrate DIR")
CORE_ML = Kind("a Core ML model", EXPORT_THERE, ONNX)
KERAS = Kind(
    "a Keras model", "convert it: python -m tf2onnx.convert --keras FILE --output STEM.onnx; then {}", ONNX
)
KINDS = {
    ".pte": Kind(
        "an ExecuTorch program, which is compiled already",
        "name the model that it was made of, which the .json beside it names if there is one; run it: {}; see"
        " what is in it: {}",
        (("run", "FILE"), ("inspect", "FILE")),
    ),
    ".dlc": Kind("what QNN's converter wrote", "see what is in it: {}", (("inspect", "FILE"),)),
    ".tflite": Kind(
        "a LiteRT (TensorFlow Lite) model",
        "convert it: python -m tf2onnx.convert --tflite FILE --output STEM.onnx; then {}",
        ONNX,
    ),
    ".h5": KERAS,
    ".keras": KERAS,
    ".pb": Kind("a TensorFlow graph", EXPORT_THERE, ONNX),
    ".mlmodel": CORE_ML,
    ".mlpackage": CORE_ML,
    ".gguf": Kind(
        "weights quantized for llama.cpp",
        "name the folder of the Hugging Face checkpoint that it was made from: {}",
        (("compile", "CHECKPOINT", "-o", "out"),),
    ),
    ".safetensors": Kind(
        "weights without the model's code",
        'write `def make_net(): model = Net(); model.load_state_dict(safetensors.torch.load_file("FILE"));'
        " return model, (x,)` and name NET.py:make_net; of a language model, name the folder, with its"
        " config.json",
    ),
    ".pkl": Kind(
        "a pickle",
        'write `def make_net(): return pickle.load(open("FILE", "rb")), (x,)` and name NET.py:make_net',
    ),
    ".npy": ARRAYS,
    ".npz": ARRAYS,
    ".ipynb": Kind(
        "a notebook",
        "make a .py of it: jupyter nbconvert --to script FILE; then name the function that returns the model"
        " and its inputs: {}",
        (("compile", "STEM.py:FUNCTION", "-o", "out"),),
    ),
    ".toml": Kind("a suite", "run the whole suite: {}", (("gate", "--suite", "FILE"),)),
    **dict.fromkeys(
        (".engine", ".plan", ".trt"),
        Kind("what TensorRT compiled for NVIDIA's GPUs", "name the ONNX model that it was made of: {}", ONNX),
    ),
    ".txt": Kind(
        "text",
        "name the model; packages of it belong behind --with, and a text to calibrate a language model behind"
        " --calibrate",
    ),
    **dict.fromkeys(
        (".json", ".yaml", ".yml"),
        Kind("a configuration", "name the function that makes the model of it: net.py:FUNCTION"),
    ),
    ".zip": Kind("an archive", "unpack it, and name the model in it"),
}
"""Maps the ending of a name to what the file is and what to do with it."""

TEXTS = (".json", ".txt", ".yaml", ".yml", ".zip")
"""A log may have these endings."""

GIVEN = Kind(
    "arrays", "name the program, and give it the arrays: {}", (("run", "PROGRAM", "--input", "FILE"),)
)
NO_PROGRAMS = {
    **{ending: kind for ending, kind in KINDS.items() if ending not in (".pte", ".dlc", ".zip")},
    ".json": Kind("a record", "name the program beside it, such as STEM.pte"),
    ".py": Kind("Python source", "compile its model: {}", (("compile", "FILE:FUNCTION", "-o", "out"),)),
    ".txt": Kind("text", "name the program; what a log means: {}", (("diagnose", "FILE"),)),
    ".npy": GIVEN,
    ".npz": GIVEN,
}
"""The same of what is typed in place of a compiled program."""

NO_LOGS = {
    **{ending: kind for ending, kind in KINDS.items() if ending not in TEXTS},
    ".py": Kind(
        "Python source",
        "keep what it prints, `python FILE > run.log 2>&1`; then {}",
        (("diagnose", "run.log"),),
    ),
}
"""The same of what is typed in place of a log."""

CHECKPOINT_FILES = (".safetensors", ".bin", ".json")


def refuse_no_program(path: Path, typed: Path) -> None:
    """For commands that take a compiled program: refuse a file that its name shows to be none."""
    _refuse(path, typed, "a compiled program", NO_PROGRAMS)


def refuse_no_log(path: Path, typed: Path) -> None:
    """Refuse a file that its name shows to be no log."""
    _refuse(path, typed, "a log", NO_LOGS)


def _refuse(path: Path, typed: Path, expected: str, kinds: Mapping[str, Kind]) -> None:
    kind = kinds.get(path.suffix.lower())
    if kind and path.is_file():
        raise UsageError(f"{typed}: expected {expected}, found {kind.words}", fix=kind.fix_for(typed))


def programs_in(folder: Path) -> list[str]:
    """Return the names of the compiled programs in a folder."""
    return sorted(path.name for path in folder.glob("*") if path.name.endswith((".pte", "_ctx.onnx")))


def refusal(text: str, folder: Path) -> UsageError:
    """Return the error for a MODEL that names no model."""
    expected = f"{text}: expected {MODEL_HELP}"
    path = folder / text
    if not text:
        return UsageError(f"MODEL is empty: expected {MODEL_HELP}", fix="print the variable that you typed")
    if ADDRESS.match(text) or _may_be_of_hub(text, path):
        return _download_refusal(text)
    if path.suffix in CHECKPOINT_FILES and (path.parent / "config.json").is_file():
        whole = session("compile", Path(text).parent, "-o", "out")
        return UsageError(
            f"{expected}, found one file of a checkpoint", fix=Fix("name the checkpoint's folder: {}", whole)
        )
    if kind := KINDS.get(path.suffix.lower()):
        return UsageError(f"{expected}, found {kind.words}", fix=kind.fix_for(Path(text)))
    if path.is_dir():
        return _folder_refusal(text, path)
    if path.is_file():
        functions = _names_in(path, text) if path.suffix == ".py" else []
        if len(functions) == 1:
            return UnknownName(expected, text, functions)
        if functions:
            return UsageError(expected, fix=f"say which function: {', '.join(functions)}")
        return UsageError(expected, fix=what_to_write(path, text) if path.suffix == ".py" else EXPORT)
    if (member := MEMBER.fullmatch(text)) and (folder / member["file"]).is_file():
        return _member_refusal(text, member, folder)
    if names := _names_like(text, folder):
        return UnknownName(f"{text}: there is no such model: expected {MODEL_HELP}", text, names)
    return UsageError(f"{text}: there is no such file: expected {MODEL_HELP}", fix=HOW)


def _member_refusal(text: str, member: re.Match[str], folder: Path) -> UsageError:
    """Return the error for a method or another part of a class."""
    file, owner = member["file"], member["owner"]
    functions = [name.rpartition(":")[2] for name in _names_in(folder / file, file)]
    name = next((name for name in ("net", "make_net") if name not in functions), "make_the_net")
    fix = _function_for(owner, file, name)
    if functions:
        names = ", ".join(f"{file}:{name}" for name in functions)
        fix = f"name the function that returns it: {names}; or {fix}"
    return UsageError(
        f"{text}: expected a function that returns the model, found {member['member']}, a part of {owner}",
        fix=fix,
    )


def _function_for(owner: str, file: str, name: str = "net") -> str:
    """Return what to write for a class that nothing in the file makes a model of."""
    return f"write `def {name}(): return {owner}(), (x,)`, x being its input, and name {file}:{name}"


def what_to_write(path: Path, text: str) -> str:
    """Return what to write into a Python file without a function."""
    if classes := CLASS.findall(path.read_text("utf-8", "replace")):
        return _function_for(classes[-1], text)
    return (
        f"write a function into it, `def net(): return model, (x,)`, x being its input, and name {text}:net"
    )


def _may_be_of_hub(text: str, path: Path) -> bool:
    return OF_HUB.fullmatch(text) is not None and path.suffix not in KINDS and not path.parent.exists()


def _folder_refusal(text: str, path: Path) -> UsageError:
    names = sorted(file.name for file in path.iterdir())
    models = [str(Path(text, name)) for name in names if name.endswith((".onnx", ".pt2"))]
    for file in sorted(path.glob("*.py")):
        models += _names_in(file, str(Path(text, file.name)))
    message = f"{text}: expected a checkpoint of a language model in this folder, found no config.json"
    if not names:
        message = f"{text}: expected {MODEL_HELP}, found an empty folder"
    if models:
        message = f"{text}: expected {MODEL_HELP}, found a folder"
        return UsageError(message, fix=f"name the model: {', '.join(models)}")
    if programs := programs_in(path):
        fix = Fix("run one of them: {}", ("run", Path(text, programs[0])))
        return UsageError(f"{text}: expected {MODEL_HELP}, found a folder of compiled programs", fix=fix)
    if names and all(name.endswith((".npy", ".npz")) for name in names):
        fix = Fix("name the model, and this folder behind its flag: {}", ("--calibrate", text))
        return UsageError(f"{text}: expected {MODEL_HELP}, found a folder of samples", fix=fix)
    if "saved_model.pb" in names:
        onnx = path.with_suffix(".onnx").name
        convert = quote_command("python", "-m", "tf2onnx.convert", "--saved-model", text, "--output", onnx)
        fix = Fix(f"convert it: {convert}; then {{}}", session("compile", onnx, "-o", "out"))
        return UsageError(f"{text}: expected {MODEL_HELP}, found a SavedModel of TensorFlow", fix=fix)
    return UsageError(message, fix="name a model; of a checkpoint, download or copy the whole folder")


def _download_refusal(text: str) -> UsageError:
    name = text.rstrip("/").rpartition("/")[2]
    download = quote_command("curl", "-LO", text)
    if hub := OF_HUB.fullmatch(text):
        name = hub["folder"]
        download = quote_command("hf", "download", hub["name"], "--local-dir", name)
    then = session("compile", name, "-o", "out")
    return UsageError(
        f"{text}: expected a model on this machine, found a name to download",
        fix=Fix(f"download it: {download}; then {{}}", then),
    )


def _names_like(text: str, folder: Path) -> list[str]:
    """Return the models that may be meant by a text that is no path of a model."""
    if called := re.fullmatch(r"(.+?)(?:\.py)?:+([A-Za-z_]\w*)(?:\(\))?", text):
        file = f"{called[1]}.py"
        return [f"{file}:{called[2]}"] if (folder / file).is_file() else []
    path, parent = Path(text), Path(text).parent
    files = [path for path in (folder / parent).glob("*") if path.suffix in (".onnx", ".pt2", ".py")]
    like = [path for path in files if path.stem == Path(text).name]
    like = like or [path for path in files if path.name in get_close_matches(Path(text).name, [path.name])]
    names = [name for path in like for name in _names_in(path, str(parent / path.name))]
    every = [name for path in files if path.suffix == ".py" for name in _names_in(path, path.name)]
    names = names or [name for name in every if name.rpartition(":")[2] == text]
    dotted = DOTTED_PATH.fullmatch(text)
    if not names and dotted and path.suffix not in KINDS:
        return [f"{dotted[1]}:{dotted[2]}"]
    return names


def _names_in(path: Path, text: str) -> list[str]:
    """Return what to type as MODEL for each model in this file."""
    if path.suffix != ".py":
        return [text]
    return [f"{text}:{name}" for name in FUNCTION.findall(path.read_text("utf-8", "replace"))]
