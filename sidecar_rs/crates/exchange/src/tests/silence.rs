//! Owners that are connected and say nothing.

use super::*;

/// Ticks each quarter of a second until `until`; the workers named post each time.
fn pass(exchange: &mut Exchange, from: Instant, until: Instant, posting: &[&str]) -> Vec<Grant> {
    let mut grants = Vec::new();
    let mut now = from;
    while now < until {
        now = (now + ms(250)).min(until);
        for worker in posting {
            let seen = Standing {
                grants_seen: u64::MAX,
                ..standing(0.0, 0.0)
            };
            grants.extend(exchange.post(worker, seen, now));
        }
        grants.extend(exchange.tick(now).grants);
    }
    grants
}

/// `w0` with units `a` and `b`, the latter in a batch; both workers have posted.
fn posted(start: Instant) -> Exchange {
    let mut exchange = pair(&["a", "b"], start);
    for worker in ["w0", "w1"] {
        exchange.post(worker, standing(0.0, 0.0), start);
    }
    exchange.claim("w0", 1, &ids(&["b"])).unwrap();
    exchange.tick(start);
    exchange
}

#[test]
fn a_silent_owner_loses_what_it_holds_but_not_what_is_being_computed() {
    let start = Instant::now();
    let mut exchange = posted(start);
    let almost = start + SILENCE - ms(1);
    assert!(pass(&mut exchange, start, almost, &["w1"]).is_empty());
    let grants = pass(&mut exchange, almost, start + SILENCE, &["w1"]);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
    assert_eq!(exchange.owner("b"), Some("w0"));
    // It wakes: its batch is refused, and its own from now on is its own again.
    let woken = start + SILENCE + ms(100);
    exchange.post("w0", standing(0.0, 0.0), woken);
    assert!(exchange.claim("w0", 2, &ids(&["a"])).is_err());
    give(&mut exchange, "w0", &["c"], woken);
    assert!(exchange.tick(woken + ms(250)).grants.is_empty());
    assert_eq!(exchange.finish(1, &ids(&["b"])), ["b"]);
}

#[test]
fn what_a_silent_owner_has_goes_to_whoever_is_handed_it() {
    let start = Instant::now();
    let mut exchange = posted(start);
    // Nobody takes `a` by its state: w1 has not posted for as long.
    assert!(pass(&mut exchange, start, start + SILENCE, &[]).is_empty());
    for unit in ["a", "b"] {
        let again = exchange.admit("w1", unit, "ack.2".into(), model("m"));
        let taken = Admission::Held {
            owner: "w1".to_owned(),
            taken_from: Some("w0".to_owned()),
        };
        assert_eq!(again, taken);
    }
    assert!(exchange.finish(1, &ids(&["b"])).is_empty());
    assert_eq!(exchange.claim("w1", 2, &ids(&["a", "b"])), Ok(()));
}

#[test]
fn what_nobody_can_take_over_stays_with_a_silent_owner() {
    let start = Instant::now();
    let mut exchange = posted(start);
    let end = start + SILENCE + ACK_WAIT;
    assert!(pass(&mut exchange, start, end, &[]).is_empty());
    assert_eq!(exchange.owner("a"), Some("w0"));
    exchange.post("w0", standing(0.0, 0.0), end);
    assert_eq!(exchange.claim("w0", 2, &ids(&["a"])), Ok(()));
}

#[test]
fn a_worker_is_judged_only_once_it_has_posted_and_has_siblings() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    let end = start + 2 * SILENCE;
    assert!(pass(&mut exchange, start, end, &["w1"]).is_empty());

    let mut exchange = with(&["w0"], start);
    give(&mut exchange, "w0", &["a"], start);
    exchange.post("w0", standing(0.0, 0.0), start);
    pass(&mut exchange, start, end, &[]);
    exchange.worker_back("w1", end);
    let grants = pass(&mut exchange, end, end + ms(500), &["w1"]);
    assert!(grants.is_empty(), "alone it need not have posted");
}

#[test]
fn nobody_is_judged_by_a_time_in_which_nobody_listened() {
    let start = Instant::now();
    let mut exchange = posted(start);
    // The process was stopped for 3 s: what the workers posted meanwhile is still to be read.
    let woken = start + ms(3_000);
    assert!(exchange.tick(woken).grants.is_empty());
    assert!(exchange.post("w1", standing(0.0, 0.0), woken).is_empty());
    assert_eq!(exchange.owner("a"), Some("w0"));
    let grants = pass(&mut exchange, woken, woken + SILENCE, &["w1"]);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}

#[test]
fn a_silent_owners_offer_is_no_offer() {
    let start = Instant::now();
    let mut exchange = posted(start);
    exchange.offer("w0", &vec![offered("a", 5.0, 60_000.0)], start);
    pass(&mut exchange, start, start + SILENCE, &[]);
    let other = Standing {
        residents: Vec::new(),
        ..standing(0.0, 100.0)
    };
    assert!(exchange.post("w1", other, start + SILENCE).is_empty());
    let grants = exchange.post("w1", standing(0.0, 100.0), start + SILENCE);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}
