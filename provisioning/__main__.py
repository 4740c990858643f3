"""`python -m provisioning VERB`."""

from __future__ import annotations

import sys

from provisioning.base.command_line import Verb, main

VERBS = {
    "provision": Verb(
        "provisioning.verbs.provision",
        "fetch, verify and unpack the profile's components",
    ),
    "store": Verb("provisioning.verbs.store", "list, verify, repair or prune the store"),
    "env": Verb(
        "provisioning.verbs.env",
        "print the environment of a target: sh, github or json",
    ),
    "shell": Verb(
        "provisioning.verbs.shell", "open a shell, or run a command, in the environment of a target"
    ),
    "validate": Verb(
        "provisioning.verbs.validate",
        "check whether an environment can work",
        "executorch",
    ),
    "chips": Verb(
        "provisioning.verbs.chips",
        "list the chips, by QNN's name and by what people call them",
    ),
}

if __name__ == "__main__":
    sys.exit(
        main(
            "python -m provisioning",
            "Provision pinned SDKs for ExecuTorch on Qualcomm's NPUs, and know the environment.",
            VERBS,
            sys.argv[1:],
        )
    )
