"""Why a program is not as its model: which operator is at fault, and what was tried against it."""
