"""The rule that asks instead of comparing: does this executorch drive this QNN?"""

from __future__ import annotations

from collections.abc import Iterator

from provisioning.findings import Severity
from provisioning.validation import CouldNotRun, NotApplicable, Problem, rule
from provisioning.validation.context import Context, Need
from provisioning.validation.probe import Answer
from provisioning.validation.versions import tree_of

_NO_DEVICE = 14001


@rule(
    "compiler-answers",
    Severity.ERROR,
    Need.COMPILER,
    summary="executorch's compiler loads this QNN SDK and creates an HTP device for the chip",
    why="""
        Versions that look right may still not work together: of five neighbouring QNN releases, an executorch
        was measured to drive a single one. So the compiler itself is asked, in a process of its own: it
        imports the QNN adaptor, reads the SDK's build id and creates an HTP device, which is the step where a
        wrong pair fails with 14001.
    """,
    example="SM8650: executorch cannot drive this QNN (v2.48.40.260702151143): creating an HTP device failed"
    " with 14001, invalid device configuration",
    mend="use the QNN that this executorch was measured with: unset QNN_SDK_ROOT and nox -s provision",
)
def compiler_answers(context: Context) -> Iterator[Problem]:
    tree = tree_of(context, "qnn-sdk")
    if not context.answers:
        raise NotApplicable("a directory named by --tree is not asked, only an environment is")
    for soc, answer in context.answers.items():
        if answer.step == "absent":
            raise CouldNotRun(
                f"{answer.detail} in {answer.interpreter}",
                "nox -s validate, which has executorch, or install the profile's packages",
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
            "validate --rule needed-resolved names what it lacks",
        )
    if answer.step == "soc":
        return Problem(
            soc, answer.detail, "choose a chip that this executorch knows: manifests/socs.toml lists them"
        )
    if answer.code == _NO_DEVICE:
        return Problem(
            soc,
            f"executorch cannot drive this QNN ({answer.build_id}): creating an HTP device failed with"
            f" {_NO_DEVICE}, invalid device configuration. The two are of releases that do not work together;"
            f" QNN said: {answer.detail}",
        )
    code = f" with {answer.code}" if answer.code is not None else ""
    return Problem(soc, f"creating an HTP device failed{code}: {answer.detail}")
