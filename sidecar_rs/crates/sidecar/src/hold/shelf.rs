//! The exchange's table together with what each unit holds: pure state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use shoal_exchange::{Admission, BatchKey, Exchange, Grant, ModelKey, NotOwned, Rules};
use shoal_proto::shoal::sidecar::v1::{
    Admitted, AdmittedUnit, Granted, GrantedUnit, Returned, ReturnedUnit,
};

use crate::outbox::Outbox;
use crate::unit::{HeldUnit, Size};

/// One delivery of a unit, as its worker pulled it.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub unit: String,
    pub ack_subject: String,
    /// Deliveries so far, this one included.
    pub deliveries: u32,
    pub traceparent: String,
    /// What it runs with.
    pub model: ModelKey,
    /// As it was pulled.
    pub whole: Bytes,
    /// The same without items and blobs.
    pub header: Bytes,
}

/// A unit on its way into a batch.
#[derive(Clone)]
pub struct Claimed {
    pub unit: Arc<HeldUnit>,
    pub deliveries: u32,
}

/// What a claim came to.
pub enum Claim {
    /// The units are in the batch.
    Claimed(Vec<Claimed>),
    /// Some are still being tokenized; none is in the batch yet.
    Awaited,
}

/// What an Admit came to.
pub struct TakenIn {
    /// Which deliveries are of new units.
    pub wanted: Vec<bool>,
    /// The answers for those that are here already.
    pub admitted: Admitted,
    /// Units that were a silent worker's until now: that worker, and the unit.
    pub taken: Vec<(String, String)>,
}

/// What the content of units came to.
pub struct Tokenized {
    /// The answers by the stream that they go to.
    pub admitted: Vec<(Outbox, Admitted)>,
    /// Units that waited for it to change hands.
    pub grants: Vec<Grant>,
}

struct Place {
    deliveries: u32,
    traceparent: String,
    whole: Bytes,
    header: Bytes,
    content: Content,
}

enum Content {
    /// Is being tokenized; these streams want to hear of it.
    Awaited(Vec<Outbox>),
    Here(Arc<HeldUnit>),
}

pub struct Shelf {
    exchange: Exchange,
    places: HashMap<String, Place>,
}

impl Shelf {
    pub fn new(rules: Rules) -> Self {
        Self {
            exchange: Exchange::new(rules),
            places: HashMap::new(),
        }
    }

    /// Moves that change no content go to the exchange itself.
    pub fn exchange(&mut self) -> &mut Exchange {
        &mut self.exchange
    }

    pub fn is_empty(&self) -> bool {
        self.exchange.is_empty()
    }

    /// Takes deliveries in.
    pub fn admit(&mut self, worker: &str, outbox: &Outbox, deliveries: Vec<Delivery>) -> TakenIn {
        let mut wanted = Vec::with_capacity(deliveries.len());
        let mut admitted = Admitted::default();
        let mut taken = Vec::new();
        for delivery in deliveries {
            let Delivery { unit, model, .. } = delivery;
            let admission = self
                .exchange
                .admit(worker, &unit, delivery.ack_subject, model);
            wanted.push(admission == Admission::New);
            if let Admission::Held {
                taken_from: Some(from),
                ..
            } = admission
            {
                taken.push((from, unit.clone()));
            }
            let place = self.places.entry(unit).or_insert_with(|| Place {
                deliveries: 0,
                traceparent: delivery.traceparent,
                whole: delivery.whole,
                header: delivery.header,
                content: Content::Awaited(Vec::new()),
            });
            place.deliveries = place.deliveries.max(delivery.deliveries);
            match &mut place.content {
                Content::Awaited(waiting) => waiting.push(outbox.clone()),
                Content::Here(unit) => admitted.units.push(answer(&self.exchange, unit)),
            }
        }
        TakenIn {
            wanted,
            admitted,
            taken,
        }
    }

