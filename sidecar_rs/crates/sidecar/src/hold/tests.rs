//! The hold as two workers hear it.

use std::time::Duration;

use shoal_exchange::{ModelKey, Offered, Resident};
use shoal_proto::shoal::sidecar::v1::attach_response::Message;
use shoal_proto::shoal::sidecar::v1::{GrantedUnit, ReturnedUnit, Siblings, Taken};
use tokio_stream::StreamExt;

use super::*;
use crate::outbox::Outgoing;
use crate::testing::{delivery, unit_of_lengths};

struct Worker {
    hold: Hold,
    speaker: Speaker,
    outgoing: Outgoing,
}

impl Worker {
    async fn join(hold: &Hold, worker: &str) -> Self {
        let (outbox, outgoing) = Outbox::new();
        let worker = worker.to_owned();
        let speaker = Speaker { worker, outbox };
        hold.worker_back(speaker.clone()).await.unwrap();
        Self {
            hold: hold.clone(),
            speaker,
            outgoing,
        }
    }

    async fn hear(&mut self) -> Message {
        let next = tokio::time::timeout(Duration::from_secs(5), self.outgoing.next());
        next.await.unwrap().unwrap().unwrap().message.unwrap()
    }

    /// Admits units, brings their content, and hears of it.
    async fn admit(&mut self, units: &[&str]) {
        let deliveries = units.iter().map(|unit| delivery(unit, 1)).collect();
        let wanted = self.hold.admit(&self.speaker, deliveries).await.unwrap();
        assert!(wanted.iter().all(|wanted| *wanted));
        tokenize(&self.hold, units).await;
        assert!(matches!(self.hear().await, Message::Admitted(_)));
    }

    async fn post(&self, free_in_ms: f64) {
        let model = ModelKey {
            profile_digest: "minilm".to_owned(),
            adapter_digest: String::new(),
        };
        let standing = Standing {
            free_in_ms,
            room_ms: 100.0,
            residents: vec![Resident {
                model,
                load_ms: 0.0,
            }],
            grants_seen: 0,
        };
        self.hold.post(&self.speaker, standing).await;
    }

    async fn offer(&self, units: &[&str]) {
        let offered = |unit: &&str| Offered {
            unit: (*unit).to_owned(),
            cost_ms: 1.0,
            starts_in_ms: 1e4,
        };
        let offer = units.iter().map(offered).collect();
        self.hold.offer(&self.speaker, offer).await;
    }
}

async fn tokenize(hold: &Hold, units: &[&str]) {
    let units = units.iter().map(|unit| unit_of_lengths(unit, &[3, 5]));
    let (hold, units) = (hold.clone(), units.collect());
    let tokenized = tokio::task::spawn_blocking(move || hold.tokenized(units));
    tokenized.await.unwrap();
}

fn siblings(workers: u32) -> Message {
    Message::Siblings(Siblings { workers })
}

fn granted(message: Message) -> (u64, Vec<GrantedUnit>) {
    match message {
        Message::Granted(granted) => (granted.number, granted.units),
        other => panic!("expected Granted, got {other:?}"),
    }
}

/// Two workers that know of each other.
async fn pair() -> (Hold, Worker, Worker) {
    let hold = Hold::start();
    let mut one = Worker::join(&hold, "w0").await;
    let mut two = Worker::join(&hold, "w1").await;
    assert_eq!(one.hear().await, siblings(1));
    assert_eq!(two.hear().await, siblings(1));
    (hold, one, two)
}

