//! What a worker offers, what its siblings claim, and which of them gets it.

use super::*;

#[test]
fn an_offer_finds_a_standing_claim_at_once() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    assert!(exchange.post("w1", standing(10.0, 100.0), start).is_empty());
    let (grants, not_owned) = exchange.offer("w0", &vec![offered("a", 5.0, 50.0)], start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
    assert!(not_owned.is_empty());
    assert_eq!(exchange.owner("a"), Some("w1"));
    assert!(exchange.claim("w0", 1, &ids(&["a"])).is_err());
    assert_eq!(exchange.claim("w1", 2, &ids(&["a"])), Ok(()));
}

#[test]
fn a_claim_finds_a_standing_offer_at_once() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    let (grants, _) = exchange.offer("w0", &vec![offered("a", 5.0, 50.0)], start);
    assert!(grants.is_empty());
    let grants = exchange.post("w1", standing(10.0, 100.0), start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
    let again = exchange.post("w1", standing(10.0, 100.0), start);
    assert!(again.is_empty(), "a unit is granted once an offer");
}

#[test]
fn a_unit_moves_only_if_it_starts_sooner_by_the_margin() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    exchange.post("w1", standing(10.0, 100.0), start);
    let offer = vec![offered("a", 1.0, 11.9), offered("b", 1.0, 12.0)];
    let (grants, _) = exchange.offer("w0", &offer, start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["b"])]);
}

#[test]
fn both_sides_age() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    exchange.post("w1", standing(50.0, 100.0), start);
    exchange.offer("w0", &vec![offered("a", 1.0, 51.0)], start);
    // 40 ms later w1 would be free in 10 ms, and w0 would start the unit in 11.
    let later = start + ms(40);
    assert!(exchange.tokenized([], later).is_empty());
    let (grants, _) = exchange.offer("w0", &vec![offered("a", 1.0, 12.0)], later);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}

#[test]
fn an_owner_that_should_have_started_is_not_beaten() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    exchange.offer("w0", &vec![offered("a", 1.0, 30.0)], start);
    let late = exchange.post("w1", standing(0.0, 100.0), start + ms(31));
    assert!(late.is_empty());
}

#[test]
fn grants_use_room_up_and_a_state_that_has_not_seen_them_does_not_refill_it() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b", "c"], start);
    exchange.post("w1", standing(0.0, 10.0), start);
    let offer = vec![
        offered("a", 6.0, 300.0),
        offered("b", 6.0, 200.0),
        offered("c", 4.0, 100.0),
    ];
    let (grants, _) = exchange.offer("w0", &offer, start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["c", "a"])]);
    let unseen = exchange.post("w1", standing(0.0, 10.0), start);
    assert!(unseen.is_empty(), "room of 10 ms is used up by grant 1");
    let seen = Standing {
        grants_seen: 1,
        ..standing(10.0, 10.0)
    };
    let grants = exchange.post("w1", seen, start);
    assert_eq!(grants, [grant("w1", 2, "w0", &["b"])]);
}

#[test]
fn no_room_takes_nothing() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    exchange.post("w1", standing(0.0, 0.0), start);
    let offer = vec![offered("a", 0.0, 90.0), offered("b", f64::NAN, 80.0)];
    assert!(exchange.offer("w0", &offer, start).0.is_empty());
    let grants = exchange.post("w1", standing(0.0, 1.0), start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}

#[test]
fn what_was_granted_delays_what_comes_next() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    exchange.post("w1", standing(0.0, 100.0), start);
    let offer = vec![offered("a", 30.0, 60.0), offered("b", 1.0, 31.0)];
    let (grants, _) = exchange.offer("w0", &offer, start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
    // 20 ms later w1 is done with it in 10 ms.
    let later = start + ms(20);
    let (grants, _) = exchange.offer("w0", &vec![offered("b", 1.0, 11.9)], later);
    assert!(grants.is_empty());
    // The same by a state that has not seen the grant.
    exchange.post("w1", standing(0.0, 100.0), later);
    let (grants, _) = exchange.offer("w0", &vec![offered("b", 1.0, 31.9)], later);
    assert!(grants.is_empty());
    let (grants, _) = exchange.offer("w0", &vec![offered("b", 1.0, 32.0)], later);
    assert_eq!(grants, [grant("w1", 2, "w0", &["b"])]);
}

