//! The sidecar: one per machine, between its workers and the runtimes that hold the weights.

mod admit;
mod assemble;
mod attach;
mod backoff;
mod batch;
mod clock;
mod device;
mod faults;
mod hold;
mod limits;
mod logs;
mod model;
mod options;
mod outbox;
mod parent;
mod post;
mod profile;
mod recover;
mod roster;
mod runtimes;
mod schedule;
mod server;
mod settings;
#[cfg(test)]
mod testing;
mod tokenize;
mod unit;
mod warm;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use tokio_util::sync::CancellationToken;

use attach::Services;
use hold::Hold;
use roster::Roster;
use runtimes::Torch;
use settings::Settings;
use tokenize::Pool;
use warm::Warm;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let settings = Settings::parse();
    logs::start(settings.log_level);
    match run(&settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the sidecar cannot run");
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Failure> {
    settings.check_paths()?;
    std::fs::create_dir_all(&settings.runtime_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(serve(settings))
}

async fn serve(settings: &Settings) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    parent::follow_signals(shutdown.clone())?;
    if settings.follows_parent() {
        parent::follow_parent(shutdown.clone())?;
    }
    let (warm, keep_warm) = Warm::start(settings.python.clone(), shutdown.clone());
    let keep_warm = tokio::spawn(keep_warm);
    let torch = Arc::new(Torch::new(warm, settings.runtime_dir.clone()));
    let hold = Hold::start();
    let services = Services {
        instance: instance().into(),
        roster: Roster::start(torch, hold.clone()),
        pool: Pool::start(settings.tokenizers(), &hold)?,
        hold,
        batches: Arc::default(),
        shutdown: shutdown.clone(),
    };
    let served = server::serve(&settings.socket, services).await;
    // Also when the server failed: the runtimes end before this process does.
    shutdown.cancel();
    keep_warm.await?;
    Ok(served?)
}

/// Another name each time the sidecar starts.
fn instance() -> String {
    format!("{:x}-{:x}", std::process::id(), clock::unix_ns())
}
