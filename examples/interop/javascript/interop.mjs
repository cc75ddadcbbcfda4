// The official JavaScript SDK of Open Job Spec, unmodified, with an Ojster server.
//
// node interop.mjs features URL                         try each feature; print "ok NAME" or "FAIL NAME: reason"
// node interop.mjs enqueue URL QUEUE COUNT TYPE...      enqueue COUNT jobs of each type; print their ids
// node interop.mjs work URL QUEUE COUNT SECONDS [all]   run COUNT jobs, for at most SECONDS; with "all", take all types

import assert from 'node:assert/strict';
import { setTimeout as sleep } from 'node:timers/promises';
import { DurableContext, HttpTransport, OJSClient, OJSWorker, batch, chain, group } from '@openjobspec/sdk';

const TYPES = ['javascript.greet', 'interop.echo'];

// Says which job types the worker has handlers for. The SDK does not, and would get jobs of every type.
function typedTransport(url) {
  const inner = new HttpTransport({ url });
  return {
    request: (options) =>
      inner.request(
        options.path === '/workers/fetch' ? { ...options, body: { ...options.body, job_types: TYPES } } : options,
      ),
  };
}

function worker(url, queues, done, typed) {
  const transport = typed ? typedTransport(url) : new HttpTransport({ url });
  const made = new OJSWorker({ url, queues, pollInterval: 100, heartbeatInterval: 1000, transport });
  made.register('javascript.greet', async (context) => {
    done();
    return { by: 'javascript', greeting: `Hello, ${context.job.args[0].name}!` };
  });
  made.register('interop.echo', async (context) => {
    done();
    return { by: 'javascript', echo: context.job.args[0] };
  });
  if (!typed) {
    made.register('javascript.flaky', async (context) => {
      if (context.attempt === 1) throw new Error('the first attempt fails');
      return { by: 'javascript', attempt: context.attempt };
    });
    made.register('javascript.large', async (context) => ({ text: 'x'.repeat(context.job.args[0]) }));
    made.register('javascript.durable', async (context) => {
      const steps = await DurableContext.create(transport, context.job.id, context.attempt);
      const first = await steps.sideEffect('attempt', async () => context.attempt);
      await steps.checkpoint(1, { first });
      if (context.attempt === 1) throw new Error('the first attempt fails');
      return { first, attempt: context.attempt };
    });
  }
  return made;
}

// Read a job or a workflow until it has ended.
async function ended(read) {
  let found;
  for (let tries = 0; tries < 200; tries++) {
    found = await read();
    if (['completed', 'discarded', 'cancelled', 'failed'].includes(found.state)) return found;
    await sleep(100);
  }
  throw new Error(`${found.id} is still ${found.state}`);
}

