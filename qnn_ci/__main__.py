"""`python -m qnn_ci VERB`, as `qnn-ci VERB`."""

import sys

from qnn_ci import main

sys.exit(main())
