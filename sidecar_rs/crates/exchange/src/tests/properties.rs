//! Any interleaving of moves, followed by a shadow that knows the rules and not how they are kept.

use proptest::prelude::*;

use super::shadow::{Move, Post, Shadow, UNITS, WORKERS};

fn a_move() -> impl Strategy<Value = Move> {
    let worker = 0..WORKERS;
    let units = prop::collection::vec(0..UNITS, 1..4);
    let load = prop_oneof![Just(None), Just(Some(0)), (1..40_u32).prop_map(Some)];
    let post = (0..60_u32, 0..60_u32, [load.clone(), load], any::<bool>());
    let post = post.prop_map(|(free_in_ms, room_ms, load_ms, sees_grants)| Post {
        free_in_ms,
        room_ms,
        load_ms,
        sees_grants,
    });
    let offer = prop::collection::vec((0..UNITS, 0..30_u32, 0..200_u32), 0..6);
    prop_oneof![
        5 => (worker.clone(), 0..UNITS).prop_map(|(w, u)| Move::Admit(w, u)),
        4 => units.clone().prop_map(Move::Tokenized),
        2 => (worker.clone(), units.clone()).prop_map(|(w, us)| Move::Claim(w, us)),
        1 => Just(Move::Unclaim),
        1 => Just(Move::Finish),
        1 => (worker.clone(), units.clone()).prop_map(|(w, us)| Move::Release(w, us)),
        1 => (worker.clone(), units).prop_map(|(w, us)| Move::GiveBack(w, us)),
        6 => (worker.clone(), post).prop_map(|(w, post)| Move::Post(w, post)),
        5 => (worker.clone(), offer).prop_map(|(w, us)| Move::Offer(w, us)),
        1 => worker.clone().prop_map(Move::Gone),
        1 => worker.prop_map(Move::Back),
        3 => (1..700_u64).prop_map(Move::Pass),
        1 => (1..3_000_u64).prop_map(Move::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// At any time each unit that was admitted and not finished, released, given back or lapsed has
    /// exactly one owner; it is granted only when its owner is gone or on an offer that stands, then to a
    /// sibling that has room and would start it sooner, and never later than it could be.
    #[test]
    fn any_interleaving_keeps_the_rules(moves in prop::collection::vec(a_move(), 1..80)) {
        let mut shadow = Shadow::new();
        for worker in 0..WORKERS {
            shadow.step(Move::Back(worker))?;
        }
        for step in moves {
            shadow.step(step)?;
            shadow.owners_agree()?;
        }
    }
}
