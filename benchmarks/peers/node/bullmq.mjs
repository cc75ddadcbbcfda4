// BullMQ on Redis; finished jobs are removed.

import { FlowProducer, Queue, Worker } from "bullmq";
import Redis from "ioredis";
import { concurrently, main, note, REDIS, tick } from "./common.mjs";

const options = { removeOnComplete: true, removeOnFail: true };
let opened;
const queue = () => (opened ??= new Queue("default", { connection: REDIS, defaultJobOptions: options }));

let made;
const flows = () => (made ??= new FlowProducer({ connection: REDIS }));
const step = (...children) => ({ name: "add", queueName: "default", data: { a: 1, b: 2 }, opts: options, children });
const chain = (length) => (length > 1 ? step(chain(length - 1)) : step());

await main({
  clear: () => new Redis(REDIS).flushall(),
  enqueue: () => queue().add("add", { a: 1, b: 2 }),
  bulk: (count) => queue().addBulk(Array.from({ length: count }, () => ({ name: "add", data: { a: 1, b: 2 } }))),
  probe: (at) => queue().add("probe", { at }),
  chains: (count, length, producers) => concurrently(() => flows().add(chain(length)), count, producers),
  fanOut: (width) => flows().add(step(...Array.from({ length: width }, () => step()))),
  work: async ([concurrency]) => {
    const run = async (job) => (job.name === "add" ? tick() : note(job.data.at));
    const worker = new Worker("default", run, { connection: REDIS, concurrency: Number(concurrency) });
    await worker.waitUntilReady();
  },
});
