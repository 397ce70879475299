//! Which rows a runtime computes next, and who is to blame when it dies: pure state.
//!
//! Batches go out as they come. When a runtime dies, or fails a batch, every item that was in flight
//! becomes a *solo*: solos run one at a time with nothing else in flight, so that an item that kills
//! the runtime again is known, and fails alone. Other batches wait until the solos are through.

mod rows;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use shoal_exchange::BatchKey;
use shoal_proto::shoal::runtime::v1::{Batch as RuntimeBatch, BatchResult};
use shoal_proto::shoal::sidecar::v1::Span;

use crate::assemble::{Packed, pack};
use crate::batch::Batch;
use crate::clock;
use crate::faults::ItemFault;

/// Batches of one device.
#[derive(Default)]
pub struct Schedule {
    batches: HashMap<BatchKey, Batch>,
    waiting: VecDeque<Run>,
    solos: VecDeque<Run>,
    in_flight: HashMap<u64, Run>,
    last_run: u64,
}

/// Rows that are computed together.
struct Run {
    batch: BatchKey,
    rows: Vec<usize>,
    solo: bool,
    sent_unix_ns: u64,
}

impl Schedule {
    /// Queues a batch that has rows to compute.
    pub fn add(&mut self, batch: Batch) {
        self.waiting.push_back(Run {
            batch: batch.key,
            rows: (0..batch.rows.len()).collect(),
            solo: false,
            sent_unix_ns: 0,
        });
        self.batches.insert(batch.key, batch);
    }

    /// Whether `next` has something, given which models can compute.
    pub fn has_next(&self, is_ready: impl Fn(&str) -> bool) -> bool {
        self.choose(is_ready).is_some()
    }

    /// Whether rows that run alone are in flight, or could be.
    pub fn has_solos(&self, is_ready: impl Fn(&str) -> bool) -> bool {
        let mut in_flight = self.in_flight.values();
        in_flight.any(|run| run.solo) || self.solos.iter().any(|run| self.can_run(run, &is_ready))
    }

    /// Whether rows are in flight.
    pub fn is_computing(&self) -> bool {
        !self.in_flight.is_empty()
    }

    /// What was sent before all else that is in flight.
    pub fn first_in_flight(&self) -> Option<u64> {
        self.in_flight.keys().min().copied()
    }

    /// The next rows for the runtime, now in flight.
    pub fn next(&mut self, is_ready: impl Fn(&str) -> bool) -> Option<RuntimeBatch> {
        let (solo, index) = self.choose(is_ready)?;
        let queue = if solo {
            &mut self.solos
        } else {
            &mut self.waiting
        };
        let mut run = queue.remove(index)?;
        let batch = self.batches.get_mut(&run.batch)?;
        let start = clock::unix_ns();
        let Packed { token_ids, lengths } = pack(batch, &mut run.rows);
        let assemble = clock::span_since("assemble", start);
        run.sent_unix_ns = assemble.end_unix_ns;
        if batch.trace {
            batch.spans.push(assemble);
        }
        self.last_run += 1;
        let request = RuntimeBatch {
            batch_id: self.last_run,
            profile_digest: batch.profile_digest().unwrap_or_default().to_owned(),
            token_ids,
            lengths,
        };
        self.in_flight.insert(self.last_run, run);
        Some(request)
    }

    /// Takes a result in. Returns the batch if nothing of it is left to compute.
    pub fn result(&mut self, result: BatchResult) -> Option<Batch> {
        let run = self.in_flight.remove(&result.batch_id)?;
        let batch = self.batches.get_mut(&run.batch)?;
        batch
            .device
            .add(result.started_unix_ns, result.ended_unix_ns);
        if batch.trace {
            batch
                .spans
                .push(clock::span_since("runtime", run.sent_unix_ns));
            batch.spans.push(Span {
                name: "forward".to_owned(),
                start_unix_ns: result.started_unix_ns,
                end_unix_ns: result.ended_unix_ns,
            });
        }
        let key = run.batch;
        match rows::split(&result, batch, run.rows.len()) {
            Ok(values) => {
                for (row, values) in run.rows.iter().zip(values) {
                    batch.rows[*row].outcome = Some(Ok(values));
                }
            }
            Err(error) if run.solo => {
                tracing::error!(error, "the runtime failed an item that ran alone");
                batch.rows[run.rows[0]].outcome = Some(Err(ItemFault::Runtime(error)));
            }
            Err(error) => {
                tracing::warn!(
                    error,
                    rows = run.rows.len(),
                    "a batch failed: running its items one by one"
                );
                self.split(run);
            }
        }
        self.take_if_done(key)
    }

