// Code shared by the peers in Node: the count of jobs, their latencies, concurrent producers, and the command line.

import { openSync, writeSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { performance } from "node:perf_hooks";

export const REDIS = { host: "127.0.0.1", port: Number(process.env.PEERS_REDIS_PORT), maxRetriesPerRequest: null };
export const POSTGRES = process.env.PEERS_POSTGRES;

const WARM_UP = 2000; // jobs enqueued before the time is taken, for the compiler of Node
const BATCH = 1000; // jobs per bulk call
const file = (name, flags) => openSync(join(process.env.PEERS_FOLDER, name), flags);

let count = 0;
let written = 0;
let counts;

function write() {
  if (count === written) return;
  counts ??= file("count", "r+");
  const bytes = Buffer.alloc(8);
  bytes.writeBigInt64LE(BigInt(count));
  writeSync(counts, bytes, 0, 8, 8 * (1 + Number(process.env.PEERS_SLOT)));
  written = count;
}

/** Count a job: written every 64 jobs, and every 5 ms while the process works. */
export function tick() {
  count += 1;
  if (count - written >= 64) write();
}

/** Return the time in seconds since the epoch, finer than the milliseconds of Date.now(). */
export const now = () => (performance.timeOrigin + performance.now()) / 1000;

/** Record the latency from a time to now. */
export function note(enqueuedAt) {
  const bytes = Buffer.alloc(8);
  bytes.writeDoubleLE(now() - enqueuedAt);
  writeSync(file("latencies", "a"), bytes);
}

async function seconds(work) {
  const started = performance.now();
  await work();
  return (performance.now() - started) / 1000;
}

export async function concurrently(call, total, producers) {
  let left = total;
  const produce = async () => {
    while (left > 0) {
      left -= 1;
      await call();
    }
  };
  await Promise.all(Array.from({ length: producers }, produce));
}

async function inBatches(bulk, total) {
  for (let left = total; left > 0; left -= BATCH) await bulk(Math.min(left, BATCH));
}

/** Run the command of the command line with a peer: { clear, enqueue, bulk, probe, work, chains, fanOut }. */
export async function main(peer) {
  const [command, ...rest] = process.argv.slice(2);
  const total = Number(rest[0]);
  if (command === "work") {
    setInterval(write, 5);
    await peer.work(rest);
    return;
  }
  if (command === "clear") {
    await peer.clear();
  } else if (command === "enqueue") {
    await concurrently(peer.enqueue, WARM_UP, Number(rest[1]));
    console.log(await seconds(() => concurrently(peer.enqueue, total, Number(rest[1]))));
  } else if (command === "bulk") {
    await inBatches(peer.bulk, WARM_UP);
    console.log(await seconds(() => inBatches(peer.bulk, total)));
  } else if (command === "workflows") {
    for await (const line of createInterface({ input: process.stdin })) {
      const [shape, ...numbers] = line.split(" ");
      await peer[shape](...numbers.map(Number));
    }
  } else if (command === "probe") {
    for await (const _ of createInterface({ input: process.stdin })) await peer.probe(now());
  }
  process.exit(0);
}
