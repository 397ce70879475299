//! A worker's device: one task owns its runtime, its models and its batches.

mod life;
mod loads;
mod models;
mod suspects;
mod task;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use shoal_proto::shoal::sidecar::v1::LoadModel;
use tokio::sync::{mpsc, watch};

use crate::batch::Batch;
use crate::hold::Hold;
use crate::limits::INBOX_COMMANDS;
use crate::model::{Catalogue, Model};
use crate::outbox::Outbox;
use crate::runtimes::{DeviceSpec, Runtime};
pub use models::Tokenizable;

/// Reaches the task. The device and its runtime end when all handles are gone.
#[derive(Clone)]
pub struct Device {
    commands: mpsc::Sender<Command>,
    tokenizable: watch::Receiver<Tokenizable>,
}

enum Command {
    Attach(Outbox),
    Detach,
    Load(LoadModel),
    Unload(String),
    Run(Batch),
    Release(Vec<String>),
}

impl Device {
    /// Starts the task, which starts a runtime at once.
    pub fn start(
        spec: DeviceSpec,
        runtime: Arc<dyn Runtime>,
        hold: Hold,
        catalogue: Arc<Catalogue>,
    ) -> Self {
        let (commands, inbox) = mpsc::channel(INBOX_COMMANDS);
        let (publish, tokenizable) = watch::channel(Tokenizable::default());
        tokio::spawn(task::run(spec, runtime, hold, catalogue, inbox, publish));
        Self {
            commands,
            tokenizable,
        }
    }

    /// A model whose tokenizer is ready, whether or not its weights are on the device yet.
    pub fn model(&self, profile_digest: &str) -> Option<Arc<Model>> {
        self.tokenizable.borrow().get(profile_digest).cloned()
    }

    /// The worker is connected: model states go to its stream.
    pub async fn attach(&self, outbox: Outbox) {
        self.send(Command::Attach(outbox)).await;
    }

    /// The worker's stream has ended: batches that wait for it are dropped.
    pub async fn detach(&self) {
        self.send(Command::Detach).await;
    }

    /// Makes a model ready. Each call is answered with the model's state, now and when it changes.
    pub async fn load(&self, load: LoadModel) {
        self.send(Command::Load(load)).await;
    }

    /// Lets a model go; batches that wait for it are refused.
    pub async fn unload(&self, profile_digest: String) {
        self.send(Command::Unload(profile_digest)).await;
    }

    /// Computes a batch of claimed units. It is answered on its own outbox.
    pub async fn run(&self, batch: Batch) {
        self.send(Command::Run(batch)).await;
    }

    /// Skips units in batches that are not being computed yet.
    pub async fn release(&self, units: Vec<String>) {
        self.send(Command::Release(units)).await;
    }

    async fn send(&self, command: Command) {
        if self.commands.send(command).await.is_err() {
            tracing::error!("a device's task is gone");
        }
    }
}
