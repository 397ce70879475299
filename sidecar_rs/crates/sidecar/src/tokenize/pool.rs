//! The threads that tokenize: a few for most units, one for long texts, so that no short text waits
//! behind a long one, and two for items in files, which are read and checked first.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::item;
use super::source::Source;
use super::text::Rules;
use crate::clock;
use crate::faults::ItemFault;
use crate::hold::Hold;
use crate::limits::WHOLE_TEXT_BYTES;
use crate::model::Model;
use crate::options::Options;
use crate::unit::{HeldItem, HeldUnit};

/// Jobs that may wait in front of the threads; workers are not read on above it.
const WAITING_JOBS: usize = 64;
/// Units of a job: few enough to spread a large Admit over the threads.
const JOB_UNITS: usize = 64;
/// Threads for items in files: one reads while the other computes.
const FILE_THREADS: usize = 2;
/// Units that are ready wait at most so long for others of their job.
const FLUSH: Duration = Duration::from_millis(1);

/// A unit that is new on this machine.
pub struct Arrival {
    pub id: String,
    pub model: Arc<Model>,
    pub options: Options,
    pub items: Vec<Source>,
}

type Job = Vec<Arrival>;

/// Hands units to the threads.
#[derive(Clone)]
pub struct Pool {
    short: mpsc::Sender<Job>,
    long: mpsc::Sender<Job>,
    files: mpsc::Sender<Job>,
}

impl Pool {
    /// Starts `threads` threads for most units, and those for the others. They end when all clones
    /// of the pool are gone.
    pub fn start(threads: usize, hold: &Hold) -> std::io::Result<Self> {
        Ok(Self {
            short: start_threads("tokenize", threads, hold)?,
            long: start_threads("tokenize-long", 1, hold)?,
            files: start_threads("tokenize-file", FILE_THREADS, hold)?,
        })
    }

    /// Queues units; the hold is told as they become ready. Waits while the queue is full.
    pub async fn tokenize(&self, arrivals: Vec<Arrival>) {
        let (mut short, mut long) = (Job::new(), Vec::new());
        for arrival in arrivals {
            let any = |is: fn(&Source) -> bool| arrival.items.iter().any(is);
            if any(Source::is_file) {
                long.push((&self.files, arrival));
            } else if any(|item| item.bytes_here() > WHOLE_TEXT_BYTES) {
                long.push((&self.long, arrival));
            } else {
                short.push(arrival);
            }
        }
        while !short.is_empty() {
            let rest = short.split_off(short.len().min(JOB_UNITS));
            submit(&self.short, std::mem::replace(&mut short, rest)).await;
        }
        for (queue, arrival) in long {
            submit(queue, vec![arrival]).await;
        }
    }
}

async fn submit(queue: &mpsc::Sender<Job>, job: Job) {
    if queue.send(job).await.is_err() {
        tracing::error!("the tokenizing threads are gone");
    }
}

fn start_threads(name: &str, count: usize, hold: &Hold) -> std::io::Result<mpsc::Sender<Job>> {
    let (sender, jobs) = mpsc::channel(WAITING_JOBS);
    let jobs = Arc::new(Mutex::new(jobs));
    for _ in 0..count {
        let (jobs, hold) = (jobs.clone(), hold.clone());
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || work(&jobs, &hold))?;
    }
    Ok(sender)
}

fn work(jobs: &Mutex<mpsc::Receiver<Job>>, hold: &Hold) {
    let next = || {
        jobs.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .blocking_recv()
    };
    while let Some(job) = next() {
        let mut ready = Vec::with_capacity(job.len());
        let mut flushed = Instant::now();
        for arrival in job {
            ready.push(tokenized(arrival));
            if flushed.elapsed() > FLUSH {
                hold.tokenized(std::mem::take(&mut ready));
                flushed = Instant::now();
            }
        }
        if !ready.is_empty() {
            hold.tokenized(ready);
        }
    }
}

fn tokenized(arrival: Arrival) -> HeldUnit {
    let start = clock::unix_ns();
    let Arrival {
        id,
        model,
        options,
        items,
    } = arrival;
    let rules = Rules {
        prompt: options.prompt(&model.profile),
        max_tokens: options.max_tokens,
        special_tokens: model.profile.encode.special_tokens,
        when_too_long: options.when_too_long,
    };
    // A tokenizer that panics must not take the thread with it.
    let hold = |source: Source| {
        let held = || match source.read() {
            Ok(bytes) => item::hold(&model, &rules, &bytes),
            Err(fault) => HeldItem::failed(fault),
        };
        catch_unwind(AssertUnwindSafe(held))
            .unwrap_or_else(|_| HeldItem::failed(ItemFault::Tokenizer("it panicked".to_owned())))
    };
    let items = items.into_iter().map(hold).collect();
    HeldUnit {
        id,
        items,
        tokenize: clock::span_since("tokenize", start),
        options,
        model,
    }
}
