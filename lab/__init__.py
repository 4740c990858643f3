"""The laboratory: what measures things for manifests/, and what keeps this repository in order.

`nox -s lab -- VERB …` runs a verb in the environment that it needs; `nox -s lab -- --help` lists them. It may
import all of ci/ and provisioning/. Nothing of the product imports it, no fix that a user reads names it, and
no wheel has it (tests/unit/test_floors.py holds that). Its tests are tests/lab/.
"""
