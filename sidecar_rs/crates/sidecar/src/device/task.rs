//! The device's loop: what its worker asks and what its runtime says, one after the other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shoal_proto::shoal::runtime::v1::run_request::Message as Request;
use shoal_proto::shoal::runtime::v1::run_response::Message as Response;
use shoal_proto::shoal::runtime::v1::{RunRequest, RunResponse};
use shoal_proto::shoal::sidecar::v1::attach_response::Message;
use shoal_proto::shoal::sidecar::v1::{BatchRefused, LoadModel};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Command;
use super::life::{Event, Life};
use super::loads::{Loads, Turn};
use super::models::{Models, Tokenizable};
use super::suspects::Suspects;
use crate::backoff::Backoff;
use crate::batch::Batch;
use crate::hold::Hold;
use crate::limits::{BATCH_SILENCE, LOAD_SILENCE, ROWS_AT_ONCE};
use crate::model::{Catalogue, Model, ModelError};
use crate::outbox::Outbox;
use crate::post;
use crate::runtimes::{DeviceSpec, Runtime, StartError};
use crate::schedule::Schedule;

type Read = (String, Result<Arc<Model>, ModelError>);

struct Task {
    spec: DeviceSpec,
    runtime: Arc<dyn Runtime>,
    hold: Hold,
    catalogue: Arc<Catalogue>,
    publish: watch::Sender<Tokenizable>,
    outbox: Option<Outbox>,
    models: Models,
    /// Files that are being read.
    reading: JoinSet<Read>,
    loads: Loads,
    suspects: Suspects,
    schedule: Schedule,
    /// When the runtime last gave the answer that is due first, or was sent something while nothing
    /// was awaited of it.
    silent_since: Instant,
    backoff: Backoff,
    progress: watch::Receiver<String>,
    /// Why the last runtime could not be started, until one is.
    start_error: Option<StartError>,
    is_up: bool,
}

pub async fn run(
    spec: DeviceSpec,
    runtime: Arc<dyn Runtime>,
    hold: Hold,
    catalogue: Arc<Catalogue>,
    mut inbox: mpsc::Receiver<Command>,
    publish: watch::Sender<Tokenizable>,
) {
    let mut task = Task {
        spec,
        hold,
        catalogue,
        publish,
        outbox: None,
        models: Models::default(),
        reading: JoinSet::new(),
        loads: Loads::default(),
        suspects: Suspects::default(),
        schedule: Schedule::default(),
        silent_since: Instant::now(),
        backoff: Backoff::default(),
        progress: runtime.progress(),
        start_error: None,
        is_up: false,
        runtime,
    };
    let mut life = task.start();
    loop {
        let has_next = task.has_next();
        let hangs_at = task.patience().map(|patience| task.silent_since + patience);
        tokio::select! {
            command = inbox.recv() => match command {
                Some(command) => task.obey(command).await,
                None => return,
            },
            event = life.event(has_next) => task.handle(event, &mut life).await,
            () = at(hangs_at) => {
                tracing::error!(device = task.spec.device, "the runtime hangs: ending it");
                task.handle(Event::Ended, &mut life).await;
            }
            Some(Ok((digest, read))) = task.reading.join_next() => task.files_read(&digest, read).await,
            Ok(()) = task.progress.changed() => task.tell_loading(),
        }
    }
}

/// Never comes without an instant.
async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

impl Task {
    fn start(&mut self) -> Life {
        Life::start(self.runtime.clone(), self.spec.clone(), self.backoff.wait())
    }

    fn has_next(&self) -> bool {
        match self.turn() {
            Turn::Load => true,
            Turn::Batch => self
                .schedule
                .has_next(|digest| self.models.is_ready(digest)),
            Turn::Wait => false,
        }
    }

    fn turn(&self) -> Turn {
        let solos = self
            .schedule
            .has_solos(|digest| self.models.is_ready(digest));
        self.loads.turn(solos, self.schedule.is_computing())
    }

