"""Command line of verl-dispatch."""

import sys

from verl_dispatch.local.replay import main

if __name__ == "__main__":
    sys.exit(main())
