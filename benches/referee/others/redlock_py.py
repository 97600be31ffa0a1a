"""redlock-py, with its defaults except for retries that fit into one TTL: 10 tries, 200 ms apart."""

import time

from contend import NAME, TTL_MS, URLS, contend
from redlock import Redlock

manager = Redlock(URLS, retry_count=10)
held = None


def acquire():
    global held
    held = manager.lock(NAME, TTL_MS)
    return time.monotonic() + held.validity / 1000 if held else None


contend(acquire, lambda: manager.unlock(held))