    /// The runtime is gone, and what was in flight with it. Returns the batches that this completes:
    /// an item that was alone in flight as a solo is to blame, and fails.
    pub fn crashed(&mut self) -> Vec<Batch> {
        let mut runs: Vec<(u64, Run)> = self.in_flight.drain().collect();
        runs.sort_unstable_by_key(|(id, _)| *id);
        let mut done = Vec::new();
        for (_, run) in runs {
            let batch = run.batch;
            if !run.solo {
                self.split(run);
            } else if let Some(batch) = self.batches.get_mut(&batch) {
                batch.rows[run.rows[0]].outcome = Some(Err(ItemFault::RuntimeCrashed));
            }
            done.extend(self.take_if_done(batch));
        }
        done
    }

    /// Skips units that their owner released, as far as they are not in flight. Returns the batches
    /// that have nothing left to compute.
    pub fn release(&mut self, units: &[String]) -> Vec<Batch> {
        for batch in self.batches.values_mut() {
            for member in &mut batch.units {
                member.released |= units.contains(&member.claimed.unit.id);
            }
        }
        self.skip_unwanted()
    }

    /// Drops what waits for streams that have ended: nobody would hear the answer.
    pub fn forget_unheard(&mut self) {
        for batch in self
            .batches
            .values_mut()
            .filter(|batch| batch.outbox.is_closed())
        {
            for member in &mut batch.units {
                member.released = true;
            }
        }
        self.skip_unwanted();
    }

    /// Takes out all batches of a model that can no longer compute.
    pub fn abandon(&mut self, profile_digest: &str) -> Vec<Batch> {
        let of_model = |batch: &mut Batch| batch.profile_digest() == Some(profile_digest);
        let abandoned = self.batches.extract_if(|_, batch| of_model(batch));
        let abandoned: Vec<Batch> = abandoned.map(|(_, batch)| batch).collect();
        let stays = |run: &Run| abandoned.iter().all(|batch| batch.key != run.batch);
        self.waiting.retain(stays);
        self.solos.retain(stays);
        self.in_flight.retain(|_, run| stays(run));
        abandoned
    }

    /// The queue (solos?) and the index in it of what goes next.
    fn choose(&self, is_ready: impl Fn(&str) -> bool) -> Option<(bool, usize)> {
        let can_run = |run: &Run| self.can_run(run, &is_ready);
        match self.solos.iter().position(can_run) {
            Some(index) if self.in_flight.is_empty() => Some((true, index)),
            Some(_) => None,
            None if self.in_flight.values().any(|run| run.solo) => None,
            None => Some((false, self.waiting.iter().position(can_run)?)),
        }
    }

    fn can_run(&self, run: &Run, is_ready: impl Fn(&str) -> bool) -> bool {
        let batch = self.batches.get(&run.batch);
        batch.and_then(Batch::profile_digest).is_some_and(is_ready)
    }

    /// Each row of a run that somebody still wants becomes a solo.
    fn split(&mut self, run: Run) {
        let Some(batch) = self.batches.get_mut(&run.batch) else {
            return;
        };
        let mut rows = run.rows;
        rows.retain(|row| !batch.units[batch.rows[*row].unit].released);
        for (index, member) in batch.units.iter_mut().enumerate() {
            let runs_again = rows.iter().any(|row| batch.rows[*row].unit == index);
            member.reruns += u32::from(runs_again);
        }
        self.solos.extend(rows.into_iter().map(|row| Run {
            batch: run.batch,
            rows: vec![row],
            solo: true,
            sent_unix_ns: 0,
        }));
    }

    fn skip_unwanted(&mut self) -> Vec<Batch> {
        let batches = &self.batches;
        let wanted = |run: &mut Run| {
            let batch = &batches[&run.batch];
            run.rows
                .retain(|row| !batch.units[batch.rows[*row].unit].released);
            !run.rows.is_empty()
        };
        self.waiting.retain_mut(wanted);
        self.solos.retain_mut(wanted);
        let computing = |key: &BatchKey| self.in_flight.values().any(|run| run.batch == *key);
        let done = self
            .batches
            .extract_if(|key, batch| batch.is_done() && !computing(key));
        done.map(|(_, batch)| batch).collect()
    }

    fn take_if_done(&mut self, batch: BatchKey) -> Option<Batch> {
        let is_done = self.batches.get(&batch).is_some_and(Batch::is_done);
        is_done.then(|| self.batches.remove(&batch)).flatten()
    }
}
