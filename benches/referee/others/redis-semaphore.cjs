// RedlockMutex of redis-semaphore, with its defaults except for a wait of one TTL, and without renewal, which no hold here needs.
// It states no validity; according to its documentation, a lock ends one lockTimeout after its acquisition.
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
