//! A device with a scripted runtime: loading, crashes and what the worker hears of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use prost::Message as _;
use shoal_proto::shoal::runtime::v1::run_request::Message as Request;
use shoal_proto::shoal::runtime::v1::run_response::Message as Response;
use shoal_proto::shoal::runtime::v1::{Batch as RuntimeBatch, BatchResult, Loaded, RunResponse};
use shoal_proto::shoal::sidecar::v1::attach_response::Message;
use shoal_proto::shoal::sidecar::v1::{BatchDone, LoadModel, ModelState, ModelStatus};
use shoal_proto::shoal::v1::EncodeResult;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::StreamExt;

use super::Device;
use crate::batch::Batch;
use crate::hold::{Claimed, Hold};
use crate::model::Catalogue;
use crate::outbox::{Outbox, Outgoing};
use crate::runtimes::{DeviceSpec, Link, Runtime, StartError};
use crate::testing::{MINILM_JSON, minilm_folder, unit_of_lengths};

/// A row of this length kills the runtime.
const POISON: usize = 13;
/// A batch with a row of this length is answered with an error.
const BAD: usize = 17;

/// Each start takes a permit, so that a test can keep the runtime away.
struct Scripted {
    starts: AtomicU32,
    permits: Semaphore,
}

#[tonic::async_trait]
impl Runtime for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn start(&self, _spec: &DeviceSpec) -> Result<Link, StartError> {
        self.permits.acquire().await.unwrap().forget();
        self.starts.fetch_add(1, Ordering::SeqCst);
        let (requests, mut inbox) = mpsc::channel(8);
        let (outbox, responses) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Some(request) = recv(&mut inbox).await {
                let Some(message) = respond(request) else {
                    return;
                };
                let message = Some(message);
                outbox.send(RunResponse { message }).await.unwrap();
            }
        });
        Ok(Link {
            requests,
            responses,
        })
    }

    fn progress(&self) -> watch::Receiver<String> {
        watch::channel("it starts".to_owned()).1
    }
}

async fn recv(
    inbox: &mut mpsc::Receiver<shoal_proto::shoal::runtime::v1::RunRequest>,
) -> Option<Request> {
    inbox.recv().await?.message
}

/// None kills the runtime.
fn respond(request: Request) -> Option<Response> {
    match request {
        Request::Load(load) => Some(Response::Loaded(Loaded {
            profile_digest: load.profile_digest,
            memory_bytes: 42,
            ..Loaded::default()
        })),
        Request::Batch(batch) => computed(batch).map(Response::BatchResult),
        Request::Unload(_) => panic!("no test unloads"),
    }
}

/// Each value of a row is the row's length.
fn computed(batch: RuntimeBatch) -> Option<BatchResult> {
    let words = batch.lengths.chunks_exact(4);
    let lengths = words.map(|w| i32::from_le_bytes(w.try_into().unwrap()) as usize);
    let lengths: Vec<usize> = lengths.collect();
    let mut result = BatchResult {
        batch_id: batch.batch_id,
        dimensions: 384,
        ..BatchResult::default()
    };
    if lengths.contains(&POISON) {
        return None;
    }
    if lengths.contains(&BAD) {
        result.error = "a bad row".to_owned();
        return Some(result);
    }
    let row = |length: &usize| [*length as f32; 384].map(f32::to_le_bytes).concat();
    result.rows = lengths.iter().flat_map(row).collect::<Vec<u8>>().into();
    Some(result)
}

struct Bench {
    runtime: Arc<Scripted>,
    device: Device,
    outbox: Outbox,
    outgoing: Outgoing,
}

impl Bench {
    async fn new() -> Self {
        let runtime = Arc::new(Scripted {
            starts: AtomicU32::new(0),
            permits: Semaphore::new(100),
        });
        let spec = DeviceSpec {
            device: "cpu".to_owned(),
            streams: 1,
            threads: 1,
        };
        let catalogue = Arc::new(Catalogue::default());
        let device = Device::start(spec, runtime.clone(), Hold::start(), catalogue);
        let (outbox, outgoing) = Outbox::new();
        device.attach(outbox.clone()).await;
        Self {
            runtime,
            device,
            outbox,
            outgoing,
        }
    }

    async fn load(&self, folder: &str) {
        let load = LoadModel {
            profile_digest: "minilm".to_owned(),
            profile_json: MINILM_JSON.to_owned(),
            folder: folder.to_owned(),
        };
        self.device.load(load).await;
    }

    async fn ready() -> Self {
        let mut bench = Self::new().await;
        bench.load(minilm_folder().to_str().unwrap()).await;
        bench.state(ModelState::Ready).await;
        bench
    }

    async fn message(&mut self) -> Message {
        self.outgoing
            .next()
            .await
            .unwrap()
            .unwrap()
            .message
            .unwrap()
    }