#[test]
fn the_soonest_sibling_is_chosen_and_the_least_loaded_of_equals() {
    let start = Instant::now();
    let mut exchange = with(&["w0", "w1", "w2", "w3"], start);
    give(&mut exchange, "w0", &["a", "b", "c"], start);
    exchange.post("w1", standing(3.0, 500.0), start);
    exchange.post("w2", standing(0.0, 100.0), start);
    exchange.post("w3", standing(0.0, 200.0), start);
    let offer = vec![
        offered("a", 2.0, 300.0),
        offered("b", 4.0, 200.0),
        offered("c", 1.0, 100.0),
    ];
    // a: w3, which has more room than w2; b: w2, idle still; c: w3, free in 2 ms, before w1 and w2.
    let (grants, _) = exchange.offer("w0", &offer, start);
    assert_eq!(
        grants,
        [
            grant("w2", 1, "w0", &["b"]),
            grant("w3", 1, "w0", &["c", "a"])
        ]
    );
}

#[test]
fn a_sibling_must_hold_the_model_and_loading_delays_it() {
    let start = Instant::now();
    let mut exchange = with(&["w0", "w1"], start);
    let key = ModelKey {
        adapter_digest: "lora".to_owned(),
        ..model("m")
    };
    exchange.admit("w0", "a", "ack".into(), key.clone());
    exchange.tokenized(["a"], start);
    exchange.offer("w0", &vec![offered("a", 1.0, 100.0)], start);
    assert!(exchange.post("w1", standing(0.0, 100.0), start).is_empty());
    let loads = |load_ms| Standing {
        residents: vec![Resident {
            model: key.clone(),
            load_ms,
        }],
        ..standing(10.0, 100.0)
    };
    assert!(exchange.post("w1", loads(89.0), start).is_empty());
    let grants = exchange.post("w1", loads(88.0), start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}

#[test]
fn an_offer_takes_the_place_of_the_one_before() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b"], start);
    exchange.offer("w0", &vec![offered("a", 1.0, 90.0)], start);
    exchange.offer("w0", &vec![offered("b", 1.0, 90.0)], start);
    let grants = exchange.post("w1", standing(0.0, 100.0), start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["b"])]);
}

#[test]
fn what_is_claimed_or_released_leaves_the_offer() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b", "c"], start);
    let offer = vec![
        offered("a", 1.0, 90.0),
        offered("b", 1.0, 80.0),
        offered("c", 1.0, 70.0),
    ];
    exchange.offer("w0", &offer, start);
    exchange.claim("w0", 1, &ids(&["a"])).unwrap();
    exchange.unclaim(1, &ids(&["a"]));
    exchange.release("w0", &ids(&["b"]));
    let grants = exchange.post("w1", standing(0.0, 100.0), start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["c"])]);
}

#[test]
fn an_offer_names_what_its_sender_cannot_give() {
    let start = Instant::now();
    let mut exchange = pair(&["a", "b", "c"], start);
    exchange.post("w1", standing(0.0, 100.0), start);
    exchange.claim("w0", 1, &ids(&["b"])).unwrap();
    let offer: Vec<Offered> = ["a", "a", "b", "x", "c"]
        .iter()
        .map(|unit| offered(unit, 1.0, 50.0))
        .collect();
    let (grants, not_owned) = exchange.offer("w0", &offer, start);
    assert_eq!(not_owned, ["a", "b", "x"]);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a", "c"])]);
    let (grants, not_owned) = exchange.offer("w0", &vec![offered("a", 1.0, 50.0)], start);
    assert_eq!((grants.len(), not_owned), (0, ids(&["a"])));
}

#[test]
fn a_unit_that_is_offered_before_it_is_tokenized_moves_then() {
    let start = Instant::now();
    let mut exchange = with(&["w0", "w1"], start);
    exchange.admit("w0", "a", "ack".into(), model("m"));
    exchange.post("w1", standing(0.0, 100.0), start);
    let (grants, not_owned) = exchange.offer("w0", &vec![offered("a", 1.0, 50.0)], start);
    assert_eq!((grants.len(), not_owned.len()), (0, 0));
    let grants = exchange.tokenized(["a"], start);
    assert_eq!(grants, [grant("w1", 1, "w0", &["a"])]);
}

#[test]
fn a_state_that_is_too_old_claims_nothing() {
    let start = Instant::now();
    let mut exchange = pair(&["a"], start);
    exchange.post("w1", standing(0.0, 100.0), start);
    let late = start + SILENCE;
    let (grants, _) = exchange.offer("w0", &vec![offered("a", 1.0, 50.0)], late);
    assert!(grants.is_empty());
}
