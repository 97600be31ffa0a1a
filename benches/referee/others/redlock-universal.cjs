// redlock-universal, with its defaults except for retries that fit into one TTL: 10, after 200 ms each.
"use strict";
const { createRedlock, IoredisAdapter } = require("redlock-universal");
const { contend } = require("./contend.cjs");

contend(({ clients, name, ttl }) => {
  const adapters = clients.map((client) => new IoredisAdapter(client));
  const redlock = createRedlock({ adapters, key: name, ttl, retryAttempts: 10 });
  let handle;
  return {
    acquire: async () => {
      handle = await redlock.acquire();
      return () => handle.acquiredAt + handle.ttl - Date.now();
    },
    release: () => redlock.release(handle),
  };
});
