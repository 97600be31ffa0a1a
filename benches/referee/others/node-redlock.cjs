// redlock by Mike Marcacci, with its defaults except for retries that fit into one TTL: 5, after up to 400 ms each.
"use strict";
const { default: Redlock } = require("redlock");
const { contend } = require("./contend.cjs");

contend(({ clients, name, ttl }) => {
  const redlock = new Redlock(clients, { retryCount: 5 });
  redlock.on("error", () => {}); // each try that is refused
  let lock;
  return {
    acquire: async () => {
      lock = await redlock.acquire([name], ttl);
      return () => lock.expiration - Date.now();
    },
    release: () => lock.release(),
  };
});
