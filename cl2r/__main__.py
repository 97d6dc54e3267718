"""`python -m cl2r` is the program `cl2r`."""

import os
import sys
from pathlib import Path

# Python puts the working directory first on the path: a user's own analysis.py or studies/ there must not be found
# instead of this project's.
if sys.path and sys.path[0] in ("", os.getcwd()) and Path.cwd() != Path(__file__).resolve().parents[1]:
    del sys.path[0]

from cl2r.cli.main import main

main()
