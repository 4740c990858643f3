"""Which lane and environment a typed command gets, and which flags its lane has."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ci.__main__ import VERBS
from provisioning.base.command_line import main
from provisioning.base.commands import OF_CLONE
from provisioning.base.settings import ROOT
from provisioning.components import COMPONENT_VARIABLES
from qnn_ci.command import MAP, program_of
from qnn_ci.command import VERBS as ALL
from tests.support.onnx_models import conv_model, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "Llama").mkdir()
    (tmp_path / "Llama" / "config.json").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ("compile net.onnx -o out", "onnx"),
        ("compile Llama/ -o out", "llm"),
        ("compile Llama/", "llm"),
        ("compile net.py:make --calibrate Llama -o out", "executorch"),
        ("compile net.py:make -o out.onnx", "executorch"),
        ("wrap context.bin -o net.pte", "executorch"),
        ("divergence --suite models.toml -k net.onnx", "executorch"),
        ("divergence --lane onnx -k net", "onnx"),
        ("audit net.onnx --no-such-flag", "onnx"),
        ("forecast net.onnx --precision 8a8w", "onnx"),
    ],
)
def test_the_environment_is_that_of_the_model_or_the_lane(folder: Path, words: str, environment: str) -> None:
    verb, *arguments = words.split()
    assert program_of(verb, arguments, folder) == ("ci", environment)


OF_USER = (*COMPONENT_VARIABLES.values(), "ANDROID_NDK", "ANDROID_NDK_HOME", "QNN_CI_PROFILE")
WRONG = {
    "compile nothere.py:make -o out": "did you mean net.py",
    "compile net.py:mak -o out": "did you mean make",
    "compile net.py:make --soc SM9999 -o out": "SM9999",
    "compile net.py:make --precision 9a9w -o out": "9a9w",
    "compile net.onnx --precision 16a2w -o out": "16a2w",
    "compile net.py:make --precison 8a8w -o out": "did you mean --precision",
    "audit net.py:make --precision 9a9w": "9a9w",
    "test_lowering --suite nothere.toml": "nothere.toml",
    "validate --profile whels": "did you mean wheels",
    "gate --frobnicate": "--frobnicate",
    "compile net.py:make": "add -o out",
    "build_android": "QNN_SDK_ROOT, ANDROID_NDK_ROOT and EXECUTORCH_ROOT",
    "build_x86 --executorch tree": "nor named by QNN_SDK_ROOT",
    "compile net.py:make --calibrate nofolder -o out": "nofolder",
    "audit net.py:make --calibrate LLama": "did you mean Llama",
    "quantize net.onnx --precision 8a8w --calibrate nofolder -o out": "nofolder",
    "compile Llama --precision 8a8w --calibrate no.txt -o out": "no.txt",
    "compile net.py:make --precision-file no.toml -o out": "no.toml",
    "forecast nothere.onnx": "nothere.onnx",
    "run nothere.pte": "nothere.pte",
    "run nothere.onnx": "nothere.onnx",
    "run net.onnx --input no.npy": "no.npy",
    "run net.onnx --input x=no.npy": "no.npy",
    "run net.onnx --compare Llama": "run.json",
    "check nofolder": "nofolder",
    "check Llama --text no.txt": "no.txt",
    "check Llama --checkpoint nofolder": "nofolder",
    "compile net.py:make -o out --precision fp16 8a8w": "--precision fp16 --precision 8a8w",
    "compile --model net.py:make -o out": "-- net.py:make -o out",
    "compile net.py:make --chip SM8750 -o out": "did you mean --soc",
    "compile net.py:make other.py:make -o out": "-- other.py:make -o out",
    "tune net.py:make --floor high": "--floor 35dB",
    "compile net.py:make -o out --soc SM8650 SM8750": "--soc SM8650 --soc SM8750",
    "compile net.py:make --soc SM8650 fp16 -o out": "-- net.py:make --soc SM8650 --precision fp16 -o out",
    "compile net.py:make --precison fp16": "did you mean --precision",
    "compile": "for example",
    "compile net.py:make -o out --precision": "fp16",
    "compile net.py:make -o out --timeout 10m": "such as 900",
    "example here": "leave here out",
    "gate --suite models.toml -k net": "a flag of nox -s test_lowering",
    "compile net.py:make -o out --offline": "a flag of nox -s provision",
    "gate --suite models.toml -z net": "leave -z out",
    "audit net.py:make --html": "report -- --format html",
    "compile net.pkl -o out": "pickle.load",
    "run programs/nett.pte": "did you mean net.pte",
    "compile net.py:make -o out --precision fp16 --precision": "expected one argument\n",
    "forecast net.onnx --phone S20": "use one of",
    "gate --suite suite.tom": "did you mean suite.toml",
    "gate --suite net.py": "compile -- MODEL --suite",
    "audit net.py:make --suite suite.toml": "a flag of nox -s gate",
    "compile net.py:make -o out -p fp16": "did you mean --precision",
    "compile net.py:make -o out --verbose": "did you mean --debug",
    "report --open": "xdg-open",
    "report --frobnicate": "it takes --format",
    "validate --fix": "repair -- MODEL",
    "example -o there": "mkdir",
    "audit net.py:make -o out": "--json answer.json",
    "run samples --chat hi": "CHECKPOINT",
    "run net.onnx --input 0.npy": "did you mean samples/0.npy",
    "run net.onnx --input samples": "samples/0.npy",
    "compile net.py:make --calibrate samples/0.npy -o out": "--calibrate samples",
    "compile net.py:make --calibrate net.json -o out": "numpy.save",
    "compile net.py:make -o net.py": "-o out",
    "divergence net.py:make --least=-3": "--least 30",
    "env --format yaml": "use one of: github, json, sh",
    "compile net.py:make -o out --jobs=all": "--jobs 2",
    "compile net.py:make -o out --through onnx --backend lpai": "net.py:make through onnx",
    "store gc --older-than week": "--older-than 30d",
    "test_upstream rework-ops": "did you mean rework-op",
    "divergence net.py:make --op gelu": "gelu@8a8w",
    "gate --precision fp16": "precision of [[case.NAME.run]]",
    "quantize net.py:make -o out --fp16": "--precision fp16",
    "compile net.py:make -o out --where": "quantize -- --where",
    "tune net.py:make --target 35": "-- net.py:make --floor 35",
    "tune net.py:make --floor -5dB": "found -5dB",
    "compile net.py:make -o net.pte": "found the name of a file",
    "compile ./net:make -o out": "did you mean ./net.py:make",
    "compile package -o out": "package/net.py:build",
    "compile samples -o out": "--calibrate samples",
    "compile programs -o out": "run -- programs/net.pte",
    "run programs": "programs/net.pte",
    "gate --suite Llama": "found a folder",
    "store gc --older 7d": "did you mean --older-than",
    "store --dry-run": "store -- gc --dry-run",
    "compile --suite models.toml -o out": "gate -- --suite models.toml",
    "run https://example.com/net.pte": "curl -LO https://example.com/net.pte",
    "inspect https://example.com/net.pte": "curl -LO https://example.com/net.pte",
    "compile net.py:make --calibrate https://example.com/images -o out": "curl -LO",
    "quantize net.py:make --precision 8a8w": "-o out",
    "gate models.toml": "-- --suite models.toml",
    "provision qnn-2.37": "-- --profile qnn-2.37",
    "report reports/": "-- --reports reports/",
    "store rm": "did you mean gc",
    "signing sign lib.so": "sign_lpai",
    "forecast net.onnx --phone iPhone": "Galaxy S25",
    "compile bert -o out": "found bert",
    "compile adapters -o out": "merge_and_unload",
    "run net.json": "net.pte",
    "run_device net.py": "compile -- ",
    "run_device net.json": "a record",
    "compile net.py:make --sok SM8750 -o out": "did you mean --soc",
    "compile make -o out": "net.py:make",
    "adopt --repo there": "cd FOLDER",
    "chips --soc SM8750": "chips -- SM8750",
    "test_upstream --suite delegate": "test_upstream -- delegate",
    "store gc --results-gb 5": "QNN_CI_RESULTS_GB",
    "wrap net.onnx -o net.pte": "-- {}/net.onnx -o out",
    "compile net.py:make --calibrate photos -o out": "PIL.Image.open",
}
RIGHT = (
    "compile net.py:make --soc 8-elite --precision w8a16 -o out",
    "run net.onnx --input x=net.py",
    "compile net.onnx --calibrate net:make -o out",
    "check Llama",
    "gate",
)


def test_wrong_words_are_refused_with_no_package_at_hand(folder: Path) -> None:
    """Before any environment is made (-S: no package is seen)."""
    (folder / "net.py").write_text("def make(): ...\n")
    write(conv_model(), folder / "net.onnx")
    for name, text in (
        ("bert/config.json", '{"model_type": "bert"}'),
        ("adapters/adapter_config.json", "{}"),
        ("photos/0.jpg", ""),
        ("net.json", "{}"),
        ("suite.toml", ""),
        ("package/net.py", "def build(): ..."),
        ("samples/0.npy", ""),
        ("programs/net.pte", ""),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from provisioning.base.command_line import guard\n"
        "from qnn_ci.command import check\n"
        "for words in sys.argv[2:]:\n"
        "    verb, *rest = words.split()\n"
        "    try: code = guard(lambda: check(verb, rest, Path.cwd()) or 0, debug=False)\n"
        "    except SystemExit as end: code = end.code\n"
        "    print(code, file=sys.stderr)\n"
    )
    command = [sys.executable, "-S", "-c", script, str(ROOT)]
    environ = {name: value for name, value in os.environ.items() if name not in OF_USER}
    environ |= {"QNN_CI_STORE": str(folder / "store")}
    ran = subprocess.run(
        [*command, *WRONG], cwd=folder, env=environ, capture_output=True, text=True, check=True
    )
    said = re.split(r"^[23]\n", ran.stderr, flags=re.MULTILINE)
    hints = [hint.format(folder) for hint in WRONG.values()]
    assert [hint in text for hint, text in zip(hints, said, strict=False)] == [True] * len(WRONG), ran
    ran = subprocess.run([*command, *RIGHT], cwd=folder, capture_output=True, text=True, check=True)
    assert ran.stderr.split() == ["0"] * len(RIGHT)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("compile {model} -o {out} --jobs 2", "--jobs"),
        ("audit {model} --jobs 2", "--jobs"),
    ],
)
def test_a_flag_that_an_onnx_model_would_ignore_is_refused(
    words: str, flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = write(conv_model(), tmp_path / "net.onnx"), tmp_path / "out"
    assert main("qnn-ci", "", VERBS, words.format(model=model, out=out).split()) == 2
    assert f"leave {flag} out" in capsys.readouterr().err
    assert not out.exists()


def test_the_command_alone_is_a_map_of_few_verbs_and_completes_words() -> None:
    def type_words(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = f"exec 8>&1; exec {shlex.join([sys.executable, '-m', 'qnn_ci', *words])}"
        environ = {**os.environ, **variables}
        return subprocess.run(
            ["bash", "-c", command], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )

    shown, everything = type_words(), type_words("help", "all")
    assert (shown.returncode, everything.returncode) == (2, 0)
    verbs = {name for names in MAP.values() for name in names}
    assert len(verbs) <= 16 and verbs <= set(re.findall(r"^  (\w+)", shown.stdout, re.MULTILINE))
    assert set(re.findall(r"^  (\w+)", everything.stdout, re.MULTILINE)) == {*ALL} - {*OF_CLONE}
    assert type_words("help", "chips").stdout == type_words("chips", "--help").stdout
    assert type_words("version").stdout == type_words("--version").stdout
    refused = type_words("completion")
    assert refused.returncode == 2
    (line,) = re.findall(r"`(eval .+)`", refused.stderr)
    (shell,) = re.findall(r"completion (\w+)", line)
    assert "qnn-ci" in type_words("completion", shell).stdout

    def completed(line: str) -> list[str]:
        done = type_words(COMP_LINE=line, COMP_POINT=str(len(line)), _ARGCOMPLETE="1", COMP_TYPE="9")
        return re.split(r"\W*[\v\n ]\W*", done.stdout.strip())

    assert completed("qnn-ci compile net.py:make --prec") == ["--precision", "precision-file"]
    assert completed("qnn-ci compile net.py:make --precision 16a8") == ["16a8w"]
    assert completed("qnn-ci gate --soc SM875") == ["SM8750"]


def test_the_example_is_written_once_and_needs_no_environment(tmp_path: Path) -> None:
    home, environments = tmp_path / "home", tmp_path / "environments"
    home.mkdir()

    def code() -> int:
        command = [sys.executable, str(ROOT / "qnn_ci" / "command.py"), "example"]
        environ = {**os.environ, "QNN_CI_ENVIRONMENTS": str(environments)}
        return subprocess.run(command, cwd=home, env=environ, capture_output=True, check=False).returncode

    written = {"net.py", "models.toml", "net.onnx", "samples"}
    assert code() == 0 and {path.name for path in home.iterdir()} == written
    (home / "net.py").unlink()
    (home / "models.toml").write_text("mine")
    assert code() == 2 and {path.name for path in home.iterdir()} == written - {"net.py"}
    assert (home / "models.toml").read_text() == "mine"
    assert not environments.exists()
