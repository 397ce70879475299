//! One warm parent process with its two pipes.

use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout};

use super::protocol::{Command, Event};

/// How long it may take to end by itself, once its stdin is closed.
const STOP_LIMIT: Duration = Duration::from_secs(2);

pub struct Child {
    process: tokio::process::Child,
    /// It ends when this closes, so it cannot outlive the sidecar.
    stdin: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts `PYTHON -m shoal_torch_runtime`.
    pub fn start(python: &Path) -> io::Result<Self> {
        let mut process = tokio::process::Command::new(python)
            .args(["-m", "shoal_torch_runtime"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (stdin, stdout) = pipes.ok_or(io::ErrorKind::BrokenPipe)?;
        Ok(Self {
            process,
            stdin,
            lines: BufReader::new(stdout).lines(),
        })
    }

    /// The next event; none when the process has closed its stdout. Lines that are no events are
    /// logged: libraries print. Safe to cancel.
    pub async fn next_event(&mut self) -> Option<Event> {
        loop {
            let line = match self.lines.next_line().await {
                Ok(line) => line?,
                Err(error) => {
                    tracing::warn!(%error, "the warm parent's output cannot be read");
                    return None;
                }
            };
            match serde_json::from_str(&line) {
                Ok(event) => return Some(event),
                Err(_) => {
                    tracing::warn!(line, "the warm parent wrote something else than an event")
                }
            }
        }
    }

    pub async fn tell(&mut self, command: &Command) {
        let line = serde_json::to_string(command).map(|line| line + "\n");
        let told = match line {
            Ok(line) => self.stdin.write_all(line.as_bytes()).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = told {
            // Its stdout closes too, which is how its end is noticed.
            tracing::warn!(%error, ?command, "the warm parent did not take a command");
        }
    }

    /// Closes its stdin, at which it ends and its runtimes with it, and makes sure that it did.
    pub async fn stop(self) -> io::Result<ExitStatus> {
        let Self {
            mut process, stdin, ..
        } = self;
        drop(stdin);
        if let Ok(status) = tokio::time::timeout(STOP_LIMIT, process.wait()).await {
            return status;
        }
        tracing::warn!("the warm parent did not end by itself: killing it");
        process.kill().await?;
        process.wait().await
    }
}
