//! The exchange's table together with what each unit holds: pure state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shoal_exchange::{Admission, BatchKey, Exchange, NotOwned};
use shoal_proto::shoal::sidecar::v1::{Admitted, AdmittedUnit};

use crate::outbox::Outbox;
use crate::unit::{HeldUnit, Size};

/// One delivery of a unit, as its worker pulled it.
#[derive(Debug, Clone)]
pub struct Delivery {
    pub unit: String,
    pub ack_subject: String,
    /// Deliveries so far, this one included.
    pub deliveries: u32,
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

struct Place {
    deliveries: u32,
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
    pub fn new(orphans_last: Duration) -> Self {
        Self {
            exchange: Exchange::new(orphans_last),
            places: HashMap::new(),
        }
    }

    /// Moves that change no content go to the table itself.
    pub fn exchange(&mut self) -> &mut Exchange {
        &mut self.exchange
    }

    /// Which deliveries are of new units, and the answers for those that are here already.
    pub fn admit(
        &mut self,
        worker: &str,
        outbox: &Outbox,
        deliveries: Vec<Delivery>,
    ) -> (Vec<bool>, Admitted) {
        let mut wanted = Vec::with_capacity(deliveries.len());
        let mut admitted = Admitted::default();
        for delivery in deliveries {
            let admission = self
                .exchange
                .admit(worker, &delivery.unit, delivery.ack_subject);
            wanted.push(admission == Admission::New);
            let new = || Place {
                deliveries: 0,
                content: Content::Awaited(Vec::new()),
            };
            let place = self.places.entry(delivery.unit).or_insert_with(new);
            place.deliveries = place.deliveries.max(delivery.deliveries);
            match &mut place.content {
                Content::Awaited(waiting) => waiting.push(outbox.clone()),
                Content::Here(unit) => admitted.units.push(answer(&self.exchange, unit)),
            }
        }
        (wanted, admitted)
    }

    /// Stores content, and gives the answers by the stream that they go to.
    pub fn tokenized(&mut self, units: Vec<HeldUnit>) -> Vec<(Outbox, Admitted)> {
        let mut answers: Vec<(Outbox, Admitted)> = Vec::new();
        for unit in units {
            // Released meanwhile: nobody wants it any more.
            let Some(place) = self.places.get_mut(&unit.id) else {
                continue;
            };
            let unit = Arc::new(unit);
            let here = Content::Here(unit.clone());
            let Content::Awaited(waiting) = std::mem::replace(&mut place.content, here) else {
                continue;
            };
            let answer = answer(&self.exchange, &unit);
            for outbox in waiting {
                match answers.iter_mut().find(|(other, _)| other.is_same(&outbox)) {
                    Some((_, admitted)) => admitted.units.push(answer.clone()),
                    None => {
                        let units = vec![answer.clone()];
                        answers.push((outbox, Admitted { units }));
                    }
                }
            }
        }
        answers
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

    pub fn expire(&mut self, now: Instant) {
        for unit in self.exchange.expire(now) {
            self.places.remove(&unit);
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
        error: bytes::Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::unit_of_lengths;

    const ACK_WAIT: Duration = Duration::from_secs(5);

    fn delivery(unit: &str, deliveries: u32) -> Delivery {
        Delivery {
            unit: unit.to_owned(),
            ack_subject: format!("ack.{unit}.{deliveries}"),
            deliveries,
        }
    }

    #[test]
    fn a_unit_is_answered_once_it_is_tokenized_to_all_who_asked() {
        let mut shelf = Shelf::new(ACK_WAIT);
        let ((one, _r1), (two, _r2)) = (Outbox::new(), Outbox::new());
        let (wanted, now) = shelf.admit("w0", &one, vec![delivery("u", 1)]);
        assert_eq!((wanted, now.units.len()), (vec![true], 0));
        let (wanted, now) = shelf.admit("w1", &two, vec![delivery("u", 2)]);
        assert_eq!((wanted, now.units.len()), (vec![false], 0));
        let units = vec!["u".to_owned()];
        assert!(matches!(shelf.claim("w0", 1, &units), Ok(Claim::Awaited)));
        assert_eq!(shelf.claim("w1", 1, &units).err().unwrap().units, units);

        let answers = shelf.tokenized(vec![unit_of_lengths("u", &[3, 5])]);
        assert!(answers[0].0.is_same(&one) && answers[1].0.is_same(&two));
        for (_, admitted) in &answers {
            let unit = &admitted.units[0];
            assert_eq!((unit.unit_id.as_str(), unit.owner.as_str()), ("u", "w0"));
            assert_eq!((unit.items, unit.tokens, unit.squared_tokens), (2, 8, 34));
        }
        let (_, again) = shelf.admit("w1", &two, vec![delivery("u", 3)]);
        assert_eq!(again.units[0].owner, "w0");
        let Ok(Claim::Claimed(claimed)) = shelf.claim("w0", 1, &units) else {
            panic!("a unit that is here can be claimed");
        };
        assert_eq!(claimed[0].deliveries, 3);
    }

    #[test]
    fn a_unit_released_while_it_is_tokenized_is_not_kept() {
        let mut shelf = Shelf::new(ACK_WAIT);
        let (outbox, _outgoing) = Outbox::new();
        shelf.admit("w0", &outbox, vec![delivery("u", 1)]);
        shelf.release("w0", &["u".to_owned()]);
        assert!(shelf.tokenized(vec![unit_of_lengths("u", &[3])]).is_empty());
        assert!(shelf.places.is_empty());
    }

    #[test]
    fn what_is_finished_or_expired_is_dropped() {
        let mut shelf = Shelf::new(ACK_WAIT);
        let (outbox, _outgoing) = Outbox::new();
        shelf.admit("w0", &outbox, vec![delivery("a", 1), delivery("b", 1)]);
        shelf.tokenized(vec![unit_of_lengths("a", &[3]), unit_of_lengths("b", &[3])]);
        let a = vec!["a".to_owned()];
        assert!(shelf.claim("w0", 1, &a).is_ok());
        shelf.finish(1, &a);
        assert_eq!(shelf.places.len(), 1);
        let now = Instant::now();
        shelf.exchange().worker_gone("w0", now);
        shelf.expire(now + ACK_WAIT);
        assert!(shelf.places.is_empty());
    }
}
