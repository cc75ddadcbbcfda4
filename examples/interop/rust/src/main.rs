//! The official Rust SDK of Open Job Spec, unmodified, with an Ojster server.
//!
//! interop features URL                         try each feature; print "ok NAME" or "FAIL NAME: reason"
//! interop enqueue URL QUEUE COUNT TYPE...      enqueue COUNT jobs of each type; print their ids
//! interop work URL QUEUE COUNT SECONDS [all]   run COUNT jobs, for at most SECONDS; with "all", take all types

use ojs::{
    batch, chain, group, BatchCallbacks, Client, ConflictStrategy, CronJobRequest, EnqueueOption, Job, JobContext,
    JobRequest, JobState, OjsError, OverlapPolicy, RetryPolicy, Step, TransportMethod as Method, UniqueDimension,
    UniquePolicy, Worker, WorkflowDefinition, WorkflowState,
};
use serde_json::json;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

const TYPES: [&str; 2] = ["rust.greet", "interop.echo"];

async fn change_rule(url: &str, worker: &Worker, method: Method) -> ojs::Result<()> {
    let body = (method == Method::Patch).then(|| json!({"allowed_types": TYPES}));
    let path = format!("/admin/worker-rules/{}", worker.id());
    let client = Client::builder().url(url).build()?;
    client.transport().request(method, &path, body, false).await.map(|_| ())
}

async fn new_worker(url: &str, queue: &str, handled: Arc<AtomicUsize>, typed: bool) -> ojs::Result<Worker> {
    let worker = Worker::builder()
        .url(url)
        .queues(vec![queue])
        .poll_interval(Duration::from_millis(100))
        .heartbeat_interval(Duration::from_secs(1))
        .build()?;
    if typed {
        // The SDK does not say which job types it handles, and its worker has no place for it. A rule of the server
        // for this worker does the same.
        change_rule(url, &worker, Method::Patch).await?;
    }
    let count = handled.clone();
    worker
        .register("rust.greet", move |ctx: JobContext| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                let name: String = ctx.job.arg("name")?;
                Ok(json!({"by": "rust", "greeting": format!("Hello, {name}!")}))
            }
        })
        .await;
    worker
        .register("interop.echo", move |ctx: JobContext| {
            handled.fetch_add(1, Ordering::SeqCst);
            async move { Ok(json!({"by": "rust", "echo": ctx.job.args[0]})) }
        })
        .await;
    if !typed {
        worker
            .register("rust.flaky", |ctx: JobContext| async move {
                if ctx.attempt == 1 {
                    return Err(OjsError::Handler("the first attempt fails".into()));
                }
                Ok(json!({"by": "rust", "attempt": ctx.attempt}))
            })
            .await;
    }
    Ok(worker)
}

fn expect<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    if found == expected {
        return Ok(());
    }
    Err(format!("{found:?} instead of {expected:?}").into())
}

