//! Who owns a unit, and what batches do to it.

use super::*;

#[test]
fn a_held_id_keeps_its_owner_and_takes_the_newer_ack_subject() {
    let mut exchange = pair(&["u"], Instant::now());
    let again = exchange.admit("w1", "u", "ack.2".into(), model("m"));
    assert_eq!(again, held_by("w0"));
    assert_eq!(exchange.owner("u"), Some("w0"));
    assert_eq!(exchange.ack_subject("u"), Some("ack.2"));
}

#[test]
fn a_claim_is_refused_whole_and_names_what_is_not_owned() {
    let mut exchange = pair(&["a", "b"], Instant::now());
    exchange.admit("w1", "c", "ack.c".into(), model("m"));
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
    let mut exchange = pair(&["a"], Instant::now());
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
fn only_the_owner_releases() {
    let mut exchange = pair(&["a"], Instant::now());
    assert!(exchange.release("w1", &ids(&["a"])).is_empty());
    exchange.claim("w0", 1, &ids(&["a"])).unwrap();
    assert_eq!(exchange.release("w0", &ids(&["a", "x"])), ["a"]);
    assert!(exchange.is_empty());
}
