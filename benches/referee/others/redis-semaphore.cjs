// RedlockMutex of redis-semaphore. Its defaults, but for a wait of one TTL, and no renewal: no hold here needs one. It states no
// validity; the documentation has the lock end one lockTimeout after it was acquired.
"use strict";
const { RedlockMutex } = require("redis-semaphore");
const { contend } = require("./contend.cjs");

contend(({ clients, name, ttl }) => {
  let mutex;
  return {
    acquire: async () => {
      mutex = new RedlockMutex(clients, name, { lockTimeout: ttl, acquireTimeout: ttl, refreshInterval: 0 });
      await mutex.acquire();
      return () => ttl;
    },
    release: () => mutex.release(),
  };
});