#[tokio::test]
async fn an_offered_unit_goes_to_the_sibling_with_all_that_it_needs() {
    let (hold, mut one, mut two) = pair().await;
    one.admit(&["a"]).await;
    two.post(0.0).await;
    one.offer(&["a", "x"]).await;
    let (number, units) = granted(two.hear().await);
    let expected = GrantedUnit {
        header: "h.a".into(),
        ack_subject: "ack.a.1".to_owned(),
        deliveries: 1,
        traceparent: "trace.a".to_owned(),
        items: 2,
        tokens: 8,
        squared_tokens: 34,
        from: "w0".to_owned(),
    };
    assert_eq!((number, units), (1, vec![expected]));
    assert!(matches!(one.hear().await, Message::NotOwned(refused) if refused.unit_ids == ["x"]));
    let taken = Taken {
        unit_ids: vec!["a".to_owned()],
        by: "w1".to_owned(),
    };
    assert_eq!(one.hear().await, Message::Taken(taken));
    let units = || vec!["a".to_owned()];
    let old = hold.claim(&one.speaker, 1, units()).await;
    assert_eq!(old.await.unwrap().err().unwrap().units, ["a"]);
    let new = hold.claim(&two.speaker, 2, units()).await;
    assert_eq!(new.await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn a_unit_of_a_batch_that_waits_for_others_is_not_granted_away() {
    let (hold, mut one, two) = pair().await;
    one.admit(&["a"]).await;
    let late = hold.admit(&one.speaker, vec![delivery("b", 1)]).await;
    assert_eq!(late.unwrap(), [true]);
    one.offer(&["a"]).await;
    let units = ["a", "b"].map(str::to_owned).into();
    let claimed = hold.claim(&one.speaker, 1, units).await;
    two.post(0.0).await;
    tokenize(&hold, &["b"]).await;
    assert_eq!(claimed.await.unwrap().unwrap().len(), 2);
}

#[tokio::test]
async fn what_is_asked_back_comes_whole() {
    let (hold, mut one, _two) = pair().await;
    one.admit(&["a"]).await;
    let again = hold.admit(&one.speaker, vec![delivery("a", 2)]).await;
    assert_eq!(again.unwrap(), [false]);
    assert!(matches!(one.hear().await, Message::Admitted(_)));
    let ids = || ["a", "x"].map(str::to_owned).into();
    hold.give_back(&one.speaker, ids()).await;
    let Message::Returned(returned) = one.hear().await else {
        panic!("expected Returned");
    };
    let whole = ReturnedUnit {
        unit: "w.a".into(),
        ack_subject: "ack.a.2".to_owned(),
        traceparent: "trace.a".to_owned(),
    };
    assert_eq!(returned.units, [whole]);
    assert!(matches!(one.hear().await, Message::NotOwned(refused) if refused.unit_ids == ["x"]));
    hold.give_back(&one.speaker, ids()).await;
    assert!(
        matches!(one.hear().await, Message::NotOwned(refused) if refused.unit_ids == ["a", "x"])
    );
}

#[tokio::test]
async fn a_worker_that_leaves_is_missed_and_its_units_go_to_its_sibling() {
    let (hold, mut one, mut two) = pair().await;
    one.admit(&["a"]).await;
    two.post(50.0).await;
    hold.worker_gone("w0").await;
    assert_eq!(two.hear().await, siblings(0));
    let (number, units) = granted(two.hear().await);
    assert_eq!((number, units[0].from.as_str()), (1, "w0"));
}

#[tokio::test]
async fn a_worker_that_comes_back_hears_of_its_units_before_its_siblings() {
    let (hold, mut one, mut two) = pair().await;
    one.admit(&["a", "b"]).await;
    hold.worker_gone("w0").await;
    assert_eq!(two.hear().await, siblings(0));
    let mut back = Worker::join(&hold, "w0").await;
    let (number, units) = granted(back.hear().await);
    let from: Vec<&str> = units.iter().map(|unit| unit.from.as_str()).collect();
    assert_eq!((number, from), (1, vec!["w0", "w0"]));
    assert_eq!(back.hear().await, siblings(1));
    assert_eq!(two.hear().await, siblings(1));
}

#[tokio::test]
async fn a_stream_that_was_replaced_is_not_listened_to() {
    let (hold, mut one, mut two) = pair().await;
    one.admit(&["a"]).await;
    let mut newer = Worker::join(&hold, "w0").await;
    let (number, _) = granted(newer.hear().await);
    assert_eq!(number, 1);
    let late = hold.admit(&one.speaker, vec![delivery("b", 1)]).await;
    assert_eq!(late.unwrap(), [false]);
    hold.release(&one.speaker, vec!["a".to_owned()]).await;
    one.offer(&["a"]).await;
    let claimed = hold.claim(&one.speaker, 1, vec!["a".to_owned()]).await;
    assert!(claimed.await.is_err());
    two.post(0.0).await;
    newer.offer(&["a"]).await;
    assert_eq!(granted(two.hear().await).0, 1);
}