async fn job_ends(client: &Client, id: &str) -> Result<Job, Box<dyn Error + Send + Sync>> {
    for _ in 0..200 {
        let job = client.get_job(id).await?;
        if job.state.is_some_and(|state| state.is_terminal()) {
            return Ok(job);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(format!("job {id} has not ended").into())
}

async fn workflow_completes(client: &Client, definition: WorkflowDefinition) -> Outcome {
    let workflow = client.create_workflow(definition).await?;
    for _ in 0..200 {
        let found = client.get_workflow(&workflow.id).await?;
        if !matches!(found.state, WorkflowState::Pending | WorkflowState::Running) {
            return expect(found.state, WorkflowState::Completed);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Err(format!("workflow {} has not ended", workflow.id).into())
}

fn nightly(name: &str) -> CronJobRequest {
    CronJobRequest {
        name: name.into(),
        cron: "0 3 * * *".into(),
        timezone: "UTC".into(),
        job_type: "interop.echo".into(),
        args: Some(json!([{"text": "cron"}])),
        meta: None,
        options: None,
        overlap_policy: OverlapPolicy::Skip,
        enabled: true,
        description: None,
    }
}

async fn try_feature(name: &str, client: &Client) -> Outcome {
    let queue = "rust-features";
    let step = |text: &str| Step::new("interop.echo", json!({"text": text})).queue(queue);
    let enqueue = |text: &str| client.enqueue("interop.echo", json!({"text": text})).queue(queue);
    match name {
        "health" => expect(client.health().await?.status.as_str(), "ok"),
        "manifest" => expect(client.manifest().await?.capabilities.workflows, true),
        "enqueue" => {
            let job = enqueue("plain").send().await?;
            expect(client.get_job(&job.id).await?.args, json!([{"text": "plain"}]))
        }
        "get-job" => {
            let job = enqueue("get").send().await?;
            expect(client.get_job(&job.id).await?.id, job.id)
        }
        "cancel-job" => {
            let job = enqueue("cancel").delay(Duration::from_secs(3600)).send().await?;
            expect(client.cancel_job(&job.id).await?.state, Some(JobState::Cancelled))
        }
        "create-workflow" => client
            .create_workflow(chain(vec![step("one")]).name("plain"))
            .await
            .map(|_| ())
            .map_err(Into::into),
        "options" => {
            let job = enqueue("options")
                .priority(5)
                .tags(vec!["red".into()])
                .meta([("trace".to_string(), json!("t1"))].into())
                .timeout(Duration::from_secs(5))
                .retry(RetryPolicy::new().max_attempts(7))
                .send()
                .await?;
            let found = client.get_job(&job.id).await?;
            let meta = found.meta.and_then(|meta| meta.get("trace").cloned());
            expect(
                (
                    found.queue.as_str(),
                    found.priority,
                    found.tags,
                    meta,
                    found.max_attempts,
                ),
                (queue, 5, vec!["red".to_string()], Some(json!("t1")), Some(7)),
            )
        }
        "delay" => {
            let job = enqueue("later").delay(Duration::from_secs(3600)).send().await?;
            expect(job.state, Some(JobState::Scheduled))
        }
        "unique" => {
            let policy = UniquePolicy::new()
                .keys(vec![
                    UniqueDimension::Type,
                    UniqueDimension::Queue,
                    UniqueDimension::Args,
                ])
                .period("PT1H")
                .on_conflict(ConflictStrategy::Reject);
            let once = || {
                client
                    .enqueue("interop.echo", json!({"text": "once"}))
                    .queue("rust-unique")
                    .unique(policy.clone())
            };
            once().send().await?;
            match once().send().await {
                Err(OjsError::Server(error)) if error.is_duplicate() => Ok(()),
                other => Err(format!("{other:?} instead of a duplicate").into()),
            }
        }
        "batch-enqueue" => {
            let one = || {
                JobRequest::new("interop.echo", json!({"text": "one"})).with_option(EnqueueOption::Queue(queue.into()))
            };
            expect(client.enqueue_batch(vec![one(), one()]).await?.len(), 2)
        }
        "cancel" => {
            let job = enqueue("cancel").delay(Duration::from_secs(3600)).send().await?;
            expect(client.cancel_job(&job.id).await?.state, Some(JobState::Cancelled))
        }
        "queues" => expect(
            client.list_queues().await?.iter().any(|found| found.name == queue),
            true,
        ),
        "queue-stats" => expect(client.get_queue_stats("rust-unique").await?.stats.available, 1),
        "pause" => {
            client.pause_queue("rust-unique").await?;
            Ok(client.resume_queue("rust-unique").await?)
        }
        "dead-letter" => client
            .list_dead_letter_jobs(queue, 10, 0)
            .await
            .map(|_| ())
            .map_err(Into::into),
        "cron" => {
            expect(
                client.register_cron_job(nightly("rust-cron")).await?.name.as_str(),
                "rust-cron",
            )?;
            expect(client.list_cron_jobs().await?.is_empty(), false)?;
            Ok(client.unregister_cron_job("rust-cron").await?)
        }
        "register-cron" => {
            let made = client.register_cron_job(nightly("rust-plain")).await;
            client.unregister_cron_job("rust-plain").await?;
            expect(made?.name.as_str(), "rust-plain")
        }
        "worker" => {
            let job = client
                .enqueue("rust.greet", json!({"name": "Ada"}))
                .queue(queue)
                .send()
                .await?;
            let found = job_ends(client, &job.id).await?;
            expect(found.result, Some(json!({"by": "rust", "greeting": "Hello, Ada!"})))
        }
        "retry" => {
            let policy = RetryPolicy::new()
                .max_attempts(3)
                .initial_interval("PT0.1S")
                .jitter(false);
            let job = client
                .enqueue("rust.flaky", json!([]))
                .queue(queue)
                .retry(policy)
                .send()
                .await?;
            let found = job_ends(client, &job.id).await?;
            expect(found.result, Some(json!({"by": "rust", "attempt": 2})))
        }
        "chain" => workflow_completes(client, chain(vec![step("one"), step("two")]).name("chain")).await,
        "group" => workflow_completes(client, group(vec![step("one"), step("two")]).name("group")).await,
        "batch" => {
            let callbacks = BatchCallbacks::new().on_success(step("after"));
            workflow_completes(client, batch(callbacks, vec![step("one"), step("two")]).name("batch")).await
        }
        _ => unreachable!(),
    }
}

const FEATURES: [&str; 22] = [
    "health",
    "manifest",
    "enqueue",
    "options",
    "delay",
    "unique",
    "batch-enqueue",
    "cancel",
    "queues",
    "queue-stats",
    "pause",
    "dead-letter",
    "cron",
    "worker",
    "retry",
    "chain",
    "group",
    "batch",
    "get-job",
    "cancel-job",
    "create-workflow",
    "register-cron",
];

async fn features(url: &str) -> Outcome {
    let client = Client::builder().url(url).build()?;
    let worker = new_worker(url, "rust-features", Arc::default(), false).await?;
    let running = tokio::spawn(async move { worker.start().await });
    for name in FEATURES {
        match try_feature(name, &client).await {
            Ok(()) => println!("ok {name}"),
            Err(error) => println!("FAIL {name}: {error}"),
        }
    }
    running.abort();
    Ok(())
}

async fn enqueue(url: &str, queue: &str, count: usize, types: &[String]) -> Outcome {
    let client = Client::builder().url(url).build()?;
    for number in 0..count {
        for one in types {
            let args = json!({"name": "Ada", "text": format!("rust {number}")});
            println!("{}", client.enqueue(one, args).queue(queue).send().await?.id);
        }
    }
    Ok(())
}

async fn work(url: &str, queue: &str, count: usize, seconds: u64, typed: bool) -> Outcome {
    let handled = Arc::new(AtomicUsize::default());
    let worker = new_worker(url, queue, handled.clone(), typed).await?;
    let enough = async {
        while handled.load(Ordering::SeqCst) < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // A worker stops on SIGINT only. Let it report the last result.
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    tokio::select! {
        ended = worker.start() => ended?,
        _ = enough => (),
        _ = tokio::time::sleep(Duration::from_secs(seconds)) => (),
    }
    if typed {
        change_rule(url, &worker, Method::Delete).await?;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let given: Vec<String> = std::env::args().skip(1).collect();
    match given.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["features", url] => features(url).await,
        ["enqueue", url, queue, count, ..] => enqueue(url, queue, count.parse()?, &given[4..]).await,
        ["work", url, queue, count, seconds, rest @ ..] => {
            work(url, queue, count.parse()?, seconds.parse()?, rest != ["all"]).await
        }
        _ => Err("give features, enqueue or work".into()),
    }
}