    /// Stores content.
    pub fn tokenized(&mut self, units: Vec<HeldUnit>, now: Instant) -> Tokenized {
        let mut admitted: Vec<(Outbox, Admitted)> = Vec::new();
        let mut here: Vec<Arc<HeldUnit>> = Vec::with_capacity(units.len());
        for unit in units {
            // Released meanwhile: nobody wants it any more.
            let Some(place) = self.places.get_mut(&unit.id) else {
                continue;
            };
            let unit = Arc::new(unit);
            let content = Content::Here(unit.clone());
            let Content::Awaited(waiting) = std::mem::replace(&mut place.content, content) else {
                continue;
            };
            let answer = answer(&self.exchange, &unit);
            here.push(unit);
            for outbox in waiting {
                match admitted
                    .iter_mut()
                    .find(|(other, _)| other.is_same(&outbox))
                {
                    Some((_, admitted)) => admitted.units.push(answer.clone()),
                    None => {
                        let units = vec![answer.clone()];
                        admitted.push((outbox, Admitted { units }));
                    }
                }
            }
        }
        let here = here.iter().map(|unit| unit.id.as_str());
        let grants = self.exchange.tokenized(here, now);
        Tokenized { admitted, grants }
    }

    /// Claims units for a batch: all of them, or none.
    pub fn claim(
        &mut self,
        worker: &str,
        batch: BatchKey,
        units: &[String],
    ) -> Result<Claim, NotOwned> {
        self.exchange.claim(worker, batch, units)?;
        let mut claimed = Vec::with_capacity(units.len());
        for place in units.iter().filter_map(|id| self.places.get(id)) {
            if let Content::Here(unit) = &place.content {
                claimed.push(Claimed {
                    unit: unit.clone(),
                    deliveries: place.deliveries,
                });
            }
        }
        if claimed.len() < units.len() {
            self.exchange.unclaim(batch, units);
            return Ok(Claim::Awaited);
        }
        Ok(Claim::Claimed(claimed))
    }

    pub fn finish(&mut self, batch: BatchKey, units: &[String]) {
        for unit in self.exchange.finish(batch, units) {
            self.places.remove(unit);
        }
    }

    pub fn release(&mut self, worker: &str, units: &[String]) {
        for unit in self.exchange.release(worker, units) {
            self.places.remove(unit);
        }
    }

    /// Hands units out whole and forgets them. Returns the ids that `worker` cannot hand back as well.
    pub fn give_back(&mut self, worker: &str, units: &[String]) -> (Returned, Vec<String>) {
        let given = self.exchange.give_back(worker, units);
        let returned = given.units.into_iter().filter_map(|(id, ack_subject)| {
            let place = self.places.remove(&id)?;
            Some(ReturnedUnit {
                unit: place.whole,
                ack_subject,
                traceparent: place.traceparent,
            })
        });
        let units = returned.collect();
        (Returned { units }, given.not_owned)
    }

    /// Lets time pass: forgets what has lapsed, and returns what changes hands.
    pub fn tick(&mut self, now: Instant) -> Vec<Grant> {
        let passed = self.exchange.tick(now);
        for unit in &passed.lapsed {
            self.places.remove(unit);
        }
        passed.grants
    }

    /// A grant as its new owner is told of it.
    pub fn granted(&self, grant: &Grant) -> Granted {
        let unit = |moved: &shoal_exchange::Moved| {
            let place = self.places.get(&moved.unit)?;
            let Content::Here(unit) = &place.content else {
                return None;
            };
            let size = unit.size();
            let ack_subject = self.exchange.ack_subject(&moved.unit).unwrap_or_default();
            Some(GrantedUnit {
                header: place.header.clone(),
                ack_subject: ack_subject.to_owned(),
                deliveries: place.deliveries,
                traceparent: place.traceparent.clone(),
                items: size.items,
                tokens: size.tokens,
                squared_tokens: size.squared_tokens,
                from: moved.from.clone(),
            })
        };
        Granted {
            number: grant.number,
            units: grant.units.iter().filter_map(unit).collect(),
        }
    }
}

