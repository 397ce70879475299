//! The units of this machine: one task owns them, everyone else sends it messages.

mod pending;
mod shelf;
mod task;
#[cfg(test)]
mod tests;
mod workers;

use std::time::Instant;

use shoal_exchange::{BatchKey, NotOwned, Offer, Standing};
use tokio::sync::{mpsc, oneshot};

use crate::limits::INBOX_COMMANDS;
use crate::outbox::Outbox;
use crate::unit::HeldUnit;
pub use shelf::{Claimed, Delivery};

/// Reaches the task. The task never waits for anyone, so that waiting for it cannot deadlock.
#[derive(Clone)]
pub struct Hold {
    commands: mpsc::Sender<Command>,
}

/// A worker's stream. What one says that a newer stream of its worker replaced is passed over.
#[derive(Clone)]
pub struct Speaker {
    pub worker: String,
    pub outbox: Outbox,
}

enum Command {
    /// From a worker's stream.
    Said(Speaker, Said),
    Tokenized(Vec<HeldUnit>),
    Unclaim {
        batch: BatchKey,
        units: Vec<String>,
    },
    Finish {
        batch: BatchKey,
        units: Vec<String>,
    },
    WorkerGone {
        worker: String,
        since: Instant,
    },
    WorkerBack {
        speaker: Speaker,
        done: oneshot::Sender<()>,
    },
}

enum Said {
    Admit {
        deliveries: Vec<Delivery>,
        wanted: oneshot::Sender<Vec<bool>>,
    },
    Claim {
        batch: BatchKey,
        units: Vec<String>,
        claimed: oneshot::Sender<Result<Vec<Claimed>, NotOwned>>,
    },
    Release(Vec<String>),
    Post(Standing),
    Offer(Offer),
    GiveBack(Vec<String>),
}

/// The hold's task has ended, which it does only at shutdown.
#[derive(Debug, thiserror::Error)]
#[error("the sidecar is shutting down")]
pub struct HoldEnded;

impl Hold {
    /// Starts the task. It ends when all handles are gone.
    pub fn start() -> Self {
        let (commands, inbox) = mpsc::channel(INBOX_COMMANDS);
        tokio::spawn(task::serve(inbox));
        Self { commands }
    }

    /// Takes deliveries in. Says of each whether its content is wanted (the unit is new); the rest is
    /// answered on the stream once its size is known, as the new ones are.
    pub async fn admit(
        &self,
        speaker: &Speaker,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<bool>, HoldEnded> {
        let (wanted, answer) = oneshot::channel();
        self.said(speaker, Said::Admit { deliveries, wanted }).await;
        answer.await.map_err(|_| HoldEnded)
    }

    /// Brings the content of units that were wanted. Called from the tokenizing threads.
    pub fn tokenized(&self, units: Vec<HeldUnit>) {
        // Only fails at shutdown.
        let _ = self.commands.blocking_send(Command::Tokenized(units));
    }

    /// Takes units for a batch: all, or none. Answered once all of them are tokenized; not at all when
    /// the stream was replaced.
    pub async fn claim(
        &self,
        speaker: &Speaker,
        batch: BatchKey,
        units: Vec<String>,
    ) -> oneshot::Receiver<Result<Vec<Claimed>, NotOwned>> {
        let (claimed, answer) = oneshot::channel();
        let said = Said::Claim {
            batch,
            units,
            claimed,
        };
        self.said(speaker, said).await;
        answer
    }

    /// Gives the units of a batch back: they wait again.
    pub async fn unclaim(&self, batch: BatchKey, units: Vec<String>) {
        self.send(Command::Unclaim { batch, units }).await;
    }

    /// Forgets the units of a batch that is done.
    pub async fn finish(&self, batch: BatchKey, units: Vec<String>) {
        self.send(Command::Finish { batch, units }).await;
    }

    /// Forgets units at their owner's word.
    pub async fn release(&self, speaker: &Speaker, units: Vec<String>) {
        self.said(speaker, Said::Release(units)).await;
    }

    /// A worker says how soon it could start more.
    pub async fn post(&self, speaker: &Speaker, standing: Standing) {
        self.said(speaker, Said::Post(standing)).await;
    }

    /// A worker offers units to its siblings.
    pub async fn offer(&self, speaker: &Speaker, offer: Offer) {
        self.said(speaker, Said::Offer(offer)).await;
    }

    /// A worker wants units back whole, to put them on the queue again.
    pub async fn give_back(&self, speaker: &Speaker, units: Vec<String>) {
        self.said(speaker, Said::GiveBack(units)).await;
    }

    /// A worker's connection ended: its units go to siblings, or wait for its restart.
    pub async fn worker_gone(&self, worker: &str) {
        let worker = worker.to_owned();
        let since = Instant::now();
        self.send(Command::WorkerGone { worker, since }).await;
    }

    /// A worker connected, or its stream took the place of another of its own. It has been told of the
    /// units that it owns still, and of its siblings, when this returns.
    pub async fn worker_back(&self, speaker: Speaker) -> Result<(), HoldEnded> {
        let (done, answer) = oneshot::channel();
        self.send(Command::WorkerBack { speaker, done }).await;
        answer.await.map_err(|_| HoldEnded)
    }

    async fn said(&self, speaker: &Speaker, said: Said) {
        self.send(Command::Said(speaker.clone(), said)).await;
    }

    async fn send(&self, command: Command) {
        // Only fails at shutdown, when a missing answer says the same.
        let _ = self.commands.send(command).await;
    }
}