async function features(url) {
  const client = new OJSClient({ url });
  const queue = 'javascript-features';
  const step = (text) => ({ type: 'interop.echo', args: [{ text }], options: { queue } });

  const completes = async (definition) => {
    const { id } = await client.workflow(definition);
    assert.equal((await ended(() => client.getWorkflow(id))).state, 'completed');
  };

  const tries = {
    health: async () => assert.equal((await client.health()).status, 'ok'),
    manifest: async () => assert.ok((await client.manifest()).capabilities.workflows),
    enqueue: async () => {
      const job = await client.enqueue('interop.echo', [{ text: 'plain' }], { queue });
      assert.deepEqual((await client.getJob(job.id)).args, [{ text: 'plain' }]);
    },
    options: async () => {
      const job = await client.enqueue('interop.echo', [{ text: 'options' }], {
        queue,
        priority: 5,
        tags: ['red'],
        meta: { trace: 't1' },
        timeout: 5000,
        retry: { maxAttempts: 7 },
      });
      const found = await client.getJob(job.id);
      const shown = [found.queue, found.priority, found.tags, found.meta.trace, found.max_attempts];
      assert.deepEqual(shown, [queue, 5, ['red'], 't1', 7]);
    },
    delay: async () => {
      const job = await client.enqueue('interop.echo', [{ text: 'later' }], { queue, delay: '1h' });
      assert.equal(job.state, 'scheduled');
    },
    unique: async () => {
      const unique = { key: ['type', 'queue', 'args'], period: 'PT1H', onConflict: 'reject' };
      const options = { queue: 'javascript-unique', unique };
      await client.enqueue('interop.echo', [{ text: 'once' }], options);
      await assert.rejects(client.enqueue('interop.echo', [{ text: 'once' }], options), { name: 'OJSDuplicateError' });
    },
    'batch-enqueue': async () => assert.equal((await client.enqueueBatch([step('one'), step('two')])).length, 2),
    cancel: async () => {
      const job = await client.enqueue('interop.echo', [{ text: 'cancel' }], { queue: 'javascript-cancel' });
      assert.equal((await client.cancelJob(job.id)).state, 'cancelled');
    },
    queues: async () => assert.ok((await client.queues.list()).some((found) => found.name === queue)),
    'queue-stats': async () => {
      const stats = await client.queues.stats('javascript-unique');
      assert.equal(stats.available, 1, `QueueStats.available is ${stats.available}`);
    },
    pause: async () => {
      await client.queues.pause('javascript-unique');
      await client.queues.resume('javascript-unique');
    },
    'dead-letter': async () => assert.ok(Array.isArray(await client.queues.listDeadLetter())),
    cron: async () => {
      const made = { name: 'javascript-cron', cron: '0 3 * * *', type: 'interop.echo', args: [{ text: 'cron' }] };
      assert.equal((await client.cron.register(made)).name, 'javascript-cron');
      assert.ok((await client.cron.list()).cron_jobs.length);
      await client.cron.unregister('javascript-cron');
    },
    worker: async () => {
      const job = await client.enqueue('javascript.greet', [{ name: 'Ada' }], { queue });
      const found = await ended(() => client.getJob(job.id));
      assert.deepEqual(found.result, { by: 'javascript', greeting: 'Hello, Ada!' });
    },
    retry: async () => {
      const retry = { maxAttempts: 3, initialInterval: 'PT0.1S', jitter: false };
      const job = await client.enqueue('javascript.flaky', [], { queue, retry });
      const found = await ended(() => client.getJob(job.id));
      assert.deepEqual(found.result, { by: 'javascript', attempt: 2 });
    },
    'large-result': async () => {
      const job = await client.enqueue('javascript.large', [100_000], { queue });
      const found = await ended(() => client.getJob(job.id));
      assert.deepEqual(found.result, { text: 'x'.repeat(100_000) });
    },
    checkpoints: async () => {
      const retry = { maxAttempts: 3, initialInterval: 'PT0.1S', jitter: false };
      const job = await client.enqueue('javascript.durable', [], { queue, retry });
      const found = await ended(() => client.getJob(job.id));
      assert.deepEqual(found.result, { first: 1, attempt: 2 });
    },
    chain: () => completes(chain(step('one'), step('two'))),
    group: () => completes(group(step('one'), step('two'))),
    batch: () => completes(batch([step('one'), step('two')], { on_success: step('after') })),
  };

  const running = worker(url, [queue], () => {}, false);
  await running.start();
  for (const [name, attempt] of Object.entries(tries)) {
    try {
      await attempt();
      console.log(`ok ${name}`);
    } catch (error) {
      console.log(`FAIL ${name}: ${error.name}: ${error.message.split('\n')[0]}`);
    }
  }
  await running.stop();
}

async function enqueue(url, queue, count, types) {
  const client = new OJSClient({ url });
  for (let number = 0; number < count; number++) {
    for (const type of types) {
      const job = await client.enqueue(type, [{ name: 'Ada', text: `javascript ${number}` }], { queue });
      console.log(job.id);
    }
  }
}

async function work(url, queue, count, seconds, typed) {
  let handled = 0;
  const running = worker(url, [queue], () => handled++, typed);
  await running.start();
  const end = Date.now() + seconds * 1000;
  while (handled < count && running.currentState !== 'terminated' && Date.now() < end) await sleep(50);
  await running.stop();
}

const [command, url, queue, count, ...rest] = process.argv.slice(2);
if (command === 'features') await features(url);
else if (command === 'enqueue') await enqueue(url, queue, Number(count), rest);
else if (command === 'work') await work(url, queue, Number(count), Number(rest[0]), rest[1] !== 'all');
else throw new Error('give features, enqueue or work');
