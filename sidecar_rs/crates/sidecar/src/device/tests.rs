//! A device with a scripted runtime: loading, crashes, hangs and what the worker hears of them. Time
//! stands still while anything can go on without it.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;
use shoal_proto::shoal::runtime::v1::run_request::Message as Request;
use shoal_proto::shoal::runtime::v1::run_response::Message as Response;
use shoal_proto::shoal::runtime::v1::{Batch as RuntimeBatch, BatchResult, Loaded, RunResponse};
use shoal_proto::shoal::sidecar::v1::attach_response::Message;
use shoal_proto::shoal::sidecar::v1::{BatchDone, LoadModel, ModelState, ModelStatus};
use shoal_proto::shoal::v1::EncodeResult;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;
use tokio_stream::StreamExt;

use super::Device;
use crate::batch::Batch;
use crate::hold::{Claimed, Hold};
use crate::limits::{BATCH_SILENCE, LOAD_REST, LOAD_SILENCE};
use crate::model::Catalogue;
use crate::outbox::{Outbox, Outgoing};
use crate::runtimes::{DeviceSpec, Link, Runtime, StartError};
use crate::testing::{MINILM_JSON, minilm_folder, unit_of_lengths};

/// A row of this length kills the runtime.
const POISON: usize = 13;
/// A batch with a row of this length is answered with an error.
const BAD: usize = 17;
/// A batch with a row of this length is never answered.
const HANGING: usize = 19;
/// A batch with a row of this length is never answered, but others are.
const STALLING: usize = 29;
/// A batch with a row of this length takes nearly as long as a runtime may be silent.
const SLOW: usize = 23;
/// Loading this one kills the runtime.
const KILLER: &str = "killer";
/// Loading this one takes longer than a batch may, and not as long as a load may.
const LONG: &str = "long";
/// Loading this one is never answered.
const STUCK: &str = "stuck";

/// Each start takes a permit, so that a test can keep the runtime away.
struct Scripted {
    starts: AtomicU32,
    permits: Semaphore,
    /// Starts, and digests in the order of their loads.
    log: Arc<Mutex<Vec<String>>>,
}

enum Answer {
    Say(Response),
    Die,
    Hang,
    Nothing,
}

