//! What the sidecar asks of a runtime, whatever its kind.

mod sim;
mod torch;

use std::sync::Arc;

use shoal_proto::shoal::runtime::v1::{RunRequest, RunResponse};
use tokio::sync::{mpsc, watch};

pub use sim::{Sim, SimFile};
pub use torch::Torch;

/// The device of a worker, as its Hello said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// For instance cpu, cuda:0 or sim:0.
    pub device: String,
    /// Batches at once when work waits.
    pub streams: u32,
    /// Threads of a batch that runs alone.
    pub threads: u32,
}

/// A kind of runtime.
#[tonic::async_trait]
pub trait Runtime: Send + Sync + 'static {
    /// As results name it.
    fn name(&self) -> &'static str;

    /// Starts one for a device. Resolves when it can take requests.
    async fn start(&self, spec: &DeviceSpec) -> Result<Link, StartError>;

    /// What starting one waits for, for people.
    fn progress(&self) -> watch::Receiver<String>;
}

/// The kinds that this sidecar can start.
#[derive(Clone)]
pub struct Runtimes {
    pub torch: Arc<dyn Runtime>,
    pub sim: Arc<dyn Runtime>,
}

impl Runtimes {
    /// The kind that a device has; `shoal_common.profile.runtime_of` is the workers' share of this rule.
    pub fn of(&self, device: &str) -> Arc<dyn Runtime> {
        if device.starts_with("sim") {
            self.sim.clone()
        } else {
            self.torch.clone()
        }
    }
}

/// A running runtime. It ends when this is dropped.
pub struct Link {
    pub requests: mpsc::Sender<RunRequest>,
    /// Ends when the runtime does.
    pub responses: mpsc::Receiver<RunResponse>,
}

/// A runtime that could not be started. Starting it again may help.
#[derive(Debug, thiserror::Error)]
#[error("the {runtime} runtime could not be started: {what}")]
pub struct StartError {
    pub runtime: &'static str,
    pub what: String,
}
