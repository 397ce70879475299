//! EncodeOptions as a unit carries them, checked against the profile and with defaults filled in.

use prost::Message;
use shoal_proto::shoal::v1::{ElementType, EncodeOptions, EncodeOutput, EncodeRole, Truncation};

use crate::faults::UnitFault;
use crate::profile::Profile;

/// What to compute of each item of a unit, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Never unspecified.
    pub element_type: ElementType,
    pub normalize: bool,
    /// Dimensions to keep.
    pub dimensions: usize,
    pub role: EncodeRole,
    pub when_too_long: WhenTooLong,
    /// Special tokens and prompt included; more than the special tokens.
    pub max_tokens: usize,
}

/// What becomes of a text with more than `max_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenTooLong {
    Cut,
    Fail,
}

impl Options {
    /// Parses and checks. The gateway did so before; a fault here means that it was passed by.
    pub fn parse(bytes: &[u8], profile: &Profile) -> Result<Self, UnitFault> {
        let sent = EncodeOptions::decode(bytes)
            .map_err(|error| invalid("", format!("is not EncodeOptions: {error}")))?;
        for output in &sent.outputs {
            if EncodeOutput::try_from(*output) != Ok(EncodeOutput::Dense) {
                return Err(invalid(
                    "outputs",
                    format!("has {output}, which this model does not offer"),
                ));
            }
        }
        let options = Self {
            element_type: match known("type", sent.r#type)? {
                ElementType::Unspecified => ElementType::F32,
                given => given,
            },
            normalize: sent.normalize.unwrap_or(profile.encode.normalize),
            dimensions: within("dimensions", sent.dimensions, 1, profile.encode.dimensions)?
                .unwrap_or(profile.encode.dimensions),
            role: known("role", sent.role)?,
            when_too_long: match known("truncation", sent.truncation)? {
                Truncation::Unspecified | Truncation::End => WhenTooLong::Cut,
                Truncation::Error => WhenTooLong::Fail,
            },
            max_tokens: within(
                "max_tokens",
                sent.max_tokens,
                profile.encode.special_tokens + 1,
                profile.encode.max_tokens,
            )?
            .unwrap_or(profile.encode.default_max_tokens),
        };
        if options.element_type == ElementType::Int8 && !options.normalize {
            return Err(invalid("type", "INT8 needs normalized vectors".to_owned()));
        }
        Ok(options)
    }

    /// The prompt that goes before each text.
    pub fn prompt<'a>(&self, profile: &'a Profile) -> &'a str {
        match self.role {
            EncodeRole::Unspecified => &profile.encode.prompts.default,
            EncodeRole::Query => &profile.encode.prompts.query,
            EncodeRole::Document => &profile.encode.prompts.document,
        }
    }
}

fn known<E: TryFrom<i32>>(field: &'static str, value: i32) -> Result<E, UnitFault> {
    E::try_from(value).map_err(|_| invalid(field, format!("has the unknown value {value}")))
}

fn within(
    field: &'static str,
    value: Option<u32>,
    least: usize,
    most: usize,
) -> Result<Option<usize>, UnitFault> {
    let Some(value) = value else { return Ok(None) };
    match usize::try_from(value) {
        Ok(value) if (least..=most).contains(&value) => Ok(Some(value)),
        _ => Err(invalid(
            field,
            format!("is {value}, must be {least} to {most}"),
        )),
    }
}

fn invalid(field: &'static str, what: String) -> UnitFault {
    UnitFault::Option { field, what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::minilm_profile;

    fn parse(options: &EncodeOptions) -> Result<Options, UnitFault> {
        Options::parse(&options.encode_to_vec(), &minilm_profile())
    }

    #[test]
    fn nothing_said_takes_the_profiles_defaults() {
        let options = parse(&EncodeOptions::default()).unwrap();
        assert_eq!(options.element_type, ElementType::F32);
        assert!(options.normalize);
        assert_eq!((options.dimensions, options.max_tokens), (384, 256));
        assert_eq!(options.when_too_long, WhenTooLong::Cut);
    }

    #[test]
    fn what_the_profile_does_not_offer_is_refused_by_field() {
        let refused = |change: fn(&mut EncodeOptions)| {
            let mut options = EncodeOptions::default();
            change(&mut options);
            match parse(&options) {
                Err(UnitFault::Option { field, .. }) => field,
                other => panic!("was not refused: {other:?}"),
            }
        };
        assert_eq!(
            refused(|o| o.outputs = vec![EncodeOutput::Sparse.into()]),
            "outputs"
        );
        assert_eq!(refused(|o| o.outputs = vec![0]), "outputs");
        assert_eq!(refused(|o| o.r#type = 77), "type");
        assert_eq!(refused(|o| o.role = -1), "role");
        assert_eq!(refused(|o| o.truncation = 9), "truncation");
        assert_eq!(refused(|o| o.dimensions = Some(0)), "dimensions");
        assert_eq!(refused(|o| o.dimensions = Some(385)), "dimensions");
        assert_eq!(refused(|o| o.max_tokens = Some(2)), "max_tokens");
        assert_eq!(refused(|o| o.max_tokens = Some(513)), "max_tokens");
        assert_eq!(
            refused(|o| (o.r#type, o.normalize) = (ElementType::Int8.into(), Some(false))),
            "type"
        );
        assert!(Options::parse(b"\xff", &minilm_profile()).is_err());
    }
}
