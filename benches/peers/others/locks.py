"""Contenders with python-redis-lock, whose waiters are woken by BLPOP, on one master. See ../src/family.rs.

python locks.py python-redis-lock contend COUNT SECONDS HOLD_MS PAUSE_MS HOST:PORT
python locks.py python-redis-lock keep    COUNT SECONDS TTL_MS  0        HOST:PORT
"""

import sys
import threading
import time

import redis_lock
from redis import StrictRedis

TTL_S = 10


def connect(address):
    host, port = address.split(":")
    return StrictRedis(host=host, port=int(port))


def now_us():
    return time.time_ns() // 1000


def contend(count, seconds, hold_ms, pause_ms, address):
    events = []
    end = time.time() + 0.5 + seconds

    def contender(who):
        client = connect(address)
        client.ping()
        time.sleep(0.5)  # until all are connected
        while time.time() < end:
            lock = redis_lock.Lock(client, "family", expire=TTL_S)
            asked = now_us()
            lock.acquire()
            acquired = now_us()
            time.sleep(hold_ms / 1000)
            events.append((who, asked, acquired, now_us()))
            lock.release()
            time.sleep(pause_ms / 1000)

    threads = [threading.Thread(target=contender, args=(who,)) for who in range(count)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    for event in events:
        print(*event)


def keep(count, seconds, ttl_ms, _, address):
    client = connect(address)
    # A thread for each lock renews it.
    locks = [redis_lock.Lock(client, f"kept:{index}", expire=ttl_ms // 1000, auto_renewal=True) for index in range(count)]
    for lock in locks:
        lock.acquire()
    print("held", flush=True)
    time.sleep(seconds)
    print("kept", sum(not lock._held for lock in locks), flush=True)
    time.sleep(0.5)  # while the keys are counted
    for lock in locks:
        lock.release()


_, _, what, count, seconds, millis, pause_ms, address = sys.argv
{"contend": contend, "keep": keep}[what](int(count), float(seconds), int(millis), int(pause_ms), address)
