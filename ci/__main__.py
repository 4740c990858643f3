"""`python -m ci VERB`."""

from __future__ import annotations

import sys

from ci.lanes.registry import stages
from provisioning.base.command_line import Verb, main

VERBS = {
    **{
        stage.name: Verb(stage.verb, stage.summary, stage.environment or head.environment)
        for head, stage in stages()
    },
    "gate": Verb(
        "ci.gate.verb", "run the stages that decide a pull request, and summarize them", "executorch"
    ),
    "report": Verb(
        "ci.report.verb",
        "show reports/, or render them as JUnit, SARIF, a job summary or a page",
    ),
    "build_runner": Verb(
        "ci.builds.verb:RUNNER", "build qnn_executor_runner against the executorch wheel", "executorch"
    ),
    "build_x86": Verb(
        "ci.builds.verb:X86", "build ExecuTorch's QNN adaptors, backend and runner from source", "executorch"
    ),
    "build_android": Verb(
        "ci.builds.verb:ANDROID", "build the backend and the runner for Android from source", "executorch"
    ),
    "build_linux_arm64": Verb(
        "ci.builds.verb:LINUX_ARM64",
        "build the backend and the runner for embedded Linux from source",
        "executorch",
    ),
    "bundle": Verb(
        "ci.device.verb:BUNDLE",
        "put the files that a device needs into one folder, and check that they match",
    ),
    "run_device": Verb("ci.device.verb", "push a bundle to a device, run it and fetch its output"),
    "diagnose": Verb(
        "ci.inspect.diagnose_verb",
        "explain failures of QNN, FastRPC, the loader and ExecuTorch: LOG or 14001",
    ),
    "example": Verb(
        "ci.model_commands.example",
        "write a small model and its suite, to try the other commands on",
    ),
    "compile": Verb(
        "ci.model_commands.compile", "compile one model, run it on the HTP emulator and compare", "executorch"
    ),
    "quantize": Verb(
        "ci.model_commands.quantize",
        "quantize one model: an .onnx with QDQ nodes, or a quantized .pt2",
        "executorch",
    ),
    "audit": Verb(
        "ci.model_commands.audit",
        "show which operators run on the NPU at each precision, and why others fall back to the CPU",
        "executorch",
    ),
    "forecast": Verb("ci.model_commands.forecast", "estimate latency on phones without one", "onnx"),
    "run": Verb(
        "ci.model_commands.run",
        "run a compiled program: its outputs and time, or what a language model says; compare two runs",
        "executorch",
    ),
    "repair": Verb(
        "ci.model_commands.repair",
        "rewrite a model where a known fault affects it, prove each rewrite, compile and compare",
        "executorch",
    ),
    "divergence": Verb(
        "ci.model_commands.divergence",
        "find the operator that the HTP emulator computes differently from the quantized model",
        "executorch",
    ),
    "tune": Verb(
        "ci.model_commands.tune",
        "find which operators need the more exact of two precisions to reach an accuracy",
        "executorch",
    ),
    "matrix": Verb(
        "ci.github.matrix",
        "print the suite as a CI matrix, in shards of equal length",
    ),
    "inspect": Verb("ci.inspect.verb", "show what is inside a program, and whether an SDK can load it"),
    "check": Verb(
        "ci.lanes.llm.verb:CHECK",
        "compare a compiled language model with the float model, part by part",
        "llm",
    ),
    "wrap": Verb(
        "ci.model_commands.wrap",
        "write the ExecuTorch program of a QNN context binary, such as AI Hub's",
        "executorch",
    ),
    "buck_parity": Verb("ci.parity.verb", "check that ExecuTorch's Buck and CMake files build the same"),
    "signing": Verb("ci.signing.verb", "inspect or verify the signatures of Hexagon libraries"),
    "sign_lpai": Verb("ci.signing.verb:SIGN_LPAI", "sign the Hexagon libraries that LPAI needs"),
    "image": Verb("ci.image.verb", "build a container image, or check that it can be rebuilt bit for bit"),
    "shell": Verb("ci.image.shell", "open a shell, or run a command, in an image"),
    "adopt": Verb(
        "ci.github.adopt", "write the workflows that gate a repository's models in every pull request"
    ),
    "github": Verb("ci.github", "run a part of a GitHub workflow: --help names them"),
}

if __name__ == "__main__":
    sys.exit(
        main(
            "python -m ci",
            "The CI stages for ExecuTorch on Qualcomm's NPUs.",
            VERBS,
            sys.argv[1:],
        )
    )
