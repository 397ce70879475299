//! The warm parent: a Python process that has done its imports and forks runtimes off itself. One
//! task keeps one alive, and starts another when it dies.

mod child;
mod protocol;

use std::collections::HashMap;
use std::path::PathBuf;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::limits::INBOX_COMMANDS;
use child::Child;
pub use protocol::ForkRequest;
use protocol::{Command, Event};

/// Reaches the task.
#[derive(Clone)]
pub struct Warm {
    asks: mpsc::Sender<Ask>,
    /// Whether there is to be a warm parent.
    wanted: watch::Sender<bool>,
    progress: watch::Receiver<String>,
}

/// A runtime process.
#[derive(Debug)]
pub struct Forked {
    pub pid: u32,
    /// Its exit status, negative for a signal; closes without one when the warm parent dies.
    pub exited: oneshot::Receiver<i32>,
}

/// A runtime could not be forked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ForkError {
    #[error("the warm parent ended before it forked the runtime")]
    Ended,
    #[error("the warm parent refused: {0}")]
    Refused(String),
}

enum Ask {
    Fork {
        request: ForkRequest,
        forked: oneshot::Sender<Result<Forked, ForkError>>,
    },
    Kill {
        id: String,
    },
}

impl Warm {
    /// Starts the task, and with it the first warm parent: if `lazy`, when a runtime is first to be
    /// forked. The returned future ends once `shutdown` was cancelled and the process is gone.
    pub fn start(
        python: PathBuf,
        lazy: bool,
        shutdown: CancellationToken,
    ) -> (Self, impl Future<Output = ()>) {
        let (asks, inbox) = mpsc::channel(INBOX_COMMANDS);
        let wanted = watch::Sender::new(!lazy);
        let (say, progress) = watch::channel("the warm parent is starting".to_owned());
        let keeper = Keeper {
            python,
            inbox,
            wanted: wanted.subscribe(),
            say,
            shutdown,
        };
        let warm = Self {
            asks,
            wanted,
            progress,
        };
        (warm, keeper.keep())
    }

    /// Forks a runtime. Waits until there is a warm parent.
    pub async fn fork(&self, request: ForkRequest) -> Result<Forked, ForkError> {
        let (forked, answer) = oneshot::channel();
        let ask = Ask::Fork { request, forked };
        self.wanted.send_replace(true);
        self.asks.send(ask).await.map_err(|_| ForkError::Ended)?;
        answer.await.map_err(|_| ForkError::Ended)?
    }

    /// Kills a runtime, if it runs still.
    pub fn kill(&self, id: &str) {
        let ask = Ask::Kill { id: id.to_owned() };
        if self.asks.try_send(ask).is_err() {
            tracing::warn!(
                runtime = id,
                "it was not killed: the warm parent's task is busy or gone"
            );
        }
    }

    /// How the warm parent stands, for people.
    pub fn progress(&self) -> watch::Receiver<String> {
        self.progress.clone()
    }
}

struct Keeper {
    python: PathBuf,
    inbox: mpsc::Receiver<Ask>,
    wanted: watch::Receiver<bool>,
    say: watch::Sender<String>,
    shutdown: CancellationToken,
}

/// Runtimes of one warm parent.
#[derive(Default)]
struct Family {
    asked: HashMap<String, oneshot::Sender<Result<Forked, ForkError>>>,
    alive: HashMap<String, oneshot::Sender<i32>>,
}

impl Keeper {
    async fn keep(mut self) {
        let mut backoff = Backoff::default();
        tokio::select! {
            // It only fails when nobody is left who could ask.
            _ = self.wanted.wait_for(|wanted| *wanted) => {}
            () = self.shutdown.cancelled() => {}
        }
        while !self.shutdown.is_cancelled() {
            let what = match Child::start(&self.python) {
                Ok(child) => match self.serve(child, &mut backoff).await {
                    Some(how) => format!("the warm parent ended ({how})"),
                    None => return,
                },
                Err(error) => format!("{} cannot be started: {error}", self.python.display()),
            };
            let wait = backoff.wait();
            tracing::error!(?wait, "{what}; starting another");
            self.say.send_replace(format!("{what}; starting another"));
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.shutdown.cancelled() => {}
            }
        }
    }

    /// Serves one warm parent until it ends by itself, or until shutdown (then none).
    async fn serve(&mut self, mut child: Child, backoff: &mut Backoff) -> Option<String> {
        let mut family = Family::default();
        let mut is_warm = false;
        loop {
            tokio::select! {
                event = child.next_event() => match event {
                    Some(Event::Warm { pid }) => {
                        is_warm = true;
                        backoff.reset();
                        tracing::info!(pid, "the warm parent is warm");
                        self.say.send_replace("the runtime is starting".to_owned());
                    }
                    Some(event) => {
                        if let Some(command) = family.heard(event) {
                            child.tell(&command).await;
                        }
                    }
                    None => {
                        let ended = child.stop().await;
                        return Some(ended.map_or_else(|e| e.to_string(), |s| s.to_string()));
                    }
                },
                Some(ask) = self.inbox.recv(), if is_warm => {
                    if let Some(command) = family.asked(ask) {
                        child.tell(&command).await;
                    }
                }
                () = self.shutdown.cancelled() => {
                    if let Err(error) = child.stop().await {
                        tracing::warn!(%error, "the warm parent could not be ended");
                    }
                    return None;
                }
            }
        }
    }
}

