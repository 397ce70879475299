//! The hold's task: obeys one command after the other, and tells workers what came of it.

use std::time::Instant;

use shoal_exchange::{Grant, Rules};
use shoal_proto::shoal::sidecar::v1::attach_response::Message;
use shoal_proto::shoal::sidecar::v1::{NotOwned, Taken};
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::pending::{Pending, Request};
use super::shelf::Shelf;
use super::workers::Workers;
use super::{Command, Said, Speaker};
use crate::limits::{ACK_WAIT, EXCHANGE_TICK, OWNER_SILENCE, SOONER_BY_MS};

pub const RULES: Rules = Rules {
    orphans_last: ACK_WAIT,
    owner_silence: OWNER_SILENCE,
    margin_ms: SOONER_BY_MS,
};

pub async fn serve(mut inbox: mpsc::Receiver<Command>) {
    let mut task = Task {
        shelf: Shelf::new(RULES),
        pending: Pending::default(),
        workers: Workers::default(),
    };
    let mut ticks = tokio::time::interval(EXCHANGE_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            command = inbox.recv() => match command {
                Some(command) => task.obey(command),
                None => return,
            },
            _ = ticks.tick(), if !task.shelf.is_empty() => task.tick(),
        }
        task.pending.retry(&mut task.shelf);
    }
}

struct Task {
    shelf: Shelf,
    pending: Pending,
    workers: Workers,
}

impl Task {
    fn obey(&mut self, command: Command) {
        match command {
            Command::Said(speaker, said) if self.workers.knows(&speaker) => {
                self.hear(speaker, said);
            }
            Command::Said(_, Said::Admit { deliveries, wanted }) => {
                let _ = wanted.send(vec![false; deliveries.len()]);
            }
            Command::Said(..) => {}
            Command::Tokenized(units) => {
                let tokenized = self.shelf.tokenized(units, Instant::now());
                for (outbox, admitted) in tokenized.admitted {
                    outbox.send(Message::Admitted(admitted));
                }
                self.hand_over(tokenized.grants);
            }
            Command::Unclaim { batch, units } => self.shelf.exchange().unclaim(batch, &units),
            Command::Finish { batch, units } => self.shelf.finish(batch, &units),
            Command::WorkerGone { worker, since } => {
                self.workers.leave(&worker);
                let grants = self.shelf.exchange().worker_gone(&worker, since);
                self.workers.announce(&worker);
                self.hand_over(grants);
            }
            Command::WorkerBack { speaker, done } => {
                // What has lapsed by now is not given back.
                self.tick();
                let is_new = self.workers.join(&speaker);
                let exchange = self.shelf.exchange();
                let grants = exchange.worker_back(&speaker.worker, Instant::now());
                self.hand_over(grants);
                self.workers.greet(&speaker.worker);
                if is_new {
                    self.workers.announce(&speaker.worker);
                }
                let _ = done.send(());
            }
        }
    }

    fn hear(&mut self, speaker: Speaker, said: Said) {
        let now = Instant::now();
        let worker = speaker.worker.as_str();
        match said {
            Said::Admit { deliveries, wanted } => {
                let taken_in = self.shelf.admit(worker, &speaker.outbox, deliveries);
                if !taken_in.admitted.units.is_empty() {
                    speaker.outbox.send(Message::Admitted(taken_in.admitted));
                }
                for (from, unit) in taken_in.taken {
                    self.tell_taken(&from, vec![unit], worker);
                }
                let _ = wanted.send(taken_in.wanted);
            }
            Said::Claim {
                batch,
                units,
                claimed,
            } => self.pending.push(Request {
                worker: speaker.worker,
                batch,
                units,
                claimed,
            }),
            Said::Release(units) => self.shelf.release(worker, &units),
            Said::Post(standing) => {
                let grants = self.shelf.exchange().post(worker, standing, now);
                self.hand_over(grants);
            }
            Said::Offer(offer) => {
                let (grants, not_owned) = self.shelf.exchange().offer(worker, &offer, now);
                refuse(&speaker, not_owned);
                self.hand_over(grants);
            }
            Said::GiveBack(units) => {
                let (returned, not_owned) = self.shelf.give_back(worker, &units);
                if !returned.units.is_empty() {
                    speaker.outbox.send(Message::Returned(returned));
                }
                refuse(&speaker, not_owned);
            }
        }
    }

    fn tick(&mut self) {
        let grants = self.shelf.tick(Instant::now());
        self.hand_over(grants);
    }

    /// Tells the new owners, then those of the old ones that are still here.
    fn hand_over(&self, grants: Vec<Grant>) {
        for grant in grants {
            let to = grant.to.clone();
            let mut losers: Vec<(&str, Vec<String>)> = Vec::new();
            for moved in grant.units.iter().filter(|moved| moved.from != to) {
                let unit = moved.unit.clone();
                match losers.iter_mut().find(|(from, _)| *from == moved.from) {
                    Some((_, units)) => units.push(unit),
                    None => losers.push((&moved.from, vec![unit])),
                }
            }
            let granted = self.shelf.granted(&grant);
            self.workers.tell(&to, Message::Granted(granted));
            for (from, units) in losers {
                self.tell_taken(from, units, &to);
            }
        }
    }

    fn tell_taken(&self, from: &str, unit_ids: Vec<String>, by: &str) {
        let by = by.to_owned();
        self.workers
            .tell(from, Message::Taken(Taken { unit_ids, by }));
    }
}

fn refuse(speaker: &Speaker, unit_ids: Vec<String>) {
    if !unit_ids.is_empty() {
        let refused = NotOwned { unit_ids };
        speaker.outbox.send(Message::NotOwned(refused));
    }
}
