//! Each rule by example, then any interleaving.

mod offers;
mod orphans;
mod ownership;
mod properties;
mod returns;
mod shadow;
mod silence;

use std::time::{Duration, Instant};

use crate::{
    Admission, Exchange, Grant, ModelKey, Moved, NotOwned, Offered, Resident, Rules, Standing,
};

const ACK_WAIT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(2);
const MARGIN_MS: f64 = 2.0;
const RULES: Rules = Rules {
    orphans_last: ACK_WAIT,
    owner_silence: SILENCE,
    margin_ms: MARGIN_MS,
};

fn ids(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn model(profile: &str) -> ModelKey {
    ModelKey {
        profile_digest: profile.to_owned(),
        adapter_digest: String::new(),
    }
}

fn held_by(owner: &str) -> Admission {
    Admission::Held {
        owner: owner.to_owned(),
        taken_from: None,
    }
}

/// What a worker posts that has model `m` ready.
fn standing(free_in_ms: f64, room_ms: f64) -> Standing {
    Standing {
        free_in_ms,
        room_ms,
        residents: vec![Resident {
            model: model("m"),
            load_ms: 0.0,
        }],
        grants_seen: 0,
    }
}

fn offered(unit: &str, cost_ms: f64, starts_in_ms: f64) -> Offered {
    Offered {
        unit: unit.to_owned(),
        cost_ms,
        starts_in_ms,
    }
}

fn grant(to: &str, number: u64, from: &str, units: &[&str]) -> Grant {
    let moved = |unit: &&str| Moved {
        unit: (*unit).to_owned(),
        from: from.to_owned(),
    };
    Grant {
        to: to.to_owned(),
        number,
        units: units.iter().map(moved).collect(),
    }
}

/// Workers of these names, connected.
fn with(workers: &[&str], now: Instant) -> Exchange {
    let mut exchange = Exchange::new(RULES);
    for worker in workers {
        assert!(exchange.worker_back(worker, now).is_empty());
    }
    exchange
}

/// Gives a worker units of model `m`, tokenized.
fn give(exchange: &mut Exchange, worker: &str, units: &[&str], now: Instant) {
    for unit in units {
        let admission = exchange.admit(worker, unit, format!("ack.{unit}"), model("m"));
        assert_eq!(admission, Admission::New);
    }
    assert!(exchange.tokenized(units.iter().copied(), now).is_empty());
}

/// `w0` with these units, and a sibling `w1` that has posted nothing.
fn pair(units: &[&str], now: Instant) -> Exchange {
    let mut exchange = with(&["w0", "w1"], now);
    give(&mut exchange, "w0", units, now);
    exchange
}
