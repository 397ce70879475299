//! A worker's stream, read message by message.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shoal_exchange::{ModelKey, Offered, Resident, Standing};
use shoal_proto::shoal::sidecar::v1::attach_request::Message as Request;
use shoal_proto::shoal::sidecar::v1::attach_response::Message as Response;
use shoal_proto::shoal::sidecar::v1::{
    Admit, Admitted, AttachRequest, BatchRefused, Hello, Offer, Release, ReturnUnits, RunBatch,
    State, Welcome,
};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

use crate::admit;
use crate::batch::Batch;
use crate::hold::{Hold, HoldEnded, Speaker};
use crate::outbox::Outbox;
use crate::roster::{Roster, Seat};
use crate::tokenize::Pool;

/// What every stream needs.
#[derive(Clone)]
pub struct Services {
    /// Names this run of the sidecar.
    pub instance: Arc<str>,
    pub roster: Roster,
    pub hold: Hold,
    pub pool: Pool,
    /// Names batches on this machine.
    pub batches: Arc<AtomicU64>,
    pub shutdown: CancellationToken,
}

struct Stream {
    services: Services,
    seat: Seat,
    speaker: Speaker,
}

/// Serves a stream until it ends, is replaced, or the sidecar stops.
pub async fn serve(services: Services, mut requests: Streaming<AttachRequest>, outbox: Outbox) {
    let hello = match first(&mut requests).await {
        Ok(hello) => hello,
        Err(status) => return outbox.close(status),
    };
    // Before it joins: from then on units may be granted to it.
    outbox.send(Response::Welcome(Welcome {
        instance: services.instance.as_ref().to_owned(),
    }));
    let seat = match services.roster.join(hello, outbox.clone()).await {
        Ok(seat) => seat,
        Err(error) => return outbox.close(Status::unavailable(error.to_string())),
    };
    tracing::info!(worker = seat.worker, "a worker is here");
    seat.device.attach(outbox.clone()).await;
    let worker = seat.worker.clone();
    let stream = Stream {
        services,
        seat,
        speaker: Speaker { worker, outbox },
    };
    let status = stream.read(&mut requests).await;
    tracing::info!(worker = stream.seat.worker, %status, "a worker's stream ended");
    stream.speaker.outbox.close(status);
    stream.services.roster.leave(stream.seat).await;
}

async fn first(requests: &mut Streaming<AttachRequest>) -> Result<Hello, Status> {
    let message = requests
        .message()
        .await?
        .and_then(|request| request.message);
    match message {
        Some(Request::Hello(hello)) if hello.worker.is_empty() => {
            Err(Status::invalid_argument("hello.worker is empty"))
        }
        Some(Request::Hello(hello)) => Ok(hello),
        _ => Err(Status::invalid_argument("the first message must be Hello")),
    }
}

impl Stream {
    /// Reads to the end. Returns what ended it.
    async fn read(&self, requests: &mut Streaming<AttachRequest>) -> Status {
        loop {
            let request = tokio::select! {
                request = requests.message() => request,
                () = self.speaker.outbox.closed() => return Status::aborted("nobody reads the answers"),
                () = self.services.shutdown.cancelled() => {
                    return Status::unavailable("the sidecar is shutting down");
                }
            };
            let AttachRequest { message, more } = match request {
                Ok(Some(request)) => request,
                Ok(None) => return Status::ok("the worker ended it"),
                Err(status) => return status,
            };
            let next = more.into_iter().map(|request| request.message);
            for message in iter::once(message).chain(next).flatten() {
                if let Err(error) = self.obey(message).await {
                    return Status::unavailable(error.to_string());
                }
            }
        }
    }

    async fn obey(&self, message: Request) -> Result<(), HoldEnded> {
        let hold = &self.services.hold;
        match message {
            Request::Hello(_) => {}
            Request::LoadModel(load) => self.seat.device.load(load).await,
            Request::UnloadModel(unload) => self.seat.device.unload(unload.profile_digest).await,
            Request::Admit(admit) => self.admit(admit).await?,
            Request::RunBatch(batch) => self.run_batch(batch).await,
            Request::Release(Release { unit_ids }) => {
                self.seat.device.release(unit_ids.clone()).await;
                hold.release(&self.speaker, unit_ids).await;
            }
            Request::State(state) => hold.post(&self.speaker, standing(state)).await,
            Request::Offer(said) => hold.offer(&self.speaker, offer(said)).await,
            Request::ReturnUnits(ReturnUnits { unit_ids }) => {
                hold.give_back(&self.speaker, unit_ids).await;
            }
        }
        Ok(())
    }

    async fn admit(&self, admit: Admit) -> Result<(), HoldEnded> {
        let Services { hold, pool, .. } = &self.services;
        let read = admit::read(admit, |digest| self.seat.device.model(digest));
        if !read.refused.is_empty() {
            let units = read.refused;
            let refused = Response::Admitted(Admitted { units });
            self.speaker.outbox.send(refused);
        }
        let wanted = hold.admit(&self.speaker, read.deliveries).await?;
        let arrivals = read.arrivals.into_iter().zip(wanted);
        let new = arrivals.filter_map(|(arrival, is_wanted)| is_wanted.then_some(arrival));
        pool.tokenize(new.collect()).await;
        Ok(())
    }

    /// Hands a batch to the device once its units are tokenized; the stream is read on meanwhile.
    async fn run_batch(&self, request: RunBatch) {
        let RunBatch {
            batch_id,
            unit_ids,
            trace,
        } = request;
        let key = self.services.batches.fetch_add(1, Ordering::Relaxed);
        let hold = &self.services.hold;
        let claimed = hold.claim(&self.speaker, key, unit_ids).await;
        let outbox = self.speaker.outbox.clone();
        let device = self.seat.device.clone();
        tokio::spawn(async move {
            match claimed.await {
                Ok(Ok(units)) => {
                    let batch = Batch::new(key, batch_id, trace, outbox, units);
                    device.run(batch).await;
                }
                Ok(Err(error)) => outbox.send(Response::BatchRefused(BatchRefused {
                    batch_id,
                    not_owned: error.units,
                    model_not_ready: false,
                })),
                Err(_) => tracing::debug!(batch_id, "nobody waits for this batch any more"),
            }
        });
    }
}

fn standing(state: State) -> Standing {
    let residents = state.residents.into_iter().map(|resident| Resident {
        model: ModelKey {
            profile_digest: resident.profile_digest,
            adapter_digest: resident.adapter_digest,
        },
        load_ms: resident.load_ms,
    });
    Standing {
        free_in_ms: state.free_in_ms,
        room_ms: state.room_ms,
        residents: residents.collect(),
        grants_seen: state.grants_seen,
    }
}

fn offer(offer: Offer) -> Vec<Offered> {
    let units = offer.units.into_iter().map(|unit| Offered {
        unit: unit.unit_id,
        cost_ms: unit.cost_ms,
        starts_in_ms: unit.starts_in_ms,
    });
    units.collect()
}
