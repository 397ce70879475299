//! Who is connected: one task pairs each worker with its device, and keeps both for a while after
//! the worker's stream has ended, so that a restart finds weights and units where it left them.

use std::collections::HashMap;
use std::sync::Arc;

use shoal_proto::shoal::sidecar::v1::Hello;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use crate::device::Device;
use crate::hold::{Hold, HoldEnded, Speaker};
use crate::limits::{ACK_WAIT, INBOX_COMMANDS};
use crate::model::Catalogue;
use crate::outbox::Outbox;
use crate::runtimes::{DeviceSpec, Runtimes};

/// Reaches the task.
#[derive(Clone)]
pub struct Roster {
    commands: mpsc::Sender<Command>,
}

/// A worker's place for as long as its stream lives.
pub struct Seat {
    pub worker: String,
    pub device: Device,
    number: u64,
}

enum Command {
    Join {
        hello: Hello,
        outbox: Outbox,
        seat: oneshot::Sender<Result<Seat, HoldEnded>>,
    },
    Leave {
        worker: String,
        number: u64,
    },
    /// Some time after a leave.
    Lapse {
        worker: String,
        number: u64,
    },
}

struct Entry {
    spec: DeviceSpec,
    device: Device,
    /// Of the newest seat; a leave of an older one means nothing.
    number: u64,
    /// None once the stream has ended.
    outbox: Option<Outbox>,
}

struct Task {
    runtimes: Runtimes,
    hold: Hold,
    catalogue: Arc<Catalogue>,
    workers: HashMap<String, Entry>,
    last_number: u64,
    /// For timers.
    commands: mpsc::WeakSender<Command>,
}

impl Roster {
    /// Starts the task. It ends when all handles are gone.
    pub fn start(runtimes: Runtimes, hold: Hold) -> Self {
        let (commands, mut inbox) = mpsc::channel(INBOX_COMMANDS);
        let mut task = Task {
            runtimes,
            hold,
            catalogue: Arc::default(),
            workers: HashMap::new(),
            last_number: 0,
            commands: commands.downgrade(),
        };
        tokio::spawn(async move {
            while let Some(command) = inbox.recv().await {
                task.obey(command).await;
            }
        });
        Self { commands }
    }

    /// Seats a worker. An older stream of the same worker is closed.
    pub async fn join(&self, hello: Hello, outbox: Outbox) -> Result<Seat, HoldEnded> {
        let (seat, answer) = oneshot::channel();
        let command = Command::Join {
            hello,
            outbox,
            seat,
        };
        self.commands.send(command).await.map_err(|_| HoldEnded)?;
        answer.await.map_err(|_| HoldEnded)?
    }

    /// The stream of a seat has ended.
    pub async fn leave(&self, seat: Seat) {
        let Seat { worker, number, .. } = seat;
        // Only fails at shutdown.
        let _ = self.commands.send(Command::Leave { worker, number }).await;
    }
}

impl Task {
    async fn obey(&mut self, command: Command) {
        match command {
            Command::Join {
                hello,
                outbox,
                seat,
            } => {
                let _ = seat.send(self.join(hello, outbox).await);
            }
            Command::Leave { worker, number } => self.leave(worker, number).await,
            Command::Lapse { worker, number } => self.lapse(&worker, number),
        }
    }

    async fn join(&mut self, hello: Hello, outbox: Outbox) -> Result<Seat, HoldEnded> {
        let spec = DeviceSpec {
            device: hello.device,
            streams: hello.streams.max(1),
            threads: hello.threads.max(1),
        };
        let worker = hello.worker;
        let before = self.workers.remove(&worker);
        if let Some(replaced) = before.as_ref().and_then(|entry| entry.outbox.as_ref()) {
            tracing::warn!(worker, "a newer stream replaces this worker's");
            replaced.close(Status::aborted(
                "a newer stream of this worker replaced this one",
            ));
        }
        let speaker = Speaker {
            worker: worker.clone(),
            outbox: outbox.clone(),
        };
        self.hold.worker_back(speaker).await?;
        let device = match before {
            Some(entry) if entry.spec == spec => entry.device,
            _ => Device::start(
                spec.clone(),
                self.runtimes.of(&spec.device),
                self.hold.clone(),
                self.catalogue.clone(),
            ),
        };
        self.last_number += 1;
        let number = self.last_number;
        let entry = Entry {
            spec,
            device: device.clone(),
            number,
            outbox: Some(outbox),
        };
        self.workers.insert(worker.clone(), entry);
        Ok(Seat {
            worker,
            device,
            number,
        })
    }

    async fn leave(&mut self, worker: String, number: u64) {
        let entry = self.workers.get_mut(&worker);
        let Some(entry) = entry.filter(|entry| entry.number == number) else {
            return;
        };
        entry.outbox = None;
        entry.device.detach().await;
        self.hold.worker_gone(&worker).await;
        let commands = self.commands.clone();
        tokio::spawn(async move {
            tokio::time::sleep(ACK_WAIT).await;
            if let Some(commands) = commands.upgrade() {
                // Only fails at shutdown.
                let _ = commands.send(Command::Lapse { worker, number }).await;
            }
        });
    }

    fn lapse(&mut self, worker: &str, number: u64) {
        if self
            .workers
            .get(worker)
            .is_some_and(|entry| entry.number == number)
        {
            tracing::info!(worker, "it did not come back: its runtime ends");
            self.workers.remove(worker);
        }
    }
}
