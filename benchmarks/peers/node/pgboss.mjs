// pg-boss on PostgreSQL: batches, the next one at once after a full one; with PEERS_NOTIFY, idle workers are notified.

import { PgBoss } from "pg-boss";
import pg from "pg";
import { main, note, POSTGRES, tick } from "./common.mjs";

const notify = Boolean(process.env.PEERS_NOTIFY);
const options = { connectionString: POSTGRES, max: 20, useListenNotify: notify };
let started;

async function boss() {
  started ??= (async () => {
    const made = new PgBoss(options);
    made.on("error", console.error);
    await made.start();
    return made;
  })();
  return started;
}

await main({
  clear: async () => {
    const made = await boss();
    for (const name of ["add", "probe"]) {
      if (!(await made.getQueue(name))) await made.createQueue(name, { notify });
    }
    const client = new pg.Client({ connectionString: POSTGRES });
    await client.connect();
    await client.query("TRUNCATE pgboss.job CASCADE");
  },
  enqueue: async () => (await boss()).send("add", { a: 1, b: 2 }),
  bulk: async (count) => (await boss()).insert("add", Array.from({ length: count }, () => ({ data: { a: 1, b: 2 } }))),
  probe: async (at) => (await boss()).send("probe", { at }),
  work: async ([batchSize, localConcurrency]) => {
    const made = await boss();
    const batches = { pollingIntervalSeconds: 0.5, batchSize: Number(batchSize), burstWhenBatchFull: true };
    const concurrent = { ...batches, localConcurrency: Number(localConcurrency) };
    await made.work("add", concurrent, async (jobs) => jobs.forEach(tick));
    await made.work("probe", batches, async (jobs) => jobs.forEach((job) => note(job.data.at)));
  },
});
