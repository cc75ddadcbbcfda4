// graphile-worker on PostgreSQL, with the settings of https://worker.graphile.org/docs/performance.

import { makeWorkerUtils, run } from "graphile-worker";
import pg from "pg";
import { main, note, POSTGRES, tick } from "./common.mjs";

const pool = new pg.Pool({ connectionString: POSTGRES, max: 25 });
let made;
const utils = () => (made ??= makeWorkerUtils({ pgPool: pool }));

await main({
  clear: async () => {
    await (await utils()).migrate();
    await pool.query("TRUNCATE graphile_worker._private_jobs");
  },
  enqueue: async () => (await utils()).addJob("add", { a: 1, b: 2 }),
  bulk: async (count) =>
    (await utils()).addJobs(
      Array.from({ length: count }, () => ({ identifier: "add", payload: { a: 1, b: 2 } })),
    ),
  probe: async (at) => (await utils()).addJob("probe", { at }),
  work: async ([concurrency]) => {
    process.env.NO_LOG_SUCCESS = "1";
    const worker = {
      connectionString: POSTGRES,
      concurrentJobs: Number(concurrency),
      maxPoolSize: Number(concurrency) + 1,
      localQueue: { size: 500 },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    };
    const taskList = { add: async () => tick(), probe: async ({ at }) => note(at) };
    await run({ preset: { worker }, taskList });
  },
});
