//! One simulated runtime: takes requests as a real one does, lets their time pass, and answers.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use shoal_proto::shoal::runtime::v1::run_request::Message as Request;
use shoal_proto::shoal::runtime::v1::run_response::Message as Response;
use shoal_proto::shoal::runtime::v1::{
    Batch, BatchResult, Load, LoadFailed, Loaded, RunRequest, RunResponse,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::chance::Chance;
use super::file::Behaviour;
use super::{pause, rows};
use crate::clock;
use crate::profile::Profile;
use crate::runtimes::DeviceSpec;

pub struct Engine {
    device: String,
    /// Batches at once.
    streams: usize,
    behaviour: Option<Behaviour>,
    chance: Chance,
    /// Dimensions of the models that are loaded, by digest.
    models: HashMap<String, usize>,
    /// In order of arrival.
    waiting: VecDeque<Batch>,
    /// Loads and batches whose time passes.
    passing: JoinSet<End>,
    computing: usize,
}

/// How a load or a batch ended.
enum End {
    Loaded {
        digest: String,
        dimensions: usize,
        load_ms: f64,
    },
    Computed(BatchResult),
    Crash,
}

impl Engine {
    /// Without a behaviour, every model is refused.
    pub fn new(spec: &DeviceSpec, behaviour: Option<Behaviour>, chance: Chance) -> Self {
        Self {
            device: spec.device.clone(),
            streams: spec.streams as usize,
            behaviour,
            chance,
            models: HashMap::new(),
            waiting: VecDeque::new(),
            passing: JoinSet::new(),
            computing: 0,
        }
    }

    /// Runs until it crashes, or until nobody listens.
    pub async fn run(
        mut self,
        mut requests: mpsc::Receiver<RunRequest>,
        responses: mpsc::Sender<RunResponse>,
    ) {
        loop {
            let said = tokio::select! {
                request = requests.recv() => match request {
                    Some(request) => self.asked(request),
                    None => return,
                },
                Some(Ok(end)) = self.passing.join_next() => match self.ended(end) {
                    Some(said) => Some(said),
                    None => {
                        tracing::warn!(device = self.device, "the simulated runtime crashes");
                        return;
                    }
                },
            };
            self.fill_streams();
            if let Some(message) = said {
                let message = Some(message);
                if responses.send(RunResponse { message }).await.is_err() {
                    return;
                }
            }
        }
    }

    fn asked(&mut self, request: RunRequest) -> Option<Response> {
        match request.message? {
            Request::Load(load) => match self.load(&load) {
                Ok(()) => return None,
                Err(error) => {
                    return Some(Response::LoadFailed(LoadFailed {
                        profile_digest: load.profile_digest,
                        error,
                    }));
                }
            },
            Request::Unload(unload) => {
                self.models.remove(&unload.profile_digest);
            }
            Request::Batch(batch) => self.waiting.push_back(batch),
        }
        None
    }

    /// None when the runtime ends with it.
    fn ended(&mut self, end: End) -> Option<Response> {
        match end {
            End::Loaded {
                digest,
                dimensions,
                load_ms,
            } => {
                self.models.insert(digest.clone(), dimensions);
                Some(Response::Loaded(Loaded {
                    profile_digest: digest,
                    memory_bytes: self.behaviour.as_ref().map_or(0, |b| b.memory_bytes),
                    element_type: "f32".to_owned(),
                    load_ms,
                }))
            }
            End::Computed(result) => {
                self.computing -= 1;
                Some(Response::BatchResult(result))
            }
            End::Crash => None,
        }
    }

    fn load(&mut self, load: &Load) -> Result<(), String> {
        let Some(behaviour) = &self.behaviour else {
            return Err(format!(
                "the device {} is simulated, and the sidecar was given no sim file: start it with --sim FILE, or set SHOAL_SIM",
                self.device
            ));
        };
        if behaviour.faults.fail_load {
            return Err(format!("faults.fail_load is set for {}", self.device));
        }
        let profile = Profile::parse(&load.profile_json).map_err(|error| error.to_string())?;
        let digest = load.profile_digest.clone();
        let load_ms = behaviour.load_ms;
        self.passing.spawn(async move {
            tokio::time::sleep(milliseconds(load_ms)).await;
            End::Loaded {
                digest,
                dimensions: profile.encode.dimensions,
                load_ms,
            }
        });
        Ok(())
    }

    fn fill_streams(&mut self) {
        while self.computing < self.streams
            && let Some(batch) = self.waiting.pop_front()
        {
            self.computing += 1;
            let fate = self.fate(&batch);
            self.passing.spawn(fate);
        }
    }

    /// What becomes of a batch whose turn it is, decided at once.
    fn fate(&mut self, batch: &Batch) -> impl Future<Output = End> + Send + 'static {
        let lengths: Vec<usize> = words(&batch.lengths)
            .map(|length| length as usize)
            .collect();
        let ids: Vec<i32> = words(&batch.token_ids).collect();
        let behaviour = self.behaviour.clone().unwrap_or_default();
        // All are drawn for each batch, so that one chance does not move another.
        let factor = self.chance.factor(behaviour.jitter);
        let stalls = self.chance.happens(behaviour.stalls.probability);
        let crashes = self.chance.happens(behaviour.faults.crash_probability);
        let hangs = self.chance.happens(behaviour.faults.hang_probability);
        let stall_ms = if stalls { behaviour.stalls.ms } else { 0.0 };
        let ms = behaviour.cost.ms(&lengths) * factor + stall_ms;
        let mut result = BatchResult {
            batch_id: batch.batch_id,
            started_unix_ns: clock::unix_ns(),
            ..BatchResult::default()
        };
        let dimensions = self.models.get(&batch.profile_digest).copied();
        let poisons = behaviour.faults.crash_on_tokens;
        let end = Instant::now() + milliseconds(ms);
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            let mut crashes = crashes;
            match dimensions {
                Some(dimensions) => {
                    let mut values = Vec::with_capacity(4 * dimensions * lengths.len());
                    let mut rest = ids.as_slice();
                    for length in lengths {
                        let row;
                        (row, rest) = rest.split_at(length.min(rest.len()));
                        crashes |= poisons.iter().any(|poison| poison == row);
                        values.extend(rows::values(row, dimensions).flat_map(f32::to_le_bytes));
                    }
                    result.dimensions = dimensions as u32;
                    result.rows = values.into();
                }
                None => result.error = "its model is not loaded".to_owned(),
            }
            pause::until(end).await;
            result.ended_unix_ns = clock::unix_ns();
            if crashes {
                End::Crash
            } else {
                End::Computed(result)
            }
        }
    }
}

fn words(bytes: &Bytes) -> impl Iterator<Item = i32> {
    let words = bytes.as_chunks().0.iter();
    words.map(|word| i32::from_le_bytes(*word))
}

fn milliseconds(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}
