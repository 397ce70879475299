//! What can be wrong with an item or a unit, as callers read it: code, reason and message.

use std::io::ErrorKind;

use prost::Message;
use shoal_proto::google::rpc::{ErrorInfo, Status};
use shoal_proto::shoal::v1::ItemStatus;
use tonic::Code;

use crate::limits;

/// Why one item has no result. It never fails its neighbours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemFault {
    #[error("the item is not a valid shoal.v1.Item: {0}")]
    Malformed(String),
    #[error("model {model} takes text; item has media of type {mime_type:?}")]
    MediaUnsupported { model: String, mime_type: String },
    #[error("the item has no text of its own: {0}")]
    Empty(&'static str),
    #[error(
        "item.id has {bytes} bytes, at most {} are allowed",
        limits::ITEM_ID_BYTES
    )]
    IdTooLong { bytes: usize },
    #[error(
        "item.text has {bytes} bytes, at most {} are allowed",
        limits::TEXT_BYTES
    )]
    TooLarge { bytes: usize },
    #[error("item.media has no data")]
    MediaEmpty,
    #[error(
        "item.media.data has {bytes} bytes, at most {} are allowed",
        limits::MEDIA_BYTES
    )]
    MediaTooLarge { bytes: usize },
    #[error("the text has {}{tokens} tokens, at most {limit} are allowed; shorten it or set truncation to END", if *.at_least { "at least " } else { "" })]
    TooLong {
        tokens: usize,
        at_least: bool,
        limit: usize,
    },
    #[error("the prompt leaves no room for the text: max_tokens is {limit}; raise it")]
    NoRoom { limit: usize },
    #[error("the tokenizer failed: {0}")]
    Tokenizer(String),
    #[error("the model gave values that are not finite")]
    NonFinite,
    #[error("values of this vector lie beyond f16; ask for bf16 or f32")]
    BeyondF16,
    #[error("the runtime failed: {0}")]
    Runtime(String),
    #[error("the runtime ended while it computed this item")]
    RuntimeCrashed,
    #[error("the item's file cannot be read on this machine: {0}")]
    Unreadable(ErrorKind),
    #[error(
        "the item is too large for the queue, and came back from object storage with other bytes; try again"
    )]
    Damaged,
    #[error("{message}")]
    NotFetched {
        code: i32,
        reason: String,
        message: String,
    },
}

impl ItemFault {
    fn kind(&self) -> (Code, &str) {
        match self {
            Self::Malformed(_) => (Code::InvalidArgument, "ITEM_MALFORMED"),
            Self::MediaUnsupported { .. } => (Code::InvalidArgument, "ITEM_MEDIA_UNSUPPORTED"),
            Self::Empty(_) | Self::MediaEmpty => (Code::InvalidArgument, "ITEM_EMPTY"),
            Self::IdTooLong { .. } => (Code::InvalidArgument, "ITEM_ID_TOO_LONG"),
            Self::TooLarge { .. } | Self::MediaTooLarge { .. } => {
                (Code::InvalidArgument, "ITEM_TOO_LARGE")
            }
            Self::TooLong { .. } => (Code::InvalidArgument, "ITEM_TOO_LONG"),
            Self::NoRoom { .. } => (Code::InvalidArgument, "ITEM_NO_ROOM"),
            Self::Tokenizer(_) => (Code::Internal, "TOKENIZER_ERROR"),
            Self::NonFinite => (Code::Internal, "NON_FINITE"),
            Self::BeyondF16 => (Code::OutOfRange, "BEYOND_F16"),
            Self::Runtime(_) => (Code::Internal, "RUNTIME_ERROR"),
            Self::RuntimeCrashed => (Code::Internal, "RUNTIME_CRASHED"),
            Self::Unreadable(_) => (Code::Unavailable, "BLOB_STORAGE_FAILED"),
            Self::Damaged => (Code::DataLoss, "BLOB_DAMAGED"),
            Self::NotFetched { code, reason, .. } => (Code::from_i32(*code), reason),
        }
    }

    /// The fault as it stands in the item's result.
    pub fn status(&self) -> ItemStatus {
        let (code, reason) = self.kind();
        ItemStatus {
            code: code as i32,
            message: shortened(self.to_string()),
            reason: reason.to_owned(),
        }
    }
}

/// Why a unit was refused as a whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitFault {
    #[error("the unit is not a valid shoal.work.v1.Unit: {0}")]
    Malformed(String),
    #[error("the unit's {field} {what}")]
    Field {
        field: &'static str,
        what: &'static str,
    },
    #[error("options.{field} {what}")]
    Option { field: &'static str, what: String },
    #[error("the model with profile {digest} is not on this device; load it first")]
    ModelUnavailable { digest: String },
}

impl UnitFault {
    /// The fault as a serialized google.rpc.Status.
    pub fn status_bytes(&self) -> Vec<u8> {
        let (code, reason) = match self {
            Self::Malformed(_) => (Code::InvalidArgument, "UNIT_MALFORMED"),
            Self::Field { .. } => (Code::InvalidArgument, "UNIT_INVALID"),
            Self::Option { .. } => (Code::InvalidArgument, "OPTION_INVALID"),
            Self::ModelUnavailable { .. } => (Code::Unavailable, "MODEL_UNAVAILABLE"),
        };
        let info = ErrorInfo {
            reason: reason.to_owned(),
            domain: "shoal".to_owned(),
            ..ErrorInfo::default()
        };
        let detail = prost_types::Any {
            type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
            value: info.encode_to_vec(),
        };
        let status = Status {
            code: code as i32,
            message: shortened(self.to_string()),
            details: vec![detail],
        };
        status.encode_to_vec()
    }
}

fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(limits::ERROR_TEXT_BYTES));
    text
}
