// Contenders with lock libraries for Node.js: node-redlock and redis-semaphore. ../src/family.rs describes the protocol.
//
//   node locks.cjs PEER contend COUNT SECONDS HOLD_MS PAUSE_MS HOST:PORT…
//   node locks.cjs PEER keep    COUNT SECONDS TTL_MS  0        HOST:PORT…
"use strict";
const { Redis } = require("ioredis");
const { default: Redlock } = require("redlock");
const { RedlockMutex } = require("redis-semaphore");

const [peer, what, ...rest] = process.argv.slice(2);
const [count, seconds, millis, pauseMs] = rest.slice(0, 4).map(Number);
const addresses = rest.slice(4).map((address) => address.split(":"));
const TTL_MS = 10_000;
// Nobody gives up.
const PATIENCE_MS = 600_000;

const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));
const nowUs = () => Math.round((performance.timeOrigin + performance.now()) * 1000);
const connect = () => addresses.map(([host, port]) => new Redis({ host, port: Number(port) }));

// A function that acquires a lock and returns a function that releases it. Pauses between tries are the libraries' own.
const peers = {
  "node-redlock": () => {
    const redlock = new Redlock(connect(), { retryCount: -1 });
    redlock.on("error", () => {}); // each try that is refused
    return async (name) => {
      const lock = await redlock.acquire([name], TTL_MS);
      return () => lock.release();
    };
  },
  "redis-semaphore": () => {
    const clients = connect();
    return async (name) => {
      const mutex = new RedlockMutex(clients, name, { lockTimeout: TTL_MS, acquireTimeout: PATIENCE_MS, refreshInterval: 0 });
      await mutex.acquire();
      return () => mutex.release();
    };
  },
};

async function contend(who, events, end) {
  const acquire = peers[peer]();
  await sleep(500); // until all are connected
  while (Date.now() < end) {
    const asked = nowUs();
    const release = await acquire("family");
    const acquired = nowUs();
    if (millis > 0) await sleep(millis);
    events.push([who, asked, acquired, nowUs()]);
    await release();
    if (pauseMs > 0) await sleep(pauseMs);
  }
}

// Keeps this many locks with the library's own renewal. Prints how many it reports as lost.
const keepers = {
  "node-redlock": async (hold) => {
    const redlock = new Redlock(connect(), { retryCount: 10 });
    redlock.on("error", () => {});
    let [held, lost] = [0, 0];
    const done = Array.from({ length: count }, (_, index) =>
      redlock
        .using([`kept:${index}`], millis, async (signal) => {
          held += 1;
          if (held === count) hold.start();
          await hold.over;
          lost += signal.aborted ? 1 : 0;
        })
        .catch(() => (lost += 1)),
    );
    return { done, lost: () => lost };
  },
  "redis-semaphore": async (hold) => {
    const clients = connect();
    let lost = 0;
    const options = { lockTimeout: millis, acquireTimeout: PATIENCE_MS, onLockLost: () => (lost += 1) };
    const mutexes = Array.from({ length: count }, (_, index) => new RedlockMutex(clients, `kept:${index}`, options));
    await Promise.all(mutexes.map((mutex) => mutex.acquire()));
    hold.start();
    return { done: [hold.over.then(() => Promise.all(mutexes.map((mutex) => mutex.release())))], lost: () => lost };
  },
};

async function keep() {
  const hold = {};
  const started = new Promise((start) => (hold.start = start));
  hold.over = started.then(async () => {
    console.log("held");
    await sleep(seconds * 1000);
    console.log(`kept ${running.lost()}`);
    await sleep(500); // while the keys are counted
  });
  const running = await keepers[peer](hold);
  await Promise.all(running.done);
}

async function main() {
  if (what === "keep") {
    await keep();
  } else {
    const [events, end] = [[], Date.now() + 500 + seconds * 1000];
    const all = Array.from({ length: count }, (_, who) => contend(who, events, end));
    setTimeout(() => console.log("ready"), 500);
    await Promise.all(all);
    for (const event of events) console.log(event.join(" "));
  }
  process.exit(0);
}

main().catch((error) => {
  console.error(String(error));
  process.exit(1);
});
