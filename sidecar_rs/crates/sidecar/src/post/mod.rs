//! From a computed batch to what the worker hears: result messages in item order.

mod cast;
mod vector;

use bytes::Bytes;
use prost::Message;
use shoal_proto::shoal::sidecar::v1::{BatchDone, UnitOutcome};
use shoal_proto::shoal::v1::{EncodeResult, Tensor};

use crate::batch::{Batch, Member, Outcome};
use crate::clock;
use crate::faults::ItemFault;
use crate::options::Options;
use crate::unit::HeldItem;

/// The answer for a batch of which nothing is left to compute. Takes CPU time: call it beside the
/// device's path unless rows are few. Units that were released have no outcome.
pub fn answer(batch: Batch, runtime: &str) -> BatchDone {
    let start = clock::unix_ns();
    let mut outcomes: Vec<Vec<Option<Outcome>>> = Vec::with_capacity(batch.units.len());
    for member in &batch.units {
        outcomes.push(vec![None; member.claimed.unit.items.len()]);
    }
    for row in batch.rows {
        outcomes[row.unit][row.item] = row.outcome;
    }
    let members = batch.units.iter().zip(outcomes);
    let heard = members.filter(|(member, _)| !member.released);
    let units = heard.map(|(member, outcomes)| unit_outcome(member, outcomes, batch.trace));
    let units = units.collect();
    let mut spans = batch.spans;
    if batch.trace {
        spans.push(clock::span_since("post", start));
    }
    BatchDone {
        batch_id: batch.batch_id,
        units,
        compute_ms: batch.device.compute_ns as f64 / 1e6,
        started_unix_ns: batch.device.started_unix_ns.unwrap_or(start),
        spans,
        runtime: runtime.to_owned(),
    }
}

fn unit_outcome(member: &Member, outcomes: Vec<Option<Outcome>>, trace: bool) -> UnitOutcome {
    let unit = &member.claimed.unit;
    let items = unit.items.iter().zip(outcomes);
    let results = items.map(|(item, outcome)| {
        Bytes::from(item_result(&unit.options, item, outcome).encode_to_vec())
    });
    UnitOutcome {
        unit_id: unit.id.clone(),
        results: results.collect(),
        attempt: member.claimed.deliveries + member.reruns,
        tokenize: trace.then(|| unit.tokenize.clone()),
    }
}

fn item_result(options: &Options, item: &HeldItem, outcome: Option<Outcome>) -> EncodeResult {
    let mut result = EncodeResult {
        id: item.id.clone(),
        ..EncodeResult::default()
    };
    match dense(options, item, outcome) {
        Ok(tensor) => result.dense = Some(tensor),
        Err(fault) => result.status = Some(fault.status()),
    }
    if let Ok(tokens) = &item.tokens {
        result.input_tokens = tokens.input_tokens;
        result.used_tokens = tokens.ids.len() as u32;
        result.truncated = tokens.truncated();
        result.input_tokens_lower_bound = tokens.lower_bound;
    }
    result
}

fn dense(
    options: &Options,
    item: &HeldItem,
    outcome: Option<Outcome>,
) -> Result<Tensor, ItemFault> {
    if let Err(fault) = &item.tokens {
        return Err(fault.clone());
    }
    let bytes = outcome.unwrap_or_else(|| Err(ItemFault::Runtime("it gave no values".into())))?;
    let values = vector::finished(&bytes, options)?;
    Ok(Tensor {
        r#type: options.element_type.into(),
        shape: vec![values.len() as u32],
        data: cast::cast(&values, options.element_type)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch_of_lengths;

    fn decoded(outcome: &UnitOutcome) -> Vec<EncodeResult> {
        let results = outcome.results.iter().cloned();
        results
            .map(|bytes| EncodeResult::decode(bytes).unwrap())
            .collect()
    }

    #[test]
    fn results_stand_in_item_order_beside_what_failed() {
        let (mut batch, _outgoing) = batch_of_lengths(7, &[&[3, 1], &[2]]);
        let values: Vec<u8> = [1.0_f32; 384]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        batch.rows[0].outcome = Some(Ok(values.into()));
        batch.rows[1].outcome = Some(Err(ItemFault::RuntimeCrashed));
        batch.rows[2].outcome = Some(Ok(vec![0xff; 384 * 4].into()));
        batch.device.add(5_000_000, 7_500_000);
        batch.units[1].reruns = 1;
        let done = answer(batch, "torch");
        assert_eq!((done.batch_id, done.compute_ms), (107, 2.5));
        assert_eq!(
            (done.started_unix_ns, done.runtime.as_str()),
            (5_000_000, "torch")
        );
        assert_eq!((done.units[0].attempt, done.units[1].attempt), (1, 2));
        let first = decoded(&done.units[0]);
        assert_eq!((first[0].id.as_str(), first[0].used_tokens), ("u0.0", 3));
        assert!(first[0].status.is_none());
        assert_eq!(first[0].dense.as_ref().unwrap().shape, [384]);
        assert_eq!(first[1].status.as_ref().unwrap().reason, "RUNTIME_CRASHED");
        let second = decoded(&done.units[1]);
        assert_eq!(second[0].status.as_ref().unwrap().reason, "NON_FINITE");
    }

    #[test]
    fn a_released_unit_has_no_outcome() {
        let (mut batch, _outgoing) = batch_of_lengths(7, &[&[3], &[2]]);
        batch.units[0].released = true;
        batch.rows[1].outcome = Some(Err(ItemFault::RuntimeCrashed));
        let done = answer(batch, "torch");
        assert_eq!(done.units.len(), 1);
        assert_eq!(done.units[0].unit_id, "u1");
    }
}
