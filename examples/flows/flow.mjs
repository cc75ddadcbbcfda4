// A worker for flows in JavaScript, by the protocol in docs/flows.md. It needs Node 20 and nothing else.
//
// node flow.mjs URL [COUNT]     run flows of the type "js.order"; stop when COUNT of them have ended
//
// A flow asks for one thing after the other, or for several with Promise.all. Promise.race would need `seen`, the order
// in which it has seen ends.

const [url, count = 'Infinity'] = process.argv.slice(2);
const WORKER = `node-${process.pid}`;
const QUEUES = ['default'];

async function call(method, path, body) {
  const answer = await fetch(`${url}/ojs/v1${path}`, {
    method,
    headers: { 'Content-Type': 'application/json' },
    body: body && JSON.stringify(body),
  });
  const content = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${JSON.stringify(content)}`);
  return content;
}

// One run of the function of a flow, from its start to the point where it waits or ends.
class Flow {
  constructor(job, answer) {
    this.job = job;
    this.take(answer);
    this.numbers = new Map(); // how often each name has come
    this.fresh = this.records.size ? [] : [{ key: '!begin', kind: 'begin', name: '', asked_at: this.now }];
  }

  take({ records, now, version }) {
    this.records ??= new Map();
    for (const record of records) this.records.set(record.key, record);
    Object.assign(this, { now, version });
  }

  get isCancelled() {
    return this.records.has('!cancel');
  }

  // The key follows from the place in the program, so that it is the same each time the function runs.
  key(name) {
    const number = (this.numbers.get(name) ?? 0) + 1;
    this.numbers.set(name, number);
    return number === 1 ? name : `${name}#${number}`;
  }

  turn(more) {
    const { attempt, started_at, id } = this.job;
    const records = this.fresh.splice(0);
    const body = { worker_id: WORKER, attempt, started_at, version: this.version, records, ...more };
    return call('POST', `/jobs/${id}/flow`, body);
  }

  // The result of a record; a promise that never ends if the flow has to wait for it.
  ask(record) {
    const known = this.records.get(record.key);
    if (!known) this.fresh.push({ ...record, asked_at: this.now });
    if (!known?.ended_at) return new Promise(() => {});
    if (known.error) return Promise.reject(new Error(JSON.stringify(known.error)));
    return Promise.resolve(known.result ?? null);
  }

  run(type, ...args) {
    const key = this.key(type);
    const step = { type, args, allow_failure: true, display_name: key };
    return this.ask({ key, kind: 'run', name: type, step });
  }

  receive(name) {
    return this.ask({ key: this.key(name), kind: 'receive', name });
  }

  // A local step: its result is on disk before the function gets it.
  async step(name, make) {
    const key = this.key(name);
    if (this.records.has(key)) return this.ask({ key });
    const saved = (async () => {
      const result = (await make()) ?? null;
      this.fresh.push({ key, kind: 'step', name, asked_at: this.now, ended_at: this.now, result });
      await this.turn({});
      return result;
    })();
    this.steps = Promise.allSettled([this.steps, saved]);
    return saved;
  }

  // Wait until nothing can go on: the function has ended, or it waits for the server.
  async idle() {
    for (;;) {
      await new Promise((resolve) => setTimeout(resolve));
      const running = this.steps;
      if (!running) return null;
      await running;
      if (this.steps === running) this.steps = null;
    }
  }
}

const flows = {
  'js.order': async (flow, numbers) => {
    const prices = await Promise.all(numbers.map((number) => flow.run('price', number)));
    const total = await flow.step('total', async () => prices.reduce((sum, price) => sum + price, 0));
    return (await flow.receive('approval')) ? `approved: ${total}` : 'refused';
  },
};

// Run a flow as far as it comes; return whether it has ended.
async function execute(job) {
  const flow = new Flow(job, await call('GET', `/jobs/${job.id}/flow`));
  const worker = { job_id: job.id, worker_id: WORKER };
  for (;;) {
    if (flow.isCancelled) {
      await flow.turn({ was_cancelled: true });
      return true;
    }
    flow.numbers.clear();
    const outcome = flows[job.type](flow, ...job.args).then((result) => ({ result }), (error) => ({ error }));
    const ended = await Promise.race([outcome, flow.idle()]);
    if (ended?.error) {
      await call('POST', '/workers/nack', { ...worker, error: { code: 'flow_failed', message: ended.error.message } });
      return true;
    }
    if (ended) {
      await call('POST', '/workers/ack', { ...worker, result: ended.result });
      return true;
    }
    const known = Math.max(0, ...[...flow.records.values()].map(({ number }) => number ?? 0));
    const answer = await flow.turn({ suspends: true, ended: known });
    if (answer.suspended) return false; // the flow has left this worker, and comes again when something has ended
    flow.take(await call('GET', `/jobs/${job.id}/flow`));
  }
}

const request = { queues: QUEUES, worker_id: WORKER, job_types: Object.keys(flows), wait_ms: 10_000 };
for (let ended = 0; ended < Number(count); ) {
  const { jobs } = await call('POST', '/workers/fetch', request);
  for (const job of jobs) ended += await execute(job);
}
