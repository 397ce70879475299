//! The units of this machine: one task owns them, everyone else sends it messages.

mod pending;
mod shelf;

use std::time::Instant;

use shoal_exchange::{BatchKey, NotOwned};
use shoal_proto::shoal::sidecar::v1::attach_response::Message;
use tokio::sync::{mpsc, oneshot};

use crate::limits::{ACK_WAIT, INBOX_COMMANDS};
use crate::outbox::Outbox;
use crate::unit::HeldUnit;
use pending::{Pending, Request};
use shelf::Shelf;
pub use shelf::{Claimed, Delivery};

/// Reaches the task. The task never waits for anyone, so that waiting for it cannot deadlock.
#[derive(Clone)]
pub struct Hold {
    commands: mpsc::Sender<Command>,
}

enum Command {
    Admit {
        worker: String,
        outbox: Outbox,
        deliveries: Vec<Delivery>,
        wanted: oneshot::Sender<Vec<bool>>,
    },
    Tokenized(Vec<HeldUnit>),
    Claim(Request),
    Unclaim {
        batch: BatchKey,
        units: Vec<String>,
    },
    Finish {
        batch: BatchKey,
        units: Vec<String>,
    },
    Release {
        worker: String,
        units: Vec<String>,
    },
    WorkerGone {
        worker: String,
        since: Instant,
    },
    WorkerBack {
        worker: String,
        owned: oneshot::Sender<Vec<String>>,
    },
    Expire,
}

/// The hold's task has ended, which it does only at shutdown.
#[derive(Debug, thiserror::Error)]
#[error("the sidecar is shutting down")]
pub struct HoldEnded;

impl Hold {
    /// Starts the task. It ends when all handles are gone.
    pub fn start() -> Self {
        let (commands, inbox) = mpsc::channel(INBOX_COMMANDS);
        tokio::spawn(serve(inbox));
        Self { commands }
    }

    /// Takes deliveries in. Says of each whether its content is wanted (the unit is new); the rest is
    /// answered on `outbox` once its size is known, as the new ones are.
    pub async fn admit(
        &self,
        worker: &str,
        outbox: &Outbox,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<bool>, HoldEnded> {
        let (wanted, answer) = oneshot::channel();
        let command = Command::Admit {
            worker: worker.to_owned(),
            outbox: outbox.clone(),
            deliveries,
            wanted,
        };
        self.send(command).await;
        answer.await.map_err(|_| HoldEnded)
    }

    /// Brings the content of units that were wanted. Called from the tokenizing threads.
    pub fn tokenized(&self, units: Vec<HeldUnit>) {
        // Only fails at shutdown.
        let _ = self.commands.blocking_send(Command::Tokenized(units));
    }

    /// Takes units for a batch: all, or none. Answered once all of them are tokenized.
    pub async fn claim(
        &self,
        worker: &str,
        batch: BatchKey,
        units: Vec<String>,
    ) -> oneshot::Receiver<Result<Vec<Claimed>, NotOwned>> {
        let (claimed, answer) = oneshot::channel();
        let worker = worker.to_owned();
        self.send(Command::Claim(Request {
            worker,
            batch,
            units,
            claimed,
        }))
        .await;
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
    pub async fn release(&self, worker: &str, units: Vec<String>) {
        let worker = worker.to_owned();
        self.send(Command::Release { worker, units }).await;
    }

    /// A worker's connection ended: its units wait for its restart, or for a sibling.
    pub async fn worker_gone(&self, worker: &str) {
        let worker = worker.to_owned();
        let since = Instant::now();
        self.send(Command::WorkerGone { worker, since }).await;
    }

    /// A worker connected: the units that it owns still.
    pub async fn worker_back(&self, worker: &str) -> Result<Vec<String>, HoldEnded> {
        let (owned, answer) = oneshot::channel();
        let worker = worker.to_owned();
        self.send(Command::WorkerBack { worker, owned }).await;
        answer.await.map_err(|_| HoldEnded)
    }

    /// Drops the units that nobody came back for in time.
    pub async fn expire(&self) {
        self.send(Command::Expire).await;
    }

    async fn send(&self, command: Command) {
        // Only fails at shutdown, when a missing answer says the same.
        let _ = self.commands.send(command).await;
    }
}

async fn serve(mut inbox: mpsc::Receiver<Command>) {
    let mut shelf = Shelf::new(ACK_WAIT);
    let mut pending = Pending::default();
    while let Some(command) = inbox.recv().await {
        obey(&mut shelf, &mut pending, command);
        pending.retry(&mut shelf);
    }
}

fn obey(shelf: &mut Shelf, pending: &mut Pending, command: Command) {
    match command {
        Command::Admit {
            worker,
            outbox,
            deliveries,
            wanted,
        } => {
            let (wants, admitted) = shelf.admit(&worker, &outbox, deliveries);
            if !admitted.units.is_empty() {
                outbox.send(Message::Admitted(admitted));
            }
            let _ = wanted.send(wants);
        }
        Command::Tokenized(units) => {
            for (outbox, admitted) in shelf.tokenized(units) {
                outbox.send(Message::Admitted(admitted));
            }
        }
        Command::Claim(request) => pending.push(request),
        Command::Unclaim { batch, units } => shelf.exchange().unclaim(batch, &units),
        Command::Finish { batch, units } => shelf.finish(batch, &units),
        Command::Release { worker, units } => shelf.release(&worker, &units),
        Command::WorkerGone { worker, since } => shelf.exchange().worker_gone(&worker, since),
        Command::WorkerBack { worker, owned } => {
            let _ = owned.send(shelf.exchange().worker_back(&worker));
        }
        Command::Expire => shelf.expire(Instant::now()),
    }
}
