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
use runtimes::{Runtimes, Sim, SimFile, Torch};
use settings::Settings;
use tokenize::Pool;
use warm::Warm;

type Failure = Box<dyn std::error::Error>;

/// Exit status when the settings are wrong: another start will not mend it.
const WRONG_SETTINGS: u8 = 2;

fn main() -> ExitCode {
    let settings = Settings::parse();
    logs::start(settings.log_level);
    let sim = match checked(&settings) {
        Ok(sim) => sim,
        Err(error) => return cannot_run(&error, ExitCode::from(WRONG_SETTINGS)),
    };
    match run(&settings, sim) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => cannot_run(&error, ExitCode::FAILURE),
    }
}

/// What the settings say of simulated devices, if they are right.
fn checked(settings: &Settings) -> Result<Option<SimFile>, Failure> {
    settings.check_paths()?;
    let path = settings.sim.as_deref();
    Ok(path.map(SimFile::read).transpose()?)
}

fn cannot_run(error: &Failure, code: ExitCode) -> ExitCode {
    tracing::error!(%error, "the sidecar cannot run");
    code
}

fn run(settings: &Settings, sim: Option<SimFile>) -> Result<(), Failure> {
    std::fs::create_dir_all(&settings.runtime_dir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(serve(settings, sim))
}

async fn serve(settings: &Settings, sim: Option<SimFile>) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    parent::follow_signals(shutdown.clone())?;
    if settings.follows_parent() {
        parent::follow_parent(shutdown.clone())?;
    }
    let python = settings.python.clone();
    let (warm, keep_warm) = Warm::start(python, settings.lazy_torch, shutdown.clone());
    let keep_warm = tokio::spawn(keep_warm);
    let runtimes = Runtimes {
        torch: Arc::new(Torch::new(warm, settings.runtime_dir.clone())),
        sim: Arc::new(Sim::new(sim)),
    };
    let hold = Hold::start();
    let services = Services {
        instance: instance().into(),
        roster: Roster::start(runtimes, hold.clone()),
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