    /// The next status of this state.
    async fn state(&mut self, state: ModelState) -> ModelStatus {
        loop {
            if let Message::ModelStatus(status) = self.message().await
                && status.state() == state
            {
                return status;
            }
        }
    }

    async fn run(&self, units: &[(&str, &[usize])]) {
        let claimed = |(id, lengths): &(&str, &[usize])| Claimed {
            unit: Arc::new(unit_of_lengths(id, lengths)),
            deliveries: 1,
        };
        let units = units.iter().map(claimed).collect();
        let batch = Batch::new(1, 77, false, self.outbox.clone(), units);
        self.device.run(batch).await;
    }

    async fn done(&mut self) -> BatchDone {
        loop {
            match self.message().await {
                Message::BatchDone(done) => return done,
                Message::ModelStatus(_) => {}
                other => panic!("not awaited: {other:?}"),
            }
        }
    }
}

/// By unit, the reason of each item's fault; empty for items that have values.
fn reasons(done: &BatchDone) -> HashMap<String, Vec<String>> {
    let reason = |bytes: &bytes::Bytes| {
        let status = EncodeResult::decode(bytes.clone()).unwrap().status;
        status.map_or_else(String::new, |status| status.reason)
    };
    let units = done.units.iter();
    units
        .map(|unit| {
            (
                unit.unit_id.clone(),
                unit.results.iter().map(reason).collect(),
            )
        })
        .collect()
}

#[tokio::test]
async fn a_model_is_loaded_once_and_asking_again_says_so() {
    let mut bench = Bench::new().await;
    let folder = minilm_folder();
    bench.load(folder.to_str().unwrap()).await;
    let Message::ModelStatus(first) = bench.message().await else {
        panic!()
    };
    assert_eq!(first.state(), ModelState::Loading);
    assert_eq!(bench.state(ModelState::Ready).await.memory_bytes, 42);
    bench.load(folder.to_str().unwrap()).await;
    let Message::ModelStatus(again) = bench.message().await else {
        panic!()
    };
    assert_eq!(again.state(), ModelState::Ready);
    assert!(bench.device.model("minilm").is_some());
}

#[tokio::test]
async fn a_model_without_a_tokenizer_fails_and_can_be_asked_for_again() {
    let mut bench = Bench::new().await;
    bench.load("/nowhere").await;
    let status = bench.state(ModelState::Failed).await;
    assert!(
        status.error.contains("/nowhere/tokenizer.json"),
        "{}",
        status.error
    );
    bench.load(minilm_folder().to_str().unwrap()).await;
    bench.state(ModelState::Ready).await;
}

#[tokio::test]
async fn a_batch_before_its_model_is_ready_is_refused() {
    let mut bench = Bench::new().await;
    bench.run(&[("u", &[3])]).await;
    match bench.message().await {
        Message::BatchRefused(refused) => {
            assert!(refused.model_not_ready && refused.batch_id == 77);
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn poison_costs_one_more_death_and_fails_alone() {
    let mut bench = Bench::ready().await;
    bench.run(&[("a", &[3, POISON, 5]), ("b", &[4])]).await;
    let done = bench.done().await;
    let reasons = reasons(&done);
    assert_eq!(reasons["a"], ["", "RUNTIME_CRASHED", ""]);
    assert_eq!(reasons["b"], [""]);
    assert!(done.units.iter().all(|unit| unit.attempt == 2));
    // Asked again, because the state may have been told before the batch was done.
    bench.load(minilm_folder().to_str().unwrap()).await;
    bench.state(ModelState::Ready).await;
    bench.run(&[("c", &[3])]).await;
    assert!(
        bench
            .done()
            .await
            .units
            .iter()
            .all(|unit| unit.attempt == 1)
    );
    assert_eq!(bench.runtime.starts.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_batch_that_fails_without_a_crash_fails_only_the_bad_item() {
    let mut bench = Bench::ready().await;
    bench.run(&[("a", &[3, BAD]), ("b", &[4])]).await;
    let reasons = reasons(&bench.done().await);
    assert_eq!(reasons["a"], ["", "RUNTIME_ERROR"]);
    assert_eq!(reasons["b"], [""]);
    assert_eq!(bench.runtime.starts.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_crash_is_told_and_units_released_meanwhile_are_skipped() {
    let mut bench = Bench::ready().await;
    let permits = bench.runtime.permits.available_permits();
    bench.runtime.permits.forget_permits(permits);
    bench.run(&[("a", &[POISON]), ("b", &[4])]).await;
    bench.state(ModelState::Loading).await;
    bench.device.release(vec!["a".to_owned()]).await;
    bench.runtime.permits.add_permits(100);
    bench.state(ModelState::Ready).await;
    let done = bench.done().await;
    assert_eq!(
        reasons(&done),
        HashMap::from([("b".to_owned(), vec![String::new()])])
    );
}
