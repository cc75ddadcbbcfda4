//! apalis on a SQLite file with a write-ahead log, each commit synced.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteStorage};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

const WARM_UP: usize = 500; // jobs enqueued before the time is taken
const BATCH: usize = 1000; // jobs per bulk call
const QUEUE: &str = "default";

static DONE: AtomicI64 = AtomicI64::new(0);

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Job {
    Add { a: i64, b: i64 },
    Probe { at: f64 },
}

async fn run(job: Job) -> Result<(), BoxDynError> {
    match job {
        Job::Add { .. } => {
            DONE.fetch_add(1, Ordering::Relaxed);
        }
        Job::Probe { at } => {
            let mut file = OpenOptions::new().append(true).open(path("latencies"))?;
            file.write_all(&(now() - at).to_le_bytes())?;
        }
    }
    Ok(())
}

fn add() -> Job {
    Job::Add { a: 1, b: 2 }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(variable("PEERS_FOLDER")).join(name)
}

fn argument<T: FromStr>(place: usize) -> T {
    std::env::args().nth(place).and_then(|text| text.parse().ok()).expect("an argument is missing")
}

/// Write the number of jobs done to the slot of this process, every 2 ms.
fn count() {
    let file = OpenOptions::new().write(true).open(path("count")).unwrap();
    let slot: u64 = variable("PEERS_SLOT").parse().unwrap();
    let mut written = 0;
    loop {
        let current = DONE.load(Ordering::Relaxed);
        if current != written {
            file.write_all_at(&current.to_le_bytes(), 8 * (1 + slot)).unwrap();
            written = current;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

async fn enqueue(storage: &SqliteStorage<Job>, total: usize, producers: usize) {
    let left = Arc::new(AtomicI64::new(total as i64));
    let tasks: Vec<_> = (0..producers)
        .map(|_| {
            let (mut storage, left) = (storage.clone(), left.clone());
            tokio::spawn(async move {
                while left.fetch_sub(1, Ordering::Relaxed) > 0 {
                    storage.push(add()).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

async fn bulk(storage: &mut SqliteStorage<Job>, total: usize) {
    for first in (0..total).step_by(BATCH) {
        storage.push_bulk(vec![add(); BATCH.min(total - first)]).await.unwrap();
    }
}

async fn work(storage: SqliteStorage<Job>, batch: usize) {
    std::thread::spawn(count);
    let config = Config::default().queue(QUEUE).batch_size(batch).lock_tasks(false);
    let name = format!("worker-{}", std::process::id());
    WorkerBuilder::new(name.as_str())
        .backend(storage.with_config(config).poll_with_interval(Duration::from_millis(10)))
        .parallelize(tokio::spawn)
        .build(run)
        .run()
        .await
        .unwrap();
}

#[tokio::main]
async fn main() {
    let options = SqliteConnectOptions::new()
        .filename(path("apalis.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new().max_connections(5).connect_with(options).await.unwrap();
    let mut storage = SqliteStorage::new(&pool).with_config(Config::default().queue(QUEUE));
    match argument::<String>(1).as_str() {
        "clear" => {
            SqliteStorage::setup(&pool).await.unwrap();
            sqlx::query("DELETE FROM Jobs").execute(&pool).await.unwrap();
        }
        "enqueue" => {
            enqueue(&storage, WARM_UP, argument(3)).await;
            let started = Instant::now();
            enqueue(&storage, argument(2), argument(3)).await;
            println!("{}", started.elapsed().as_secs_f64());
        }
        "bulk" => {
            bulk(&mut storage, WARM_UP).await;
            let started = Instant::now();
            bulk(&mut storage, argument(2)).await;
            println!("{}", started.elapsed().as_secs_f64());
        }
        "probe" => {
            let mut lines = BufReader::new(stdin()).lines();
            while lines.next_line().await.unwrap().is_some() {
                storage.push(Job::Probe { at: now() }).await.unwrap();
            }
        }
        "work" => work(storage, argument(2)).await,
        other => panic!("{other} is no command"),
    }
}
