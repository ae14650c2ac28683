"""Command line of verl-ray."""

import sys

from verl_ray.doctor import main

if __name__ == "__main__":
    sys.exit(main())
