//! Units whose owner's connection has ended.

use super::*;

#[test]
fn a_restarted_worker_is_granted_its_units_and_its_old_batch_no_longer_finishes_them() {
    let start = Instant::now();
    let mut exchange = with(&["w0"], start);
    give(&mut exchange, "w0", &["b", "a"], start);
    exchange.claim("w0", 1, &ids(&["a"])).unwrap();
    assert!(exchange.worker_gone("w0", start).is_empty());
    assert!(exchange.claim("w0", 2, &ids(&["a"])).is_err());
    let grants = exchange.worker_back("w0", start);
    assert_eq!(grants, [grant("w0", 1, "w0", &["b", "a"])]);
    assert!(exchange.finish(1, &ids(&["a"])).is_empty());
    assert!(exchange.tick(start + ACK_WAIT).lapsed.is_empty());
    assert_eq!(exchange.claim("w0", 2, &ids(&["a", "b"])), Ok(()));
}

#[test]
fn a_newer_connection_is_granted_what_the_older_one_knew_and_siblings_get_none_of_it() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    exchange.post("w1", standing(0.0, 100.0), start);
    let grants = exchange.worker_back("w0", start);
    assert_eq!(grants, [grant("w0", 1, "w0", &["a"])]);
}

#[test]
fn what_is_still_being_tokenized_follows() {
    let start = Instant::now();
    let mut exchange = with(&["w0", "w1"], start);
    for unit in ["a", "b"] {
        exchange.admit("w0", unit, format!("ack.{unit}"), model("m"));
    }
    exchange.tokenized(["a"], start);
    exchange.worker_gone("w0", start);
    let grants = exchange.worker_back("w0", start);
    assert_eq!(grants, [grant("w0", 1, "w0", &["a"])]);
    let grants = exchange.tokenized(["b"], start);
    assert_eq!(grants, [grant("w0", 2, "w0", &["b"])]);
}

#[test]
fn a_dead_workers_units_go_to_siblings_at_once_room_or_not() {
    let start = Instant::now();
    let mut exchange = with(&["w0", "w1", "w2"], start);
    give(&mut exchange, "w0", &["a", "b", "c", "d"], start);
    let costs = vec![
        offered("a", 10.0, 0.0),
        offered("b", 10.0, 0.0),
        offered("c", 10.0, 0.0),
    ];
    exchange.offer("w0", &costs, start);
    exchange.claim("w0", 1, &ids(&["d"])).unwrap();
    exchange.post("w1", standing(5.0, 0.0), start);
    exchange.post("w2", standing(16.0, 3.0), start);
    // a: w1 at 5, b: w1 at 15, c: w2 at 16, d (of unknown cost, in a batch that nobody hears): w1 at 25.
    let grants = exchange.worker_gone("w0", start);
    assert_eq!(
        grants,
        [
            grant("w1", 1, "w0", &["a", "b", "d"]),
            grant("w2", 1, "w0", &["c"])
        ]
    );
    // What was forced on w2 counts: its room of 3 ms is gone.
    give(&mut exchange, "w1", &["e"], start);
    let (grants, _) = exchange.offer("w1", &vec![offered("e", 1.0, 99.0)], start);
    assert!(grants.is_empty());
}

#[test]
fn an_heir_that_has_the_model_ready_comes_before_one_that_would_load_it() {
    let start = Instant::now();
    let mut exchange = with(&["w0", "w1", "w2"], start);
    give(&mut exchange, "w0", &["a"], start);
    let mut loads = standing(0.0, 100.0);
    loads.residents[0].load_ms = 1.0;
    exchange.post("w1", loads, start);
    exchange.post("w2", standing(50.0, 0.0), start);
    let grants = exchange.worker_gone("w0", start);
    assert_eq!(grants, [grant("w2", 1, "w0", &["a"])]);
    // w2 goes as well: loading is better than nobody.
    let grants = exchange.worker_gone("w2", start);
    assert_eq!(grants, [grant("w1", 1, "w2", &["a"])]);
}

#[test]
fn an_orphan_that_nobody_can_run_waits_for_a_state_that_can() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    let other = Standing {
        residents: vec![Resident {
            model: model("other"),
            load_ms: 0.0,
        }],
        ..standing(0.0, 100.0)
    };
    exchange.post("w1", other, start);
    assert!(exchange.worker_gone("w0", start).is_empty());
    let grants = exchange.post("w1", standing(0.0, 0.0), start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}

#[test]
fn an_orphan_that_is_being_tokenized_is_granted_when_it_is() {
    let start = Instant::now();
    let mut exchange = with(&["w0", "w1"], start);
    exchange.admit("w0", "a", "ack".into(), model("m"));
    exchange.post("w1", standing(0.0, 100.0), start);
    assert!(exchange.worker_gone("w0", start).is_empty());
    let grants = exchange.tokenized(["a"], start + ms(3));
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}

#[test]
fn orphans_go_to_a_sibling_that_is_handed_them_and_lapse_after_ack_wait() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    exchange.worker_gone("w0", start);
    let again = exchange.admit("w1", "a", "ack.2".into(), model("m"));
    assert_eq!(again, held_by("w1"));
    let almost = start + ACK_WAIT - ms(1);
    assert!(exchange.tick(almost).lapsed.is_empty());
    assert_eq!(exchange.tick(start + ACK_WAIT).lapsed, ids(&["b"]));
    assert_eq!(exchange.owner("a"), Some("w1"));
    assert_eq!(exchange.owner("b"), None);
}
