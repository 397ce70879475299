//! Each move by example, then any sequence of moves against a model.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::{Admission, Exchange, NotOwned};

const ACK_WAIT: Duration = Duration::from_secs(5);

fn ids(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn holding(worker: &str, units: &[&str]) -> Exchange {
    let mut exchange = Exchange::new(ACK_WAIT);
    for unit in units {
        let admission = exchange.admit(worker, unit, format!("ack.{unit}"));
        assert_eq!(admission, Admission::New);
    }
    exchange
}

fn held_by(owner: &str) -> Admission {
    Admission::Held {
        owner: owner.to_owned(),
    }
}

#[test]
fn a_held_id_keeps_its_owner_and_takes_the_newer_ack_subject() {
    let mut exchange = holding("w0", &["u"]);
    assert_eq!(exchange.admit("w1", "u", "ack.2".into()), held_by("w0"));
    assert_eq!(exchange.owner("u"), Some("w0"));
    assert_eq!(exchange.ack_subject("u"), Some("ack.2"));
}

#[test]
fn a_claim_is_refused_whole_and_names_what_is_not_owned() {
    let mut exchange = holding("w0", &["a", "b"]);
    exchange.admit("w1", "c", "ack.c".into());
    let refused = exchange.claim("w0", 1, &ids(&["a", "c", "x"]));
    assert_eq!(
        refused,
        Err(NotOwned {
            units: ids(&["c", "x"])
        })
    );
    assert_eq!(exchange.claim("w0", 2, &ids(&["a", "b"])), Ok(()));
}

#[test]
fn a_unit_is_in_one_batch_at_a_time() {
    let mut exchange = holding("w0", &["a"]);
    let twice = exchange.claim("w0", 1, &ids(&["a", "a"]));
    assert_eq!(twice, Err(NotOwned { units: ids(&["a"]) }));
    assert_eq!(exchange.claim("w0", 1, &ids(&["a"])), Ok(()));
    assert!(exchange.claim("w0", 2, &ids(&["a"])).is_err());
    exchange.unclaim(1, &ids(&["a"]));
    assert_eq!(exchange.claim("w0", 2, &ids(&["a"])), Ok(()));
    assert_eq!(exchange.finish(2, &ids(&["a"])), ["a"]);
    assert_eq!(exchange.owner("a"), None);
}

#[test]
fn a_restarted_worker_gets_its_units_back_and_its_old_batch_no_longer_finishes_them() {
    let start = Instant::now();
    let mut exchange = holding("w0", &["b", "a"]);
    exchange.claim("w0", 1, &ids(&["a"])).unwrap();
    exchange.worker_gone("w0", start);
    assert!(exchange.claim("w0", 2, &ids(&["a"])).is_err());
    assert_eq!(exchange.worker_back("w0"), ids(&["a", "b"]));
    assert!(exchange.finish(1, &ids(&["a"])).is_empty());
    assert!(exchange.expire(start + ACK_WAIT).is_empty());
    assert_eq!(exchange.claim("w0", 2, &ids(&["a", "b"])), Ok(()));
}

#[test]
fn orphans_go_to_a_sibling_that_is_handed_them_and_lapse_after_ack_wait() {
    let start = Instant::now();
    let mut exchange = holding("w0", &["a", "b"]);
    exchange.worker_gone("w0", start);
    assert_eq!(exchange.admit("w1", "a", "ack.2".into()), held_by("w1"));
    let almost = start + ACK_WAIT - Duration::from_millis(1);
    assert!(exchange.expire(almost).is_empty());
    assert_eq!(exchange.expire(start + ACK_WAIT), ids(&["b"]));
    assert_eq!(exchange.owner("a"), Some("w1"));
}

#[test]
fn only_the_owner_releases() {
    let mut exchange = holding("w0", &["a"]);
    assert!(exchange.release("w1", &ids(&["a"])).is_empty());
    exchange.claim("w0", 1, &ids(&["a"])).unwrap();
    assert_eq!(exchange.release("w0", &ids(&["a", "x"])), ["a"]);
}

#[derive(Debug, Clone)]
enum Move {
    Admit(usize, usize),
    Claim(usize, Vec<usize>),
    Unclaim,
    Finish,
    Release(usize, Vec<usize>),
    Gone(usize),
    Back(usize),
    Pass(u64),
}

/// What the model knows of a unit: owner, batch, and since when it is an orphan.
#[derive(Debug, Clone, Default)]
struct Known {
    owner: usize,
    batch: Option<u64>,
    orphan: Option<Instant>,
}

fn a_move() -> impl Strategy<Value = Move> {
    let worker = 0..3_usize;
    let unit = 0..6_usize;
    let units = prop::collection::vec(0..6_usize, 1..4);
    prop_oneof![
        3 => (worker.clone(), unit).prop_map(|(w, u)| Move::Admit(w, u)),
        3 => (worker.clone(), units.clone()).prop_map(|(w, us)| Move::Claim(w, us)),
        1 => Just(Move::Unclaim),
        2 => Just(Move::Finish),
        1 => (worker.clone(), units).prop_map(|(w, us)| Move::Release(w, us)),
        1 => worker.clone().prop_map(Move::Gone),
        1 => worker.prop_map(Move::Back),
        1 => (0..4_000_u64).prop_map(Move::Pass),
    ]
}

fn names(prefix: &str, indices: &[usize]) -> Vec<String> {
    indices.iter().map(|i| format!("{prefix}{i}")).collect()
}

proptest! {
    /// After every move each unit has the owner that the model gives it (so at most one), and a claim
    /// is refused for exactly the units that its sender doesn't hold.
    #[test]
    fn any_sequence_of_moves_agrees_with_a_model(moves in prop::collection::vec(a_move(), 1..60)) {
        let mut exchange = Exchange::new(ACK_WAIT);
        let mut model: HashMap<usize, Known> = HashMap::new();
        let mut now = Instant::now();
        let mut batches: Vec<(u64, Vec<usize>)> = Vec::new();
        let mut next_batch = 0;
        for step in moves {
            match step {
                Move::Admit(worker, unit) => {
                    let known = model.get(&unit).cloned();
                    let owner = match &known {
                        Some(known) if known.orphan.is_none() => known.owner,
                        _ => worker,
                    };
                    let expected = match &known {
                        None => Admission::New,
                        Some(_) => held_by(&format!("w{owner}")),
                    };
                    let given = exchange.admit(&format!("w{worker}"), &format!("u{unit}"), "ack".into());
                    prop_assert_eq!(given, expected);
                    let batch = known.and_then(|known| known.batch);
                    model.insert(unit, Known { owner, batch, orphan: None });
                }
                Move::Claim(worker, units) => {
                    next_batch += 1;
                    let free = |u: &usize| model.get(u).is_some_and(|known| {
                        known.owner == worker && known.batch.is_none() && known.orphan.is_none()
                    });
                    let refused: Vec<usize> = units
                        .iter()
                        .enumerate()
                        .filter(|(i, u)| units[..*i].contains(u) || !free(u))
                        .map(|(_, u)| *u)
                        .collect();
                    let given = exchange.claim(&format!("w{worker}"), next_batch, &names("u", &units));
                    if refused.is_empty() {
                        prop_assert_eq!(given, Ok(()));
                        for unit in &units {
                            model.get_mut(unit).unwrap().batch = Some(next_batch);
                        }
                        batches.push((next_batch, units));
                    } else {
                        prop_assert_eq!(given, Err(NotOwned { units: names("u", &refused) }));
                    }
                }
                Move::Unclaim => if let Some((batch, units)) = batches.pop() {
                    exchange.unclaim(batch, &names("u", &units));
                    for known in model.values_mut().filter(|known| known.batch == Some(batch)) {
                        known.batch = None;
                    }
                },
                Move::Finish => if let Some((batch, units)) = batches.pop() {
                    let ids = names("u", &units);
                    let before = model.len();
                    let finished = exchange.finish(batch, &ids).len();
                    model.retain(|_, known| known.batch != Some(batch));
                    prop_assert_eq!(finished, before - model.len());
                },
                Move::Release(worker, units) => {
                    exchange.release(&format!("w{worker}"), &names("u", &units));
                    model.retain(|unit, known| !(known.owner == worker && units.contains(unit)));
                }
                Move::Gone(worker) => {
                    exchange.worker_gone(&format!("w{worker}"), now);
                    for known in model.values_mut().filter(|known| known.owner == worker) {
                        known.batch = None;
                        known.orphan = Some(now);
                    }
                }
                Move::Back(worker) => {
                    let mut owned: Vec<String> = model
                        .iter_mut()
                        .filter(|(_, known)| known.owner == worker)
                        .map(|(unit, known)| { known.orphan = None; format!("u{unit}") })
                        .collect();
                    owned.sort();
                    prop_assert_eq!(exchange.worker_back(&format!("w{worker}")), owned);
                }
                Move::Pass(milliseconds) => {
                    now += Duration::from_millis(milliseconds);
                    exchange.expire(now);
                    model.retain(|_, known| known.orphan.is_none_or(|since| now - since < ACK_WAIT));
                }
            }
            for unit in 0..6 {
                let owner = model.get(&unit).map(|known| format!("w{}", known.owner));
                prop_assert_eq!(exchange.owner(&format!("u{unit}")), owner.as_deref());
            }
        }
    }
}
