"""`cl2r` with shards of a few images, as a program of its own: its first argument is how many."""

import sys

from cl2r.cli.main import main
from cl2r.gallery import indexing

if __name__ == "__main__":
    indexing.LARGEST_SHARD = int(sys.argv.pop(1))
    main()
