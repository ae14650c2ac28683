"""When this package began to be imported, so that start-up reports can tell imports apart."""

import time

__all__ = ["IMPORTED_AT"]


IMPORTED_AT = time.time()
