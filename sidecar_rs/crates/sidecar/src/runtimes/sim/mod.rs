//! The sim runtime: a cost curve and a clock in place of a model, on the same path as real runtimes.
//! What a sim file says is all that it does: it is never a default.

mod chance;
mod cost;
mod engine;
mod file;
mod pause;
mod rows;

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::{mpsc, watch};

use super::{DeviceSpec, Link, Runtime, StartError};
use chance::Chance;
use engine::Engine;
pub use file::SimFile;

/// Messages that may wait on either side of a runtime, as with a real one.
const WAITING_MESSAGES: usize = 64;

/// Starts simulated runtimes.
pub struct Sim {
    /// None: every model is refused.
    file: Option<SimFile>,
    /// Starts so far of each device, so that a new life has other luck than the one before.
    lives: Mutex<HashMap<String, u64>>,
    progress: watch::Sender<String>,
}

impl Sim {
    pub fn new(file: Option<SimFile>) -> Self {
        Self {
            file,
            lives: Mutex::default(),
            progress: watch::Sender::new("the simulated runtime is starting".to_owned()),
        }
    }

    fn life(&self, device: &str) -> u64 {
        let mut lives = self.lives.lock().unwrap_or_else(PoisonError::into_inner);
        let life = lives.entry(device.to_owned()).or_default();
        *life += 1;
        *life
    }
}

#[tonic::async_trait]
impl Runtime for Sim {
    fn name(&self) -> &'static str {
        "sim"
    }

    async fn start(&self, spec: &DeviceSpec) -> Result<Link, StartError> {
        let behaviour = self.file.as_ref().map(|file| file.of(&spec.device).clone());
        let seed = behaviour.as_ref().map_or(0, |behaviour| behaviour.seed);
        let chance = Chance::new(seed, &spec.device, self.life(&spec.device));
        let (requests, inbox) = mpsc::channel(WAITING_MESSAGES);
        let (outbox, responses) = mpsc::channel(WAITING_MESSAGES);
        let engine = Engine::new(spec, behaviour, chance);
        tokio::spawn(engine.run(inbox, outbox));
        Ok(Link {
            requests,
            responses,
        })
    }

    fn progress(&self) -> watch::Receiver<String> {
        self.progress.subscribe()
    }
}

#[cfg(test)]
mod tests;
