//! Simulated runtimes through the trait that all runtimes have.

use std::time::Duration;

use bytes::Bytes;
use shoal_proto::shoal::runtime::v1::run_request::Message as Request;
use shoal_proto::shoal::runtime::v1::run_response::Message as Response;
use shoal_proto::shoal::runtime::v1::{Batch, Load, RunRequest, RunResponse, Unload};
use tokio::time::{Instant, timeout};

use super::*;
use crate::testing::MINILM_JSON;

/// Far longer than anything here takes.
const NEVER: Duration = Duration::from_secs(300);

async fn started(sim: &Sim, device: &str, streams: u32) -> Link {
    let spec = DeviceSpec {
        device: device.to_owned(),
        streams,
        threads: 1,
    };
    sim.start(&spec).await.unwrap()
}

/// A runtime with a model of three dimensions.
async fn loaded(text: &str, streams: u32) -> Link {
    let sim = Sim::new(Some(SimFile::parse(text).unwrap()));
    let mut link = started(&sim, "sim:0", streams).await;
    ask(&link, load()).await;
    let said = next(&mut link).await;
    assert!(matches!(said, Some(Response::Loaded(_))), "{said:?}");
    link
}

fn load() -> Request {
    Request::Load(Load {
        profile_digest: "d".to_owned(),
        profile_json: MINILM_JSON.replace("\"dimensions\":384", "\"dimensions\":3"),
        folder: String::new(),
    })
}

fn batch(batch_id: u64, rows: &[&[i32]]) -> Request {
    let little_endian = |words: Vec<i32>| {
        let bytes = words.into_iter().flat_map(i32::to_le_bytes);
        Bytes::from_iter(bytes)
    };
    Request::Batch(Batch {
        batch_id,
        profile_digest: "d".to_owned(),
        token_ids: little_endian(rows.concat()),
        lengths: little_endian(rows.iter().map(|row| row.len() as i32).collect()),
    })
}

async fn ask(link: &Link, message: Request) {
    let message = Some(message);
    link.requests.send(RunRequest { message }).await.unwrap();
}

/// What the runtime says next; none when it has ended.
async fn next(link: &mut Link) -> Option<Response> {
    let said = timeout(NEVER, link.responses.recv()).await;
    said.expect("it is silent")
        .and_then(|RunResponse { message }| message)
}

