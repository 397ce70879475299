//! Admit messages: each unit parsed as far as its items, which stay bytes, and checked.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use shoal_proto::shoal::sidecar::v1::{Admit, AdmitUnit, AdmittedUnit};
use shoal_proto::shoal::work::v1::{Task, Unit};

use crate::faults::UnitFault;
use crate::hold::Delivery;
use crate::limits;
use crate::model::Model;
use crate::options::Options;
use crate::recover;
use crate::tokenize::Arrival;

/// An Admit as read.
#[derive(Default)]
pub struct Read {
    /// What the hold is told of each unit that can be taken.
    pub deliveries: Vec<Delivery>,
    /// The same units' content, in the same order.
    pub arrivals: Vec<Arrival>,
    /// Answers for the others.
    pub refused: Vec<AdmittedUnit>,
}

/// Reads an Admit. `model` finds the model of a profile digest on the worker's device.
pub fn read(admit: Admit, model: impl Fn(&str) -> Option<Arc<Model>>) -> Read {
    let mut read = Read::default();
    for sent in admit.units {
        let AdmitUnit {
            unit,
            ack_subject,
            deliveries,
        } = sent;
        match arrival(unit, &model) {
            Ok(arrival) => {
                read.deliveries.push(Delivery {
                    unit: arrival.id.clone(),
                    ack_subject,
                    deliveries,
                });
                read.arrivals.push(arrival);
            }
            Err((unit_id, fault)) => read.refused.push(AdmittedUnit {
                unit_id,
                error: fault.status_bytes().into(),
                ..AdmittedUnit::default()
            }),
        }
    }
    read
}

fn arrival(
    bytes: Bytes,
    model: &impl Fn(&str) -> Option<Arc<Model>>,
) -> Result<Arrival, (String, UnitFault)> {
    let unit = match Unit::decode(bytes.clone()) {
        Ok(unit) => unit,
        Err(error) => {
            let id = recover::id(&bytes, limits::UNIT_ID_BYTES);
            return Err((id, UnitFault::Malformed(error.to_string())));
        }
    };
    match content(&unit, model) {
        Ok((model, options)) => Ok(Arrival {
            id: unit.id,
            model,
            options,
            items: unit.items,
        }),
        Err(fault) => Err((unit.id, fault)),
    }
}

fn content(
    unit: &Unit,
    model: &impl Fn(&str) -> Option<Arc<Model>>,
) -> Result<(Arc<Model>, Options), UnitFault> {
    let invalid = |field, what| Err(UnitFault::Field { field, what });
    if unit.id.is_empty() {
        return invalid("id", "is empty");
    }
    if unit.task() != Task::Encode {
        return invalid(
            "task",
            "is not ENCODE, the only one that this sidecar computes",
        );
    }
    if !unit.adapter_digest.is_empty() {
        return invalid(
            "adapter_digest",
            "is set, but this sidecar serves no adapters",
        );
    }
    let digest = &unit.profile_digest;
    let model = model(digest).ok_or_else(|| UnitFault::ModelUnavailable {
        digest: digest.clone(),
    })?;
    let options = Options::parse(&unit.options, &model.profile)?;
    Ok((model, options))
}

#[cfg(test)]
mod tests {
    use shoal_proto::google::rpc::Status;
    use tonic::Code;

    use super::*;
    use crate::testing::minilm;

    fn read_one(change: impl Fn(&mut Unit)) -> Read {
        let mut unit = Unit {
            id: "u".to_owned(),
            profile_digest: "minilm".to_owned(),
            items: vec![Bytes::from_static(b"\xff")],
            ..Unit::default()
        };
        unit.set_task(Task::Encode);
        change(&mut unit);
        read_bytes(unit.encode_to_vec())
    }

    fn read_bytes(unit: Vec<u8>) -> Read {
        let sent = AdmitUnit {
            unit: unit.into(),
            ack_subject: "ack".to_owned(),
            deliveries: 2,
        };
        read(Admit { units: vec![sent] }, |digest| {
            (digest == "minilm").then(minilm)
        })
    }

    fn refusal(read: &Read) -> (String, Code) {
        assert!(read.arrivals.is_empty() && read.deliveries.is_empty());
        let status = Status::decode(read.refused[0].error.clone()).unwrap();
        (read.refused[0].unit_id.clone(), Code::from(status.code))
    }

    #[test]
    fn a_unit_is_taken_with_its_items_unparsed() {
        let read = read_one(|_| {});
        assert!(read.refused.is_empty());
        assert_eq!(
            (
                read.deliveries[0].unit.as_str(),
                read.deliveries[0].deliveries
            ),
            ("u", 2)
        );
        assert_eq!(read.arrivals[0].items, [Bytes::from_static(b"\xff")]);
    }

    #[test]
    fn what_cannot_be_taken_is_refused_by_id() {
        let unknown = read_one(|unit| unit.profile_digest = "other".to_owned());
        assert_eq!(refusal(&unknown), ("u".to_owned(), Code::Unavailable));
        let task = read_one(|unit| unit.set_task(Task::Unspecified));
        assert_eq!(refusal(&task), ("u".to_owned(), Code::InvalidArgument));
        let options = read_one(|unit| unit.options = Bytes::from_static(b"\xff"));
        assert_eq!(refusal(&options), ("u".to_owned(), Code::InvalidArgument));
        let adapter = read_one(|unit| unit.adapter_digest = "a".to_owned());
        assert_eq!(refusal(&adapter), ("u".to_owned(), Code::InvalidArgument));
        assert_eq!(
            refusal(&read_bytes(vec![0xff])),
            (String::new(), Code::InvalidArgument)
        );
    }
}
