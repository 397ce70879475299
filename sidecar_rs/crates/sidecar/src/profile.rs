//! The part of a model profile that the sidecar needs; `shoal_common.profile` is the whole of it.

use serde::Deserialize;

/// A model profile. Its values were checked by the registry; what is used here is checked again.
#[derive(Debug, Clone, Deserialize)]
pub struct Profile {
    pub name: String,
    /// Names of those that may run it.
    pub runtimes: Vec<String>,
    pub encode: Encode,
}

/// What the model offers Encode.
#[derive(Debug, Clone, Deserialize)]
pub struct Encode {
    /// Kinds of item that it takes.
    pub inputs: Vec<Input>,
    pub dimensions: usize,
    pub normalize: bool,
    pub default_max_tokens: usize,
    pub max_tokens: usize,
    /// Tokens that the tokenizer adds to one text.
    pub special_tokens: usize,
    #[serde(default)]
    pub prompts: Prompts,
}

/// A kind of item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    Text,
    Media,
}

/// Texts put before an item's text, by role.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Prompts {
    pub default: String,
    pub query: String,
    pub document: String,
}

/// A profile that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profile_json: {0}")]
    Json(#[from] serde_json::Error),
    #[error("profile_json: special_tokens < default_max_tokens <= max_tokens must hold")]
    Lengths,
}

impl Profile {
    /// Reads a profile from its canonical JSON.
    pub fn parse(json: &str) -> Result<Self, ProfileError> {
        let profile: Self = serde_json::from_str(json)?;
        let encode = &profile.encode;
        let lengths_fit = encode.special_tokens < encode.default_max_tokens
            && encode.default_max_tokens <= encode.max_tokens;
        if lengths_fit {
            Ok(profile)
        } else {
            Err(ProfileError::Lengths)
        }
    }
}
