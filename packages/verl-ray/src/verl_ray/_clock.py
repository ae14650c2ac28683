"""When this package began to be imported, so that start-up reports can tell imports apart."""

import time

IMPORTED_AT = time.time()