/// The ids of the batches that are answered, until the runtime ends or `count` are.
async fn answered(link: &mut Link, count: usize) -> Vec<u64> {
    let mut ids = Vec::new();
    while ids.len() < count {
        match next(link).await {
            Some(Response::BatchResult(result)) => ids.push(result.batch_id),
            Some(other) => panic!("{other:?}"),
            None => break,
        }
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn a_model_is_loaded_in_its_time_and_rows_are_answered_in_theirs() {
    let text =
        r#"{"cost": {"batch_ms": 100, "token_us": 10000}, "load_ms": 50, "memory_bytes": 7}"#;
    let sim = Sim::new(Some(SimFile::parse(text).unwrap()));
    let mut link = started(&sim, "sim:0", 1).await;
    let start = Instant::now();
    ask(&link, load()).await;
    let Some(Response::Loaded(loaded)) = next(&mut link).await else {
        panic!("it is not loaded");
    };
    assert_eq!((loaded.memory_bytes, loaded.load_ms), (7, 50.0));
    assert_eq!(start.elapsed().as_millis(), 50);

    let start = Instant::now();
    ask(&link, batch(1, &[&[5], &[7, 8]])).await;
    let Some(Response::BatchResult(result)) = next(&mut link).await else {
        panic!("no result");
    };
    // 130 ms less those in which a thread sleeps: the clock stands still then.
    assert_eq!(start.elapsed().as_millis(), 128);
    let expected = [[5].as_slice(), &[7, 8]].map(|row| rows::values(row, 3).collect::<Vec<f32>>());
    let bytes: Vec<u8> = expected
        .concat()
        .into_iter()
        .flat_map(f32::to_le_bytes)
        .collect();
    assert_eq!((result.dimensions, &result.rows[..]), (3, &bytes[..]));
    assert!(result.error.is_empty() && result.ended_unix_ns >= result.started_unix_ns);

    let unload = Unload {
        profile_digest: "d".to_owned(),
    };
    ask(&link, Request::Unload(unload)).await;
    ask(&link, batch(2, &[&[5]])).await;
    let Some(Response::BatchResult(result)) = next(&mut link).await else {
        panic!("no result");
    };
    assert_eq!(result.error, "its model is not loaded");
}

#[tokio::test(start_paused = true)]
async fn as_many_batches_go_at_once_as_there_are_streams_first_come_first() {
    for (streams, rounds) in [(1, 4), (2, 2), (4, 1)] {
        let mut link = loaded(r#"{"cost": {"batch_ms": 1002}}"#, streams).await;
        let start = Instant::now();
        for id in 1..=4 {
            ask(&link, batch(id, &[&[5]])).await;
        }
        let mut ids = answered(&mut link, 4).await;
        for together in ids.chunks_mut(streams as usize) {
            together.sort_unstable();
        }
        assert_eq!(ids, [1, 2, 3, 4]);
        assert_eq!(start.elapsed().as_secs(), rounds);
    }
}

#[tokio::test(start_paused = true)]
async fn jitter_and_stalls_are_the_same_each_time_and_make_batches_differ() {
    let text = r#"{"cost": {"batch_ms": 1000}, "jitter": 0.3, "stalls": {"probability": 0.2, "ms": 5000}}"#;
    let mut runs = Vec::new();
    for _ in 0..2 {
        let mut link = loaded(text, 1).await;
        let mut took_ms = Vec::new();
        for id in 1..=40 {
            let start = Instant::now();
            ask(&link, batch(id, &[&[5]])).await;
            answered(&mut link, 1).await;
            took_ms.push(start.elapsed().as_millis());
        }
        runs.push(took_ms);
    }
    assert_eq!(runs[0], runs[1]);
    let stalled = runs[0].iter().filter(|ms| **ms > 5_000).count();
    assert!((2..20).contains(&stalled), "{:?}", runs[0]);
    let quick: Vec<&u128> = runs[0].iter().filter(|ms| **ms < 5_000).collect();
    assert!(quick.iter().max() > quick.iter().min(), "{:?}", runs[0]);
}

#[tokio::test(start_paused = true)]
async fn a_row_that_crashes_the_runtime_does_so_wherever_it_stands() {
    let text = r#"{"cost": {"batch_ms": 10}, "faults": {"crash_on_tokens": [[1, 2], [9]]}}"#;
    let mut link = loaded(text, 1).await;
    for (id, rows) in [(1, &[[1, 2, 3].as_slice(), &[2, 1]]), (2, &[&[1], &[2, 9]])] {
        ask(&link, batch(id, rows)).await;
        assert_eq!(answered(&mut link, 1).await, [id]);
    }
    ask(&link, batch(3, &[&[4], &[1, 2]])).await;
    assert!(next(&mut link).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_crashes_by_chance_has_other_luck_in_its_next_life() {
    let file = SimFile::parse(r#"{"faults": {"crash_probability": 0.1}}"#).unwrap();
    let sim = Sim::new(Some(file));
    let mut survived = Vec::new();
    for _ in 0..8 {
        let mut link = started(&sim, "sim:0", 1).await;
        ask(&link, load()).await;
        next(&mut link).await;
        let mut batches = 0;
        loop {
            ask(&link, batch(1, &[&[5]])).await;
            if answered(&mut link, 1).await.is_empty() {
                break;
            }
            batches += 1;
        }
        survived.push(batches);
    }
    survived.sort_unstable();
    survived.dedup();
    assert!(survived.len() > 3, "{survived:?}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_hangs_is_never_answered_and_keeps_its_stream() {
    let mut link = loaded(r#"{"faults": {"hang_probability": 1}}"#, 1).await;
    ask(&link, batch(1, &[&[5]])).await;
    ask(&link, batch(2, &[&[5]])).await;
    assert!(timeout(NEVER, link.responses.recv()).await.is_err());
    ask(&link, load()).await;
    assert!(matches!(next(&mut link).await, Some(Response::Loaded(_))));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_loaded_says_why() {
    let refusal = async |file: Option<&str>| {
        let sim = Sim::new(file.map(|text| SimFile::parse(text).unwrap()));
        let mut link = started(&sim, "sim:3", 1).await;
        ask(&link, load()).await;
        match next(&mut link).await {
            Some(Response::LoadFailed(failed)) => failed.error,
            other => panic!("{other:?}"),
        }
    };
    let without = refusal(None).await;
    assert!(
        without.contains("sim:3 is simulated") && without.contains("--sim FILE"),
        "{without}"
    );
    let failing = r#"{"devices": {"sim:3": {"faults": {"fail_load": true}}}}"#;
    assert_eq!(
        refusal(Some(failing)).await,
        "faults.fail_load is set for sim:3"
    );
}
