"""Redlock of pottery, with its defaults and a wait of one TTL. It reports a lock's validity through locked(), which asks the masters."""

import time

from contend import NAME, TTL_MS, URLS, contend
from pottery import Redlock
from redis import Redis

lock = Redlock(key=NAME, masters={Redis.from_url(url) for url in URLS}, auto_release_time=TTL_MS / 1000)


def acquire():
    if not lock.acquire(timeout=TTL_MS / 1000):
        return None
    asked = time.monotonic()
    return asked + lock.locked()


contend(acquire, lock.release)
