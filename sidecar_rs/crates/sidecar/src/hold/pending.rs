//! Claims that wait until the last of their units is tokenized.

use shoal_exchange::{BatchKey, NotOwned};
use tokio::sync::oneshot;

use super::shelf::{Claim, Claimed, Shelf};

/// A worker wants units in a batch.
pub struct Request {
    pub worker: String,
    pub batch: BatchKey,
    pub units: Vec<String>,
    pub claimed: oneshot::Sender<Result<Vec<Claimed>, NotOwned>>,
}

/// The claims that are not answered, in the order they came.
#[derive(Default)]
pub struct Pending {
    requests: Vec<Request>,
}

impl Pending {
    pub fn push(&mut self, request: Request) {
        self.requests.push(request);
    }

    /// Answers the claims that can be answered now.
    pub fn retry(&mut self, shelf: &mut Shelf) {
        for request in std::mem::take(&mut self.requests) {
            match shelf.claim(&request.worker, request.batch, &request.units) {
                Ok(Claim::Awaited) => self.requests.push(request),
                Ok(Claim::Claimed(units)) => answer(request, Ok(units)),
                Err(error) => answer(request, Err(error)),
            }
        }
    }
}

fn answer(request: Request, outcome: Result<Vec<Claimed>, NotOwned>) {
    // Only fails when the worker's stream ended, which makes its units orphans anyway.
    let _ = request.claimed.send(outcome);
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::hold::task;
    use crate::outbox::Outbox;
    use crate::testing::{delivery, unit_of_lengths};

    type Answer = oneshot::Receiver<Result<Vec<Claimed>, NotOwned>>;

    fn claim(units: &[&str]) -> (Request, Answer) {
        let (claimed, answer) = oneshot::channel();
        let request = Request {
            worker: "w0".to_owned(),
            batch: 1,
            units: units.iter().map(|&unit| unit.to_owned()).collect(),
            claimed,
        };
        (request, answer)
    }

    fn admitted(units: &[&str]) -> Shelf {
        let mut shelf = Shelf::new(task::RULES);
        let deliveries = units.iter().map(|unit| delivery(unit, 1)).collect();
        shelf.admit("w0", &Outbox::new().0, deliveries);
        shelf
    }

    #[test]
    fn a_claim_is_answered_with_its_last_unit() {
        let (mut shelf, mut pending) = (admitted(&["a", "b"]), Pending::default());
        let (request, mut answer) = claim(&["a", "b"]);
        pending.push(request);
        shelf.tokenized(vec![unit_of_lengths("a", &[3])], Instant::now());
        pending.retry(&mut shelf);
        assert!(answer.try_recv().is_err());
        shelf.tokenized(vec![unit_of_lengths("b", &[5])], Instant::now());
        pending.retry(&mut shelf);
        assert_eq!(answer.try_recv().unwrap().unwrap().len(), 2);
    }

    #[test]
    fn a_claim_of_a_unit_that_is_released_meanwhile_is_refused() {
        let (mut shelf, mut pending) = (admitted(&["a"]), Pending::default());
        let (request, mut answer) = claim(&["a"]);
        pending.push(request);
        pending.retry(&mut shelf);
        shelf.release("w0", &["a".to_owned()]);
        pending.retry(&mut shelf);
        let refused = answer.try_recv().unwrap().err().unwrap();
        assert_eq!(refused.units, ["a"]);
    }
}
