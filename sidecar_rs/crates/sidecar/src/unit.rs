//! A unit as it is kept: tokens and what is known of each item; the bytes it came as are gone.

use std::sync::Arc;

use shoal_proto::shoal::sidecar::v1::Span;

use crate::faults::ItemFault;
use crate::model::Model;
use crate::options::Options;

/// A tokenized unit.
pub struct HeldUnit {
    pub id: String,
    pub model: Arc<Model>,
    pub options: Options,
    pub items: Vec<HeldItem>,
    /// When it was tokenized.
    pub tokenize: Span,
}

/// One item of a unit.
#[derive(Debug)]
pub struct HeldItem {
    pub id: String,
    /// The tokens that the model will see, or why it will see none.
    pub tokens: Result<Tokens, ItemFault>,
}

impl HeldItem {
    /// An item of which nothing can be read, not even its id.
    pub fn failed(fault: ItemFault) -> Self {
        Self {
            id: String::new(),
            tokens: Err(fault),
        }
    }
}

/// The tokens of one text, special tokens and prompt included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// What the model will see.
    pub ids: Box<[i32]>,
    /// Before cutting.
    pub input_tokens: u32,
    /// Set when only a prefix was tokenized: `input_tokens` may be larger.
    pub lower_bound: bool,
}

impl Tokens {
    /// Whether tokens were cut.
    pub fn truncated(&self) -> bool {
        self.lower_bound || (self.input_tokens as usize) > self.ids.len()
    }
}

/// What a worker needs to know to size its batches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Size {
    /// Items that will be computed.
    pub items: u32,
    /// Their tokens.
    pub tokens: u32,
    /// The sum of their squared lengths.
    pub squared_tokens: u64,
}

impl HeldUnit {
    /// The exact size of the items that will be computed.
    pub fn size(&self) -> Size {
        let runnable = self
            .items
            .iter()
            .filter_map(|item| item.tokens.as_ref().ok());
        runnable.fold(Size::default(), |size, tokens| {
            let length = tokens.ids.len() as u64;
            Size {
                items: size.items + 1,
                tokens: size.tokens + length as u32,
                squared_tokens: size.squared_tokens + length * length,
            }
        })
    }
}
