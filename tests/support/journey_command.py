"""What `python -m ci …` is in the environments of journeys: the same, with the templates of the whole run."""

import runpy
import sys
from pathlib import Path

import templates  # type: ignore[import-not-found]  # beside this file

if __name__ == "__main__":
    # As Python itself does for -m.
    sys.path[0], sys.argv = str(Path.cwd()), sys.argv[2:]
    templates.use_shared()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
