//! Loads and unloads on their way to the runtime, and what may go beside them: pure state.
//!
//! One load is in flight at a time, so that it is known which one a runtime ended of. A suspect, of
//! which one did, goes last, and while it is in flight nothing else is.

use std::collections::VecDeque;

use shoal_proto::shoal::runtime::v1::run_request::Message as Request;
use shoal_proto::shoal::runtime::v1::{Load, Unload};

#[derive(Default)]
pub struct Loads {
    /// In the order in which they were asked for.
    waiting: VecDeque<Request>,
    suspects: VecDeque<Load>,
    in_flight: Option<InFlight>,
}

struct InFlight {
    digest: String,
    suspect: bool,
}

/// What the runtime is sent next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// What `next` gives.
    Load,
    /// Rows, if some wait.
    Batch,
    /// Nothing before it has answered.
    Wait,
}

impl Loads {
    /// Queues a load; a suspect behind all others.
    pub fn load(&mut self, load: Load, suspect: bool) {
        if suspect {
            self.suspects.push_back(load);
        } else {
            self.waiting.push_back(Request::Load(load));
        }
    }

    /// Queues an unload. Loads of the model that were not sent are dropped.
    pub fn unload(&mut self, digest: &str) {
        let other = |load: &Load| load.profile_digest != digest;
        self.suspects.retain(other);
        self.waiting
            .retain(|request| !matches!(request, Request::Load(load) if !other(load)));
        self.waiting.push_back(Request::Unload(Unload {
            profile_digest: digest.to_owned(),
        }));
    }

    /// Whose turn it is. `solos`: rows that must run alone are in flight or could be; `computing`: rows
    /// are in flight.
    pub fn turn(&self, solos: bool, computing: bool) -> Turn {
        match (&self.in_flight, self.waiting.front()) {
            (Some(load), _) if load.suspect => Turn::Wait,
            (_, Some(Request::Unload(_))) => Turn::Load,
            (Some(_), _) if solos => Turn::Wait,
            (Some(_), _) => Turn::Batch,
            (None, _) if solos => Turn::Batch,
            (None, Some(_)) => Turn::Load,
            (None, None) if self.suspects.is_empty() => Turn::Batch,
            // No more rows until those in flight are through: else a suspect would wait for ever.
            (None, None) if computing => Turn::Wait,
            (None, None) => Turn::Load,
        }
    }

    /// The next load or unload, when it is its turn; a load is now in flight.
    pub fn next(&mut self) -> Option<Request> {
        let suspect = self.waiting.is_empty();
        let request = match self.waiting.pop_front() {
            Some(request) => request,
            None => Request::Load(self.suspects.pop_front()?),
        };
        if let Request::Load(load) = &request {
            let digest = load.profile_digest.clone();
            self.in_flight = Some(InFlight { digest, suspect });
        }
        Some(request)
    }

    /// The load that was in flight is answered.
    pub fn answered(&mut self) {
        self.in_flight = None;
    }

    pub fn is_loading(&self) -> bool {
        self.in_flight.is_some()
    }

    /// The runtime is gone, and all that it was to do. Returns the model that it was loading.
    pub fn runtime_gone(&mut self) -> Option<String> {
        let in_flight = std::mem::take(self).in_flight;
        in_flight.map(|load| load.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(digest: &str) -> Load {
        Load {
            profile_digest: digest.to_owned(),
            ..Load::default()
        }
    }

    /// The digest of what goes next, after a minus if it is unloaded.
    fn next(loads: &mut Loads) -> String {
        match loads.next() {
            Some(Request::Load(load)) => load.profile_digest,
            Some(Request::Unload(unload)) => format!("-{}", unload.profile_digest),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn one_load_at_a_time_and_batches_but_no_solos_beside_it() {
        let mut loads = Loads::default();
        assert_eq!(loads.turn(false, false), Turn::Batch);
        loads.load(load("a"), false);
        loads.load(load("b"), false);
        assert_eq!(loads.turn(false, true), Turn::Load);
        assert_eq!(loads.turn(true, true), Turn::Batch, "solos go first");
        assert_eq!(next(&mut loads), "a");
        assert_eq!(loads.turn(false, false), Turn::Batch);
        assert_eq!(loads.turn(true, false), Turn::Wait);
        loads.answered();
        assert_eq!(loads.turn(false, false), Turn::Load);
        assert_eq!(next(&mut loads), "b");
    }

    #[test]
    fn a_suspect_goes_last_and_alone() {
        let mut loads = Loads::default();
        loads.load(load("suspect"), true);
        loads.load(load("a"), false);
        assert_eq!(next(&mut loads), "a");
        loads.answered();
        assert_eq!(loads.turn(true, true), Turn::Batch, "solos go first");
        assert_eq!(
            loads.turn(false, true),
            Turn::Wait,
            "then what is in flight"
        );
        assert_eq!(loads.turn(false, false), Turn::Load);
        assert_eq!(next(&mut loads), "suspect");
        loads.load(load("b"), false);
        loads.unload("c");
        for (solos, computing) in [(false, false), (true, false), (true, true)] {
            assert_eq!(loads.turn(solos, computing), Turn::Wait);
        }
        loads.answered();
        assert_eq!(next(&mut loads), "b");
    }

    #[test]
    fn an_unload_goes_beside_a_load_and_takes_those_that_wait_with_it() {
        let mut loads = Loads::default();
        for digest in ["a", "b"] {
            loads.load(load(digest), false);
        }
        loads.load(load("suspect"), true);
        assert_eq!(next(&mut loads), "a");
        for digest in ["a", "b", "suspect"] {
            loads.unload(digest);
        }
        loads.load(load("a"), false);
        for digest in ["-a", "-b", "-suspect"] {
            assert_eq!(loads.turn(true, true), Turn::Load);
            assert_eq!(next(&mut loads), digest);
        }
        assert_eq!(loads.turn(false, false), Turn::Batch, "a is in flight");
        loads.answered();
        assert_eq!(next(&mut loads), "a");
    }

    #[test]
    fn what_was_in_flight_is_known_when_the_runtime_is_gone() {
        let mut loads = Loads::default();
        loads.load(load("a"), false);
        loads.load(load("b"), false);
        assert_eq!(next(&mut loads), "a");
        assert!(loads.is_loading());
        assert_eq!(loads.runtime_gone().as_deref(), Some("a"));
        assert_eq!(loads.runtime_gone(), None);
        assert!(loads.next().is_none() && !loads.is_loading());
    }
}
