//! What goes next, and who is to blame, without a runtime.

use shoal_proto::shoal::runtime::v1::{Batch as RuntimeBatch, BatchResult};

use super::Schedule;
use crate::batch::Batch;
use crate::faults::ItemFault;
use crate::testing::batch_of_lengths;

fn scheduled(batches: &[&[&[usize]]]) -> Schedule {
    let mut schedule = Schedule::default();
    for (key, units) in batches.iter().enumerate() {
        let (mut batch, outgoing) = batch_of_lengths(key as u64, units);
        batch.trace = false;
        // The stream of these tests stays open for as long as the test runs.
        std::mem::forget(outgoing);
        schedule.add(batch);
    }
    schedule
}

fn next(schedule: &mut Schedule) -> Option<RuntimeBatch> {
    schedule.next(|_| true)
}

fn rows(request: &RuntimeBatch) -> usize {
    request.lengths.len() / 4
}

fn succeed(schedule: &mut Schedule, request: &RuntimeBatch) -> Option<Batch> {
    schedule.result(BatchResult {
        batch_id: request.batch_id,
        rows: vec![0; rows(request) * 384 * 4].into(),
        dimensions: 384,
        started_unix_ns: 1_000,
        ended_unix_ns: 3_000,
        ..BatchResult::default()
    })
}

fn fail(schedule: &mut Schedule, request: &RuntimeBatch) -> Option<Batch> {
    schedule.result(BatchResult {
        batch_id: request.batch_id,
        error: "no".to_owned(),
        ..BatchResult::default()
    })
}

/// Of each row, whether it has values.
fn succeeded(batch: &Batch) -> Vec<bool> {
    let outcomes = batch.rows.iter().map(|row| row.outcome.as_ref().unwrap());
    outcomes.map(Result::is_ok).collect()
}

#[test]
fn batches_go_out_as_they_come_and_come_back_in_any_order() {
    let mut schedule = scheduled(&[&[&[3, 5]], &[&[2]]]);
    let one = next(&mut schedule).unwrap();
    let two = next(&mut schedule).unwrap();
    assert!(next(&mut schedule).is_none());
    assert_eq!(succeed(&mut schedule, &two).unwrap().key, 1);
    let done = succeed(&mut schedule, &one).unwrap();
    assert_eq!((done.key, done.device.compute_ns), (0, 2_000));
    assert_eq!(done.units[0].reruns, 0);
}

#[test]
fn a_batch_waits_for_its_model() {
    let mut schedule = scheduled(&[&[&[3]]]);
    assert!(!schedule.has_next(|_| false) && schedule.next(|_| false).is_none());
    assert!(schedule.has_next(|digest| digest == "minilm"));
}

#[test]
fn after_a_crash_items_run_alone_and_only_the_one_that_kills_again_fails() {
    let mut schedule = scheduled(&[&[&[3, 5], &[4]], &[&[2]], &[&[9]]]);
    next(&mut schedule).unwrap();
    next(&mut schedule).unwrap();
    assert!(schedule.crashed().is_empty());
    let mut done = Vec::new();
    for solo in 0..4 {
        let request = next(&mut schedule).unwrap();
        assert_eq!(rows(&request), 1);
        assert!(
            next(&mut schedule).is_none(),
            "a solo has the runtime for itself"
        );
        if solo == 1 {
            done.extend(schedule.crashed());
        } else {
            done.extend(succeed(&mut schedule, &request));
        }
    }
    assert_eq!(done.len(), 2);
    let first = &done[0];
    // Solos go in the order of the batch, which is by length: 3, 4, 5.
    assert_eq!(succeeded(first), [true, true, false]);
    assert_eq!(first.rows[2].outcome, Some(Err(ItemFault::RuntimeCrashed)));
    assert_eq!((first.units[0].reruns, first.units[1].reruns), (1, 1));
    assert_eq!(succeeded(&done[1]), [true]);
    // The batch that had not been sent is unaffected.
    let third = next(&mut schedule).unwrap();
    assert_eq!(succeed(&mut schedule, &third).unwrap().units[0].reruns, 0);
}

#[test]
fn after_an_error_items_run_alone_once_nothing_else_is_in_flight() {
    let mut schedule = scheduled(&[&[&[3, 5]], &[&[2]]]);
    let one = next(&mut schedule).unwrap();
    let two = next(&mut schedule).unwrap();
    assert!(fail(&mut schedule, &one).is_none());
    assert!(next(&mut schedule).is_none());
    assert!(succeed(&mut schedule, &two).is_some());
    let short = next(&mut schedule).unwrap();
    assert!(fail(&mut schedule, &short).is_none());
    let long = next(&mut schedule).unwrap();
    let done = succeed(&mut schedule, &long).unwrap();
    assert_eq!(
        done.rows[0].outcome,
        Some(Err(ItemFault::Runtime("no".to_owned())))
    );
    assert_eq!(succeeded(&done), [false, true]);
}

#[test]
fn an_answer_of_the_wrong_size_is_an_error() {
    let mut schedule = scheduled(&[&[&[3, 5]]]);
    let request = next(&mut schedule).unwrap();
    let result = BatchResult {
        batch_id: request.batch_id,
        rows: vec![0; 384 * 4].into(),
        dimensions: 384,
        ..BatchResult::default()
    };
    assert!(schedule.result(result).is_none());
    assert_eq!(rows(&next(&mut schedule).unwrap()), 1);
}

#[test]
fn released_units_are_skipped_unless_they_are_in_flight() {
    let mut schedule = scheduled(&[&[&[3], &[4]], &[&[9]]]);
    let ids = |id: &str| vec![id.to_owned()];
    let first = next(&mut schedule).unwrap();
    // All units of the helper's batches are named u0, u1, … so this hits both batches.
    let done = schedule.release(&ids("u0"));
    assert_eq!(done.len(), 1);
    assert_eq!(done[0].key, 1);
    assert!(schedule.crashed().is_empty());
    let solo = next(&mut schedule).unwrap();
    assert_eq!(rows(&solo), 1);
    assert_ne!(solo.batch_id, first.batch_id);
    let done = succeed(&mut schedule, &solo).unwrap();
    assert!(done.units[0].released && !done.units[1].released);
    assert!(next(&mut schedule).is_none());
}

#[test]
fn batches_of_ended_streams_are_dropped() {
    let mut schedule = Schedule::default();
    let (batch, outgoing) = batch_of_lengths(0, &[&[3]]);
    schedule.add(batch);
    drop(outgoing);
    schedule.forget_unheard();
    assert!(next(&mut schedule).is_none());
}

#[test]
fn batches_of_a_lost_model_are_taken_out() {
    let mut schedule = scheduled(&[&[&[3]], &[&[2]]]);
    let request = next(&mut schedule).unwrap();
    assert!(schedule.abandon("other").is_empty());
    assert_eq!(schedule.abandon("minilm").len(), 2);
    assert!(succeed(&mut schedule, &request).is_none());
    assert!(next(&mut schedule).is_none());
}
