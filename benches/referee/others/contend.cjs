// The loop of each contender in JavaScript, as in ../src/contender/main.rs.
//
// A library exports { acquire, release }: acquire resolves to a function that returns the lock's remaining validity in ms, as the
// library reports it, or rejects.
"use strict";
const { spawn } = require("node:child_process");
const { Redis } = require("ioredis");

const number = (name) => Number(process.env[name] ?? 0);
const ttl = number("REDLATCH_DRILL_TTL_MS");
const name = process.env.REDLATCH_DRILL_NAME;
const sleep = (ms) => new Promise((wake) => setTimeout(wake, ms));

// CLOCK_MONOTONIC.
const ns = () => process.hrtime.bigint();
const say = (...words) => process.stdout.write(words.join(" ") + "\n");

const connect = () =>
  process.env.REDLATCH_MASTERS.split(",").map((url) => {
    const client = new Redis(url);
    client.on("error", () => {}); // it connects again by itself
    return client;
  });

async function visit(locks) {
  say("asked", ns());
  let left;
  try {
    left = await locks.acquire();
  } catch {
    say("refused", ns());
    return;
  }
  // In this order, a delay between the two readings only shortens the validity.
  const now = ns();
  say("acquired", now, now + BigInt(Math.round(left() * 1e6)));
  const stop = number("REFEREE_STOP_MS");
  if (stop > 0 && Math.random() < 0.05) {
    const script = `kill -STOP ${process.pid}; sleep ${stop / 1000}; kill -CONT ${process.pid}`;
    spawn("sh", ["-c", script], { stdio: "ignore" });
    await sleep(500);
  } else {
    await sleep(number("REFEREE_HOLD_MS") * Math.random() * (Math.random() < 0.8 ? 0.05 : 1));
  }
  say("released", ns());
  await locks.release().catch(() => {});
  say("done", ns());
  await sleep(Math.random() * 20);
}

async function contend(open) {
  const end = performance.now() + number("REDLATCH_DRILL_TIME_MS");
  const locks = open({ clients: connect(), name, ttl });
  while (performance.now() < end) await visit(locks);
  process.exit(0);
}

module.exports = { contend };
