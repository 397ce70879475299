//! Units that their owner hands back whole.

use super::*;
use crate::GivenBack;

#[test]
fn what_is_held_is_given_back_and_forgotten() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    let given = exchange.give_back("w0", &ids(&["b", "a"]));
    let ack = |unit: &str| (unit.to_owned(), format!("ack.{unit}"));
    let units = vec![ack("b"), ack("a")];
    let not_owned = Vec::new();
    assert_eq!(given, GivenBack { units, not_owned });
    assert!(exchange.is_empty());
}

#[test]
fn the_rest_is_named_and_stays() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    give(&mut exchange, "w1", &["c"], start);
    exchange.claim("w0", 1, &ids(&["b"])).unwrap();
    let given = exchange.give_back("w0", &ids(&["a", "a", "b", "c", "x"]));
    assert_eq!(given.units, [("a".to_owned(), "ack.a".to_owned())]);
    assert_eq!(given.not_owned, ["a", "b", "c", "x"]);
    assert_eq!(exchange.owner("b"), Some("w0"));
    assert_eq!(exchange.finish(1, &ids(&["b"])), ["b"]);
}

#[test]
fn what_was_given_back_is_no_longer_on_offer() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    let offer = vec![offered("a", 5.0, 90.0), offered("b", 5.0, 80.0)];
    exchange.offer("w0", &offer, start);
    exchange.give_back("w0", &ids(&["a"]));
    let grants = exchange.post("w1", standing(0.0, 100.0), start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["b"])]);
}
