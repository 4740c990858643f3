"""Does this executorch work with this QNN? The compiler is asked."""

from __future__ import annotations

from collections.abc import Iterator

from provisioning.base.commands import Fix, session
from provisioning.components import QNN_SDK
from provisioning.validation import CouldNotRun, NotApplicable, Problem, rule
from provisioning.validation.context import Context
from provisioning.validation.probe import Answer
from provisioning.validation.versions import hiding_packages, tree_of

_NO_DEVICE = 14001


@rule("compiler-answers", asks_compiler=True)
def compiler_answers(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, QNN_SDK)
    if not context.answers:
        raise NotApplicable("the SDK was provisioned for devices only, so it cannot lower models")
    if hiding_packages(context):
        raise NotApplicable("python-path tells why the compiler cannot be asked")
    for soc, answer in context.answers.items():
        if answer.step == "absent":
            raise CouldNotRun(
                f"{answer.detail} in {answer.interpreter}",
                context.host.installing,
            )
        if answer.step == "probe":
            raise CouldNotRun(
                f"asking the compiler of executorch in {answer.interpreter} failed: {answer.detail}",
                "put flatc on PATH, or name it in FLATC_EXECUTABLE" if "flatc" in answer.detail else "",
            )
        if not answer.made_device:
            yield _refusal(soc, answer, tree.named)
            continue
        held = {build_id for library in context.libraries for build_id in library.build_ids}
        if held and answer.build_id not in held:
            yield Problem(
                soc,
                f"the compiler loaded QNN {answer.build_id}, which is not in {tree.named}"
                f" ({', '.join(sorted(held))})",
            )


def _refusal(soc: str, answer: Answer, sdk: str) -> Problem:
    if answer.step == "adaptor":
        return Problem(
            soc,
            f"executorch in {answer.interpreter} has no working QNN adaptor: {answer.detail}",
            "install executorch's wheel for Linux on x86-64, or build its QNN backend",
        )
    if answer.step == "build id":
        return Problem(
            soc,
            f"the compiler cannot load libQnnHtp.so of {sdk}: {answer.detail}",
            Fix(
                "restore the SDK's libraries: {}; what else it lacks: {}",
                ("store", "repair"),
                ("validate", "--rule", "needed-resolved"),
            ),
        )
    if answer.step == "soc":
        return Problem(
            soc, answer.detail, "choose a chip that this executorch knows: manifests/socs.toml lists them"
        )
    if answer.code == _NO_DEVICE:
        return Problem(
            answer.build_id,
            f"executorch does not work with this QNN: creating an HTP device for {soc} failed with"
            f" {_NO_DEVICE}, invalid device configuration. The two are of releases that do not work together;"
            f" QNN said: {answer.detail.partition('; ')[0]}",
        )
    code = f" with {answer.code}" if answer.code is not None else ""
    fix = session("diagnose", str(answer.code)) if answer.code is not None else ""
    return Problem(soc, f"creating an HTP device failed{code}: {answer.detail}", fix)
