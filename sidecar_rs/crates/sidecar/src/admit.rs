//! Admit messages: each unit parsed as far as its items, which stay bytes, and checked.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message;
use shoal_exchange::ModelKey;
use shoal_proto::shoal::sidecar::v1::fetched_item::Content;
use shoal_proto::shoal::sidecar::v1::{Admit, AdmitUnit, AdmittedUnit, FetchedItem};
use shoal_proto::shoal::work::v1::{Blob, Task, Unit};

use crate::faults::UnitFault;
use crate::hold::Delivery;
use crate::limits;
use crate::model::Model;
use crate::options::Options;
use crate::recover;
use crate::tokenize::{Arrival, Source, Stored};

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
    let is_alone = admit.units.len() == 1;
    for sent in admit.units {
        let whole = kept(&sent.unit, is_alone);
        match unit(&whole, &model) {
            Ok((unit, model, options)) => {
                let (delivery, arrival) = split(sent, whole, unit, model, options);
                read.deliveries.push(delivery);
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

/// A unit's bytes as they are kept until it is done.
fn kept(bytes: &Bytes, is_alone: bool) -> Bytes {
    if is_alone && bytes.len() >= limits::KEPT_MESSAGE_BYTES {
        return bytes.clone();
    }
    Bytes::copy_from_slice(bytes)
}

fn unit(
    bytes: &Bytes,
    model: &impl Fn(&str) -> Option<Arc<Model>>,
) -> Result<(Unit, Arc<Model>, Options), (String, UnitFault)> {
    let unit = match Unit::decode(bytes.clone()) {
        Ok(unit) => unit,
        Err(error) => {
            let id = recover::id(bytes, limits::UNIT_ID_BYTES);
            return Err((id, UnitFault::Malformed(error.to_string())));
        }
    };
    match content(&unit, model) {
        Ok((model, options)) => Ok((unit, model, options)),
        Err(fault) => Err((unit.id, fault)),
    }
}

/// What the hold keeps of a unit, and what is tokenized of it.
fn split(
    sent: AdmitUnit,
    whole: Bytes,
    mut unit: Unit,
    model: Arc<Model>,
    options: Options,
) -> (Delivery, Arrival) {
    let items = std::mem::take(&mut unit.items);
    let items = sources(items, &unit.blobs, sent.fetched);
    // Its blobs stay named: whoever ends the unit removes them.
    let header = unit.encode_to_vec().into();
    let delivery = Delivery {
        unit: unit.id.clone(),
        ack_subject: sent.ack_subject,
        deliveries: sent.deliveries,
        traceparent: sent.traceparent,
        model: ModelKey {
            profile_digest: unit.profile_digest,
            adapter_digest: unit.adapter_digest,
        },
        whole,
        header,
    };
    let arrival = Arrival {
        id: unit.id,
        model,
        options,
        items,
    };
    (delivery, arrival)
}

/// The items of a unit, those that its worker fetched in their places.
fn sources(items: Vec<Bytes>, blobs: &[Blob], fetched: Vec<FetchedItem>) -> Vec<Source> {
    let mut sources: Vec<Source> = items.into_iter().map(Source::Here).collect();
    for item in fetched {
        let blob = blobs.iter().find(|blob| blob.index == item.index);
        let place = sources.get_mut(item.index as usize);
        if let (Some(blob), Some(place), Some(content)) = (blob, place, item.content) {
            *place = match content {
                Content::Item(bytes) => Source::Here(bytes),
                Content::Path(path) => Source::File(Stored {
                    path: path.into(),
                    size_bytes: blob.size_bytes,
                    sha256: blob.sha256.clone(),
                }),
                Content::Fault(status) => Source::Nowhere(status),
            };
        }
    }
    sources
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

    fn read_one(change: impl FnOnce(&mut Unit)) -> Read {
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
            traceparent: "00-1-2-01".to_owned(),
            fetched: Vec::new(),
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
        let item = Source::Here(Bytes::from_static(b"\xff"));
        assert_eq!(read.arrivals[0].items, [item]);
    }

    fn blob(index: u32) -> Blob {
        Blob {
            index,
            size_bytes: index.into(),
            sha256: Bytes::from_static(b"digest"),
            ..Blob::default()
        }
    }

    #[test]
    fn what_was_fetched_stands_in_its_place_and_the_header_names_the_blobs() {
        let mut unit = Unit {
            id: "u".to_owned(),
            profile_digest: "minilm".to_owned(),
            items: vec![Bytes::new(); 4],
            blobs: [0, 2, 3].map(blob).into(),
            ..Unit::default()
        };
        unit.set_task(Task::Encode);
        let fetched = [
            (0, Content::Item(Bytes::from_static(b"item"))),
            (2, Content::Path("/a/file".to_owned())),
            (3, Content::Fault(Bytes::from_static(b"status"))),
            (1, Content::Item(Bytes::from_static(b"no blob"))),
            (4, Content::Path("/beyond/the/unit".to_owned())),
        ];
        let fetched = fetched.map(|(index, content)| FetchedItem {
            index,
            content: Some(content),
        });
        let sent = AdmitUnit {
            unit: unit.encode_to_vec().into(),
            fetched: fetched.into(),
            ..AdmitUnit::default()
        };
        let read = read(Admit { units: vec![sent] }, |_| Some(minilm()));
        let items = [
            Source::Here(Bytes::from_static(b"item")),
            Source::Here(Bytes::new()),
            Source::File(Stored {
                path: "/a/file".into(),
                size_bytes: 2,
                sha256: Bytes::from_static(b"digest"),
            }),
            Source::Nowhere(Bytes::from_static(b"status")),
        ];
        assert_eq!(read.arrivals[0].items, items);
        let header = Unit::decode(read.deliveries[0].header.clone()).unwrap();
        assert_eq!((header.items.len(), header.blobs.len()), (0, 3));
    }

    #[test]
    fn a_unit_is_kept_whole_and_as_a_header() {
        let mut sent = Unit::default();
        let read = read_one(|unit| {
            unit.tenant = "t".to_owned();
            sent = unit.clone();
        });
        let delivery = &read.deliveries[0];
        assert_eq!(delivery.whole, sent.encode_to_vec());
        let header = Unit::decode(delivery.header.clone()).unwrap();
        sent.items.clear();
        assert_eq!(header, sent);
        assert_eq!(delivery.traceparent, "00-1-2-01");
        assert_eq!(delivery.model.profile_digest, "minilm");
    }

    #[test]
    fn only_a_large_unit_that_comes_alone_keeps_its_message() {
        let message = Bytes::from(vec![0; limits::KEPT_MESSAGE_BYTES + 1]);
        let is_part = |kept: &Bytes| message.as_ptr_range().contains(&kept.as_ptr());
        let large = message.slice(1..);
        assert!(is_part(&kept(&large, true)));
        assert!(!is_part(&kept(&large, false)));
        assert!(!is_part(&kept(&message.slice(2..), true)));
        assert_eq!(kept(&large, false), large);
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