    /// How long the runtime may be silent; as long as it likes while nothing is awaited of it.
    fn patience(&self) -> Option<Duration> {
        if self.loads.is_loading() {
            return Some(LOAD_SILENCE);
        }
        self.schedule.is_computing().then_some(BATCH_SILENCE)
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Attach(outbox) => {
                self.outbox = Some(outbox);
                self.schedule.forget_unheard();
            }
            Command::Detach => {
                self.outbox = None;
                self.schedule.forget_unheard();
            }
            Command::Load(load) => self.load(load),
            Command::Unload(digest) => {
                self.models.unload(&digest);
                self.publish.send_replace(self.models.tokenizable());
                self.loads.unload(&digest);
                self.refuse_all(&digest).await;
            }
            Command::Run(batch) => self.run_batch(batch).await,
            Command::Release(units) => {
                for batch in self.schedule.release(&units) {
                    self.answer(batch).await;
                }
            }
        }
    }

    async fn handle(&mut self, event: Event, life: &mut Life) {
        match event {
            Event::Started(Ok(link)) => {
                self.start_error = None;
                self.is_up = true;
                self.loads = Loads::default();
                for load in self.models.to_load() {
                    let suspect = self.suspects.contains(&load.profile_digest);
                    self.loads.load(load, suspect);
                }
                *life = Life::Up(link);
                self.tell_loading();
            }
            Event::Started(Err(error)) => {
                tracing::error!(%error, device = self.spec.device, "trying again");
                self.start_error = Some(error);
                *life = self.start();
                self.tell_loading();
            }
            Event::Response(response) => {
                // What it was sent first, it began first: it may answer others beside one that hangs.
                // Loads are begun in their turn too, and batches wait behind them.
                let due = (self.schedule.first_in_flight(), self.loads.is_loading());
                self.heard(response).await;
                if due.0.is_none()
                    || due != (self.schedule.first_in_flight(), self.loads.is_loading())
                {
                    self.silent_since = Instant::now();
                }
            }
            Event::Room => {
                if self.patience().is_none() {
                    self.silent_since = Instant::now();
                }
                if let (Some(request), Life::Up(link)) = (self.next_request(), life) {
                    let message = Some(request);
                    // There is room, and only this task sends; a runtime that just ended is noticed
                    // by its responses.
                    let _ = link.requests.try_send(RunRequest { message });
                }
            }
            Event::Ended => {
                tracing::warn!(
                    device = self.spec.device,
                    "the runtime is gone: starting another"
                );
                // First, so that the old runtime is ended before the new one starts.
                *life = self.start();
                self.is_up = false;
                for batch in self.schedule.crashed() {
                    self.answer(batch).await;
                }
                if let Some(digest) = self.loads.runtime_gone() {
                    self.blame(&digest).await;
                }
                for digest in self.models.runtime_gone() {
                    self.tell(&digest);
                }
            }
        }
    }

    async fn heard(&mut self, response: RunResponse) {
        match response.message {
            Some(Response::Loaded(loaded)) => {
                tracing::info!(
                    profile = loaded.profile_digest,
                    element_type = loaded.element_type,
                    load_ms = loaded.load_ms,
                    "loaded"
                );
                self.backoff.reset();
                self.loads.answered();
                self.suspects.survived(&loaded.profile_digest);
                self.models
                    .loaded(&loaded.profile_digest, loaded.memory_bytes);
                self.tell(&loaded.profile_digest);
            }
            Some(Response::LoadFailed(failed)) => {
                tracing::error!(
                    profile = failed.profile_digest,
                    error = failed.error,
                    "not loaded"
                );
                self.loads.answered();
                self.suspects.survived(&failed.profile_digest);
                self.models.failed(&failed.profile_digest, failed.error);
                self.tell(&failed.profile_digest);
                self.refuse_all(&failed.profile_digest).await;
            }
            Some(Response::BatchResult(result)) => {
                if let Some(batch) = self.schedule.result(result) {
                    self.answer(batch).await;
                }
            }
            Some(Response::Ready(_)) | None => {}
        }
    }

    fn next_request(&mut self) -> Option<Request> {
        match self.turn() {
            Turn::Load => self.loads.next(),
            Turn::Batch => {
                let next = self.schedule.next(|digest| self.models.is_ready(digest));
                next.map(Request::Batch)
            }
            Turn::Wait => None,
        }
    }

    /// The runtime ended while it loaded this model.
    async fn blame(&mut self, digest: &str) {
        let now = Instant::now();
        self.suspects.died(digest, now);
        match self.suspects.verdict(digest, now) {
            Some(error) => {
                tracing::error!(profile = digest, error, "not loaded");
                self.models.failed(digest, error);
                self.tell(digest);
                self.refuse_all(digest).await;
            }
            None => tracing::warn!(
                profile = digest,
                "it was being loaded: it is loaded again last, and alone"
            ),
        }
    }

    fn load(&mut self, load: LoadModel) {
        let digest = load.profile_digest.clone();
        if self.models.wanted(&load) {
            match self.suspects.verdict(&digest, Instant::now()) {
                Some(error) => self.models.failed(&digest, error),
                None => self.read_files(load),
            }
        }
        self.tell(&digest);
    }

    fn read_files(&mut self, load: LoadModel) {
        let catalogue = self.catalogue.clone();
        let runtime = self.runtime.name();
        self.reading.spawn_blocking(move || {
            let folder = Path::new(&load.folder);
            let model = catalogue
                .get(&load.profile_digest, &load.profile_json, folder)
                .and_then(|model| model.check_runtime(runtime).map(|()| model));
            (load.profile_digest, model)
        });
    }

    async fn files_read(&mut self, digest: &str, read: Result<Arc<Model>, ModelError>) {
        match read {
            Ok(model) => {
                if let Some(load) = self.models.read(model) {
                    let suspect = self.suspects.contains(digest);
                    self.loads.load(load, suspect);
                }
                self.publish.send_replace(self.models.tokenizable());
            }
            Err(error) => {
                tracing::error!(profile = digest, %error, "not loaded");
                self.models.failed(digest, error.to_string());
            }
        }
        self.tell(digest);
    }

    async fn run_batch(&mut self, batch: Batch) {
        if batch.is_done() {
            return self.answer(batch).await;
        }
        let digest = batch.profile_digest().unwrap_or_default();
        let of_another = |model: &Model| model.digest != digest;
        let units = batch.units.iter().map(|member| &member.claimed.unit);
        let strays = units.filter(|unit| of_another(&unit.model));
        let strays: Vec<String> = strays.map(|unit| unit.id.clone()).collect();
        if !strays.is_empty() {
            tracing::error!(?strays, "a batch mixes profiles");
            self.refuse(batch, strays).await;
        } else if self.models.is_ready(digest) {
            self.schedule.add(batch);
        } else {
            self.refuse(batch, Vec::new()).await;
        }
    }

    async fn refuse_all(&mut self, digest: &str) {
        for batch in self.schedule.abandon(digest) {
            self.refuse(batch, Vec::new()).await;
        }
    }

    /// Without `not_owned`, because the model is not ready.
    async fn refuse(&mut self, batch: Batch, not_owned: Vec<String>) {
        self.hold.unclaim(batch.key, batch.unit_ids()).await;
        batch.outbox.send(Message::BatchRefused(BatchRefused {
            batch_id: batch.batch_id,
            model_not_ready: not_owned.is_empty(),
            not_owned,
        }));
    }

    /// Writes the results, beside inference where that takes longer than a thread takes to wake. The units are forgotten before the worker hears of them,
    /// so that a copy that it is delivered afterwards is new.
    async fn answer(&mut self, batch: Batch) {
        self.hold.finish(batch.key, batch.unit_ids()).await;
        let runtime = self.runtime.name();
        let rows = batch.rows.len();
        let write = move || {
            let outbox = batch.outbox.clone();
            outbox.send(Message::BatchDone(post::answer(batch, runtime)));
        };
        if rows <= ROWS_AT_ONCE {
            write();
        } else {
            tokio::task::spawn_blocking(write);
        }
    }

    fn tell(&self, digest: &str) {
        if let Some(outbox) = &self.outbox
            && let Some(status) = self.models.status(digest, &self.progress_text())
        {
            outbox.send(Message::ModelStatus(status));
        }
    }

    fn progress_text(&self) -> String {
        if self.is_up {
            return "the runtime loads it".to_owned();
        }
        let progress = self.progress.borrow();
        match &self.start_error {
            Some(error) => format!("{} (the last try: {error})", *progress),
            None => progress.clone(),
        }
    }

    fn tell_loading(&mut self) {
        self.progress.mark_unchanged();
        for digest in self.models.loading() {
            self.tell(&digest);
        }
    }
}