fn answer(exchange: &Exchange, unit: &HeldUnit) -> AdmittedUnit {
    let Size {
        items,
        tokens,
        squared_tokens,
    } = unit.size();
    AdmittedUnit {
        unit_id: unit.id.clone(),
        owner: exchange.owner(&unit.id).unwrap_or_default().to_owned(),
        items,
        tokens,
        squared_tokens,
        error: Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::task::RULES;
    use crate::testing::{delivery, unit_of_lengths};

    #[test]
    fn a_unit_is_answered_once_it_is_tokenized_to_all_who_asked() {
        let mut shelf = Shelf::new(RULES);
        let ((one, _r1), (two, _r2)) = (Outbox::new(), Outbox::new());
        let first = shelf.admit("w0", &one, vec![delivery("u", 1)]);
        assert_eq!((first.wanted, first.admitted.units.len()), (vec![true], 0));
        let second = shelf.admit("w1", &two, vec![delivery("u", 2)]);
        assert_eq!(
            (second.wanted, second.admitted.units.len()),
            (vec![false], 0)
        );
        let units = vec!["u".to_owned()];
        assert!(matches!(shelf.claim("w0", 1, &units), Ok(Claim::Awaited)));
        assert_eq!(shelf.claim("w1", 1, &units).err().unwrap().units, units);

        let units_here = vec![unit_of_lengths("u", &[3, 5])];
        let answers = shelf.tokenized(units_here, Instant::now()).admitted;
        assert!(answers[0].0.is_same(&one) && answers[1].0.is_same(&two));
        for (_, admitted) in &answers {
            let unit = &admitted.units[0];
            assert_eq!((unit.unit_id.as_str(), unit.owner.as_str()), ("u", "w0"));
            assert_eq!((unit.items, unit.tokens, unit.squared_tokens), (2, 8, 34));
        }
        let again = shelf.admit("w1", &two, vec![delivery("u", 3)]).admitted;
        assert_eq!(again.units[0].owner, "w0");
        let Ok(Claim::Claimed(claimed)) = shelf.claim("w0", 1, &units) else {
            panic!("a unit that is here can be claimed");
        };
        assert_eq!(claimed[0].deliveries, 3);
    }

    #[test]
    fn a_unit_released_while_it_is_tokenized_is_not_kept() {
        let mut shelf = Shelf::new(RULES);
        let (outbox, _outgoing) = Outbox::new();
        shelf.admit("w0", &outbox, vec![delivery("u", 1)]);
        shelf.release("w0", &["u".to_owned()]);
        let tokenized = shelf.tokenized(vec![unit_of_lengths("u", &[3])], Instant::now());
        assert!(tokenized.admitted.is_empty());
        assert!(shelf.places.is_empty());
    }

    #[test]
    fn what_is_finished_given_back_or_lapsed_is_dropped() {
        let mut shelf = Shelf::new(RULES);
        let (outbox, _outgoing) = Outbox::new();
        let now = Instant::now();
        let units = ["a", "b", "c"];
        shelf.admit("w0", &outbox, units.map(|id| delivery(id, 1)).into());
        let here = units.map(|id| unit_of_lengths(id, &[3])).into();
        shelf.tokenized(here, now);
        let a = vec!["a".to_owned()];
        assert!(shelf.claim("w0", 1, &a).is_ok());
        shelf.finish(1, &a);
        assert_eq!(shelf.places.len(), 2);
        let (returned, not_owned) = shelf.give_back("w0", &["b".to_owned(), "a".to_owned()]);
        assert_eq!((returned.units.len(), not_owned), (1, a));
        assert_eq!(shelf.places.len(), 1);
        shelf.exchange().worker_gone("w0", now);
        shelf.tick(now + RULES.orphans_last);
        assert!(shelf.places.is_empty() && shelf.is_empty());
    }
}
