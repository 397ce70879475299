//! What the sidecar is told when it starts.

use std::path::{Path, PathBuf};

use clap::{Parser, ValueEnum};

use crate::limits::SOCKET_PATH_BYTES;

/// Room for the name of a runtime's socket.
const RUNTIME_SOCKET_NAME: &str = "rt-18446744073709551615.sock";

/// One per machine: holds units, tokenizes, assembles batches, drives runtimes, writes results.
#[derive(Debug, Parser)]
#[command(name = "shoal-sidecar", version)]
pub struct Settings {
    /// Unix socket to listen on.
    #[arg(long, env = "SHOAL_SIDECAR_SOCKET")]
    pub socket: PathBuf,

    /// Folder for the runtimes' sockets; keep it short.
    #[arg(long, env = "SHOAL_RUNTIME_DIR")]
    pub runtime_dir: PathBuf,

    /// How simulated devices (sim:0, sim:1, …) behave; without it they load no model.
    #[arg(long, env = "SHOAL_SIM", value_name = "FILE")]
    pub sim: Option<PathBuf>,

    /// Start torch not at once, but when a worker's device needs it: none may ever.
    #[arg(long)]
    pub lazy_torch: bool,

    /// Python that has the torch runtime installed.
    #[arg(long, env = "SHOAL_PYTHON", default_value = "python3")]
    pub python: PathBuf,

    /// Threads that tokenize, besides one for long texts; 0 is one for each four cores.
    #[arg(long, env = "SHOAL_TOKENIZE_THREADS", default_value_t = 0)]
    pub tokenize_threads: usize,

    /// End when stdin closes.
    #[arg(long)]
    pub exit_with_parent: bool,

    /// As --exit-with-parent.
    #[arg(long, env = "SHOAL_PARENT_PIPE")]
    pub parent_pipe: Option<ParentPipe>,

    /// What is logged, as for every service of the mesh.
    #[arg(long, env = "SHOAL_LOG_LEVEL", default_value = "info")]
    pub log_level: LogLevel,
}

/// From which level on lines are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    Debug,
    Info,
    Warning,
    Error,
}

/// Which pipe closes when the parent is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ParentPipe {
    Stdin,
}

/// A path whose length no Unix socket can have.
#[derive(Debug, thiserror::Error)]
#[error("{} has {bytes} bytes, a Unix socket's path at most {SOCKET_PATH_BYTES}; choose a shorter {setting}", .path.display())]
pub struct PathTooLong {
    setting: &'static str,
    path: PathBuf,
    bytes: usize,
}

impl Settings {
    /// Whether the process ends when its stdin closes.
    pub fn follows_parent(&self) -> bool {
        self.exit_with_parent || self.parent_pipe == Some(ParentPipe::Stdin)
    }

    /// Threads that tokenize texts of usual length.
    pub fn tokenizers(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        match self.tokenize_threads {
            0 => (cores / 4).max(1),
            threads => threads,
        }
    }

    /// Checks that all sockets can be bound.
    pub fn check_paths(&self) -> Result<(), PathTooLong> {
        check("--socket", &self.socket)?;
        check("--runtime-dir", &self.runtime_dir.join(RUNTIME_SOCKET_NAME))
    }
}

fn check(setting: &'static str, path: &Path) -> Result<(), PathTooLong> {
    let bytes = path.as_os_str().len();
    if bytes <= SOCKET_PATH_BYTES {
        return Ok(());
    }
    let path = path.to_owned();
    Err(PathTooLong {
        setting,
        path,
        bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_path_that_cannot_be_bound_is_named_with_the_limit() {
        let folder = format!("/run/{}", "x".repeat(80));
        let arguments = [
            "shoal-sidecar",
            "--socket",
            "/run/s.sock",
            "--runtime-dir",
            &folder,
        ];
        let error = Settings::parse_from(arguments).check_paths().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("at most 107; choose a shorter --runtime-dir"),
            "{error}"
        );
    }
}
