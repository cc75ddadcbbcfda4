// BullMQ on Redis; finished jobs are removed.

import { Queue, Worker } from "bullmq";
import Redis from "ioredis";
import { main, note, REDIS, tick } from "./common.mjs";

const options = { removeOnComplete: true, removeOnFail: true };
let opened;
const queue = () => (opened ??= new Queue("default", { connection: REDIS, defaultJobOptions: options }));

await main({
  clear: () => new Redis(REDIS).flushall(),
  enqueue: () => queue().add("add", { a: 1, b: 2 }),
  bulk: (count) => queue().addBulk(Array.from({ length: count }, () => ({ name: "add", data: { a: 1, b: 2 } }))),
  probe: (at) => queue().add("probe", { at }),
  work: async ([concurrency]) => {
    const run = async (job) => (job.name === "add" ? tick() : note(job.data.at));
    const worker = new Worker("default", run, { connection: REDIS, concurrency: Number(concurrency) });
    await worker.waitUntilReady();
  },
});