#[tonic::async_trait]
impl Runtime for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn start(&self, _spec: &DeviceSpec) -> Result<Link, StartError> {
        self.permits.acquire().await.unwrap().forget();
        self.starts.fetch_add(1, Ordering::SeqCst);
        let log = self.log.clone();
        log.lock().unwrap().push("start".to_owned());
        let (requests, mut inbox) = mpsc::channel(8);
        let (outbox, responses) = mpsc::channel(8);
        tokio::spawn(async move {
            while let Some(request) = recv(&mut inbox).await {
                if let Request::Load(load) = &request {
                    log.lock().unwrap().push(load.profile_digest.clone());
                }
                match respond(request).await {
                    Answer::Say(message) => {
                        let message = Some(message);
                        outbox.send(RunResponse { message }).await.unwrap();
                    }
                    Answer::Die => return,
                    Answer::Hang => return outbox.closed().await,
                    Answer::Nothing => {}
                }
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

async fn respond(request: Request) -> Answer {
    match request {
        Request::Load(load) if load.profile_digest == KILLER => Answer::Die,
        Request::Load(load) if load.profile_digest == STUCK => Answer::Hang,
        Request::Load(load) if load.profile_digest == LONG => {
            tokio::time::sleep(2 * BATCH_SILENCE).await;
            Answer::Say(Response::Loaded(Loaded {
                profile_digest: load.profile_digest,
                ..Loaded::default()
            }))
        }
        Request::Load(load) => Answer::Say(Response::Loaded(Loaded {
            profile_digest: load.profile_digest,
            memory_bytes: 42,
            ..Loaded::default()
        })),
        Request::Batch(batch) => computed(batch).await,
        Request::Unload(_) => panic!("no test unloads"),
    }
}

/// Each value of a row is the row's length.
async fn computed(batch: RuntimeBatch) -> Answer {
    let words = batch.lengths.chunks_exact(4);
    let lengths = words.map(|w| i32::from_le_bytes(w.try_into().unwrap()) as usize);
    let lengths: Vec<usize> = lengths.collect();
    let mut result = BatchResult {
        batch_id: batch.batch_id,
        dimensions: 384,
        ..BatchResult::default()
    };
    if lengths.contains(&SLOW) {
        tokio::time::sleep(BATCH_SILENCE - Duration::from_secs(1)).await;
    }
    if lengths.contains(&POISON) {
        return Answer::Die;
    }
    if lengths.contains(&HANGING) {
        return Answer::Hang;
    }
    if lengths.contains(&STALLING) {
        return Answer::Nothing;
    }
    if lengths.contains(&BAD) {
        result.error = "a bad row".to_owned();
        return Answer::Say(Response::BatchResult(result));
    }
    let row = |length: &usize| [*length as f32; 384].map(f32::to_le_bytes).concat();
    result.rows = lengths.iter().flat_map(row).collect::<Vec<u8>>().into();
    Answer::Say(Response::BatchResult(result))
}

struct Bench {
    runtime: Arc<Scripted>,
    device: Device,
    outbox: Outbox,
    outgoing: Outgoing,
    batches: Cell<u64>,
}

impl Bench {
    async fn new() -> Self {
        let runtime = Arc::new(Scripted {
            starts: AtomicU32::new(0),
            permits: Semaphore::new(100),
            log: Arc::default(),
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
            batches: Cell::new(0),
        }
    }

    async fn load(&self, folder: &str) {
        self.load_as("minilm", folder).await;
    }

    /// Loads minilm's files under another digest.
    async fn load_another(&self, digest: &str) {
        self.load_as(digest, minilm_folder().to_str().unwrap())
            .await;
    }

    async fn load_as(&self, digest: &str, folder: &str) {
        self.load_profile(digest, MINILM_JSON, folder).await;
    }

    async fn load_profile(&self, digest: &str, json: &str, folder: &str) {
        let load = LoadModel {
            profile_digest: digest.to_owned(),
            profile_json: json.to_owned(),
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

    /// The models of the next two statuses of this state, sorted.
    async fn next_two(&mut self, state: ModelState) -> [String; 2] {
        let mut digests = [
            self.state(state).await.profile_digest,
            self.state(state).await.profile_digest,
        ];
        digests.sort();
        digests
    }

    /// What was loaded since the last call, and when runtimes started.
    fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.runtime.log.lock().unwrap())
    }

    fn starts(&self) -> u32 {
        self.runtime.starts.load(Ordering::SeqCst)
    }

    async fn run(&self, units: &[(&str, &[usize])]) {
        let claimed = |(id, lengths): &(&str, &[usize])| Claimed {
            unit: Arc::new(unit_of_lengths(id, lengths)),
            deliveries: 1,
        };
        let units = units.iter().map(claimed).collect();
        let key = self.batches.replace(self.batches.get() + 1);
        let batch = Batch::new(key, 77, false, self.outbox.clone(), units);
        self.device.run(batch).await;
    }

    /// A batch is done, and none of its units had to run again.
    async fn done_at_first(&mut self) {
        let done = self.done().await;
        assert!(done.units.iter().all(|unit| unit.attempt == 1));
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

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
async fn a_model_for_other_runtimes_is_refused() {
    let mut bench = Bench::new().await;
    let json = MINILM_JSON.replace("\"torch\",\"scripted\"", "\"torch\",\"sim\"");
    let folder = minilm_folder();
    bench
        .load_profile("other", &json, folder.to_str().unwrap())
        .await;
    let status = bench.state(ModelState::Failed).await;
    assert_eq!(
        status.error,
        "this device has the scripted runtime, but the profile's runtimes are torch, sim"
    );
    assert_eq!(bench.log(), ["start"], "it was loaded");
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
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
    bench.done_at_first().await;
    assert_eq!(bench.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_fails_without_a_crash_fails_only_the_bad_item() {
    let mut bench = Bench::ready().await;
    bench.run(&[("a", &[3, BAD]), ("b", &[4])]).await;
    let reasons = reasons(&bench.done().await);
    assert_eq!(reasons["a"], ["", "RUNTIME_ERROR"]);
    assert_eq!(reasons["b"], [""]);
    assert_eq!(bench.starts(), 1);
}

#[tokio::test(start_paused = true)]
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

#[tokio::test(start_paused = true)]
async fn a_model_that_kills_its_runtime_is_tried_once_more_last_and_then_fails() {
    let mut bench = Bench::ready().await;
    bench.load_another(KILLER).await;
    let failed = bench.state(ModelState::Failed).await;
    assert_eq!(
        (failed.profile_digest.as_str(), failed.error.as_str()),
        (
            KILLER,
            "the runtime ended while it loaded this model, 2 times"
        )
    );
    bench.state(ModelState::Ready).await;
    let again = ["start", "minilm", KILLER];
    assert_eq!(bench.log(), [&again[..], &again, &again[..2]].concat());
    bench.run(&[("u", &[3])]).await;
    assert_eq!(reasons(&bench.done().await)["u"], [""]);

    bench.load_another(KILLER).await;
    assert_eq!(bench.state(ModelState::Failed).await.error, failed.error);
    assert_eq!(bench.log(), [""; 0]);

    tokio::time::advance(LOAD_REST).await;
    bench.load_another(KILLER).await;
    let third = bench.state(ModelState::Failed).await;
    assert!(third.error.ends_with("3 times"), "{}", third.error);
    bench.state(ModelState::Ready).await;
    assert_eq!(bench.log(), [KILLER, "start", "minilm"]);
}

#[tokio::test(start_paused = true)]
async fn models_that_are_new_too_do_not_suffer_from_one_that_kills() {
    let mut bench = Bench::new().await;
    for digest in [KILLER, "a", STUCK, "b"] {
        bench.load_another(digest).await;
    }
    assert_eq!(bench.next_two(ModelState::Failed).await, [KILLER, STUCK]);
    // Both were ready when the last of the others failed.
    assert_eq!(bench.next_two(ModelState::Ready).await, ["a", "b"]);
    assert_eq!(bench.starts(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_load_is_not_blamed_on_items_nor_items_on_a_load() {
    let mut bench = Bench::ready().await;
    // The loads are sent while the batch still runs.
    bench.run(&[("a", &[SLOW]), ("b", &[POISON])]).await;
    bench.load_another(KILLER).await;
    bench.load_another("innocent").await;
    let reasons = reasons(&bench.done().await);
    assert_eq!(
        (&reasons["a"][0][..], &reasons["b"][0][..]),
        ("", "RUNTIME_CRASHED")
    );
    // Asked again, because states may have been told before the batch was done.
    bench.load_another(KILLER).await;
    assert_eq!(bench.state(ModelState::Failed).await.profile_digest, KILLER);
    bench.load_another("innocent").await;
    while bench.state(ModelState::Ready).await.profile_digest != "innocent" {}
}

#[tokio::test(start_paused = true)]
async fn a_hanging_runtime_is_ended_and_only_the_item_that_hangs_it_fails() {
    let mut bench = Bench::ready().await;
    let began = Instant::now();
    bench.run(&[("a", &[3, HANGING]), ("b", &[4])]).await;
    let done = bench.done().await;
    let reasons = reasons(&done);
    assert_eq!(reasons["a"], ["", "RUNTIME_CRASHED"]);
    assert_eq!(reasons["b"], [""]);
    assert!(done.units.iter().all(|unit| unit.attempt == 2));
    assert_eq!(began.elapsed().as_secs(), 2 * BATCH_SILENCE.as_secs());
    bench.run(&[("c", &[3])]).await;
    bench.done().await;
    assert_eq!(bench.starts(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_is_noticed_while_others_are_answered() {
    let mut bench = Bench::ready().await;
    bench.run(&[("stalls", &[STALLING])]).await;
    let began = Instant::now();
    for other in ["a", "b", "c"] {
        tokio::time::sleep(BATCH_SILENCE / 4).await;
        bench.run(&[(other, &[3])]).await;
        assert_eq!(reasons(&bench.done().await)[other], [""]);
    }
    assert_eq!(
        reasons(&bench.done().await)["stalls"],
        ["RUNTIME_CRASHED"],
        "it ran again, alone"
    );
    assert_eq!(began.elapsed().as_secs(), 2 * BATCH_SILENCE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_waits_behind_a_long_load_does_not_hang() {
    let mut bench = Bench::ready().await;
    bench.load_another(LONG).await;
    tokio::time::sleep(BATCH_SILENCE / 4).await;
    bench.run(&[("waits", &[3]), ("is slow", &[SLOW])]).await;
    bench.done_at_first().await;
    assert_eq!(bench.starts(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_load_may_take_longer_and_fails_when_it_hangs_twice() {
    let mut bench = Bench::ready().await;
    let began = Instant::now();
    bench.load_another(STUCK).await;
    let failed = bench.state(ModelState::Failed).await;
    assert_eq!(failed.profile_digest, STUCK);
    assert_eq!(began.elapsed().as_secs(), 2 * LOAD_SILENCE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_is_slow_or_idle_does_not_hang() {
    let mut bench = Bench::ready().await;
    tokio::time::sleep(100 * LOAD_SILENCE).await;
    for unit in ["a", "b", "c"] {
        bench.run(&[(unit, &[SLOW])]).await;
    }
    for _ in 0..3 {
        assert_eq!(bench.done().await.units[0].attempt, 1);
    }
    assert_eq!(bench.starts(), 1);
}