impl Family {
    /// What to tell the warm parent for this.
    fn heard(&mut self, event: Event) -> Option<Command> {
        match event {
            Event::Forked { id, pid } => {
                let (gone, exited) = oneshot::channel();
                let asker = self.asked.remove(&id);
                let wanted =
                    asker.is_some_and(|asker| asker.send(Ok(Forked { pid, exited })).is_ok());
                if !wanted {
                    return Some(Command::Kill { id });
                }
                self.alive.insert(id, gone);
            }
            Event::Exited { id, pid, status } => {
                tracing::info!(runtime = id, pid, status, "exited");
                if let Some(gone) = self.alive.remove(&id) {
                    // Nobody waits for the end of a runtime that was killed on purpose.
                    let _ = gone.send(status);
                }
            }
            Event::Error { id, message } => {
                // Also a kill of a runtime that has just ended by itself.
                tracing::warn!(runtime = id, message, "the warm parent did not obey");
                // Without an id it is not known which command: a fork that goes well in spite of this is
                // killed, and tried again.
                let refused = self
                    .asked
                    .extract_if(|asked, _| id.as_ref().is_none_or(|id| id == asked));
                for (_, asker) in refused {
                    let _ = asker.send(Err(ForkError::Refused(message.clone())));
                }
            }
            Event::Warm { .. } => {}
        }
        None
    }

    /// What to tell the warm parent for this.
    fn asked(&mut self, ask: Ask) -> Option<Command> {
        match ask {
            Ask::Fork { request, forked } => {
                self.asked.insert(request.id.clone(), forked);
                Some(Command::Fork(request))
            }
            Ask::Kill { id } => {
                // Runtimes of an earlier warm parent end with their streams.
                self.alive.remove(&id)?;
                Some(Command::Kill { id })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lazy_warm_parent_is_started_for_the_first_fork() {
        let shutdown = CancellationToken::new();
        let python = PathBuf::from("/nowhere/python");
        let (warm, keep) = Warm::start(python, true, shutdown.clone());
        let keep = tokio::spawn(keep);
        let mut progress = warm.progress();
        let minute = std::time::Duration::from_secs(60);
        let told = tokio::time::timeout(minute, progress.changed());
        assert!(told.await.is_err(), "it was started");
        let asking = warm.clone();
        tokio::spawn(async move { asking.fork(request("rt-0")).await });
        progress.changed().await.unwrap();
        let said = progress.borrow().clone();
        assert!(said.contains("/nowhere/python cannot be started"), "{said}");
        shutdown.cancel();
        keep.await.unwrap();
    }

    fn request(id: &str) -> ForkRequest {
        ForkRequest {
            id: id.to_owned(),
            socket: PathBuf::new(),
            device: "cpu".to_owned(),
            streams: 1,
            threads: 1,
        }
    }

    fn ask(family: &mut Family, id: &str) -> oneshot::Receiver<Result<Forked, ForkError>> {
        let (forked, answer) = oneshot::channel();
        let request = request(id);
        assert!(family.asked(Ask::Fork { request, forked }).is_some());
        answer
    }

    fn refuse(family: &mut Family, id: Option<&str>) {
        let id = id.map(str::to_owned);
        let message = "no".to_owned();
        assert!(family.heard(Event::Error { id, message }).is_none());
    }

    #[test]
    fn a_refusal_fails_the_fork_that_it_names_or_all_if_it_names_none() {
        let mut family = Family::default();
        let mut one = ask(&mut family, "rt-1");
        let mut two = ask(&mut family, "rt-2");
        refuse(&mut family, Some("rt-1"));
        assert!(matches!(one.try_recv(), Ok(Err(ForkError::Refused(_)))));
        assert!(two.try_recv().is_err(), "it is not answered yet");
        refuse(&mut family, Some("rt-9"));
        assert!(two.try_recv().is_err());
        refuse(&mut family, None);
        assert!(matches!(two.try_recv(), Ok(Err(ForkError::Refused(_)))));
    }
}
