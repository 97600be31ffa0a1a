"""The loop of each contender in Python, as in ../src/contender/main.rs.

A library gives two functions: acquire() returns until when the lock is valid by the library's own words, in seconds of
time.monotonic(), or None; release() releases it.
"""

import logging
import os
import random
import subprocess
import time

URLS = os.environ["REDLATCH_MASTERS"].split(",")
NAME = os.environ["REDLATCH_DRILL_NAME"]
TTL_MS = int(os.environ["REDLATCH_DRILL_TTL_MS"])
TIME_MS = int(os.environ["REDLATCH_DRILL_TIME_MS"])
HOLD_S = int(os.environ.get("REFEREE_HOLD_MS", "0")) / 1000
STOP_S = int(os.environ.get("REFEREE_STOP_MS", "0")) / 1000

# Each missing reply is logged with its stack.
logging.disable(logging.CRITICAL)


def say(word, *times):
    print(word, *(int(at * 1e9) for at in times), flush=True)


def visit(acquire, release):
    say("asked", time.monotonic())
    try:
        until = acquire()
    except Exception:
        until = None
    if until is None:
        say("refused", time.monotonic())
        return
    say("acquired", time.monotonic(), until)
    if STOP_S > 0 and random.random() < 0.05:
        script = f"kill -STOP {os.getpid()}; sleep {STOP_S}; kill -CONT {os.getpid()}"
        subprocess.Popen(["sh", "-c", script], stdout=subprocess.DEVNULL)
        time.sleep(0.5)
    else:
        time.sleep(HOLD_S * random.random() * (0.05 if random.random() < 0.8 else 1))
    say("released", time.monotonic())
    try:
        release()
    except Exception:
        pass
    say("done", time.monotonic())
    time.sleep(random.random() * 0.02)


def contend(acquire, release):
    end = time.monotonic() + TIME_MS / 1000
    while time.monotonic() < end:
        visit(acquire, release)
