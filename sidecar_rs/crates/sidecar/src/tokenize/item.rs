//! One item from its bytes: parsed, checked and tokenized.

use bytes::Bytes;
use prost::Message;
use shoal_proto::shoal::v1::Item;
use shoal_proto::shoal::v1::item::Content;

use super::media;
use super::text::{Rules, tokenize};
use crate::faults::ItemFault;
use crate::limits;
use crate::model::Model;
use crate::profile::Input;
use crate::recover;
use crate::unit::HeldItem;

/// Never fails: what is wrong with the item stands in it.
pub fn hold(model: &Model, rules: &Rules<'_>, bytes: &Bytes) -> HeldItem {
    let item = match Item::decode(bytes.clone()) {
        Ok(item) => item,
        Err(error) => {
            return HeldItem {
                id: recover::id(bytes, limits::ITEM_ID_BYTES),
                tokens: Err(ItemFault::Malformed(error.to_string())),
            };
        }
    };
    if item.id.len() > limits::ITEM_ID_BYTES {
        let bytes = item.id.len();
        return HeldItem {
            id: String::new(),
            tokens: Err(ItemFault::IdTooLong { bytes }),
        };
    }
    let tokens = match item.content {
        Some(Content::Text(text)) if text.len() > limits::TEXT_BYTES => {
            Err(ItemFault::TooLarge { bytes: text.len() })
        }
        Some(Content::Text(text)) => tokenize(&model.tokenizer, rules, &text),
        Some(Content::Media(media)) if model.profile.encode.inputs.contains(&Input::Media) => {
            media::tokens(&media.data)
        }
        Some(Content::Media(media)) => Err(ItemFault::MediaUnsupported {
            model: model.profile.name.clone(),
            mime_type: media.mime_type.chars().take(100).collect(),
        }),
        None => Err(ItemFault::Empty("neither text nor media is set")),
    };
    HeldItem {
        id: item.id,
        tokens,
    }
}

#[cfg(test)]
mod tests {
    use shoal_proto::shoal::v1::Media;

    use super::*;
    use crate::options::WhenTooLong;
    use crate::testing::{MINILM_JSON, minilm, minilm_folder};

    fn held(bytes: &[u8]) -> HeldItem {
        held_by(&minilm(), bytes)
    }

    fn held_by(model: &Model, bytes: &[u8]) -> HeldItem {
        let rules = Rules {
            prompt: "",
            max_tokens: 256,
            special_tokens: 2,
            when_too_long: WhenTooLong::Cut,
        };
        hold(model, &rules, &Bytes::copy_from_slice(bytes))
    }

    fn fault(id: &str, content: Option<Content>) -> ItemFault {
        let item = Item {
            id: id.to_owned(),
            content,
        };
        held(&item.encode_to_vec()).tokens.unwrap_err()
    }

    #[test]
    fn a_text_keeps_its_id_and_tokens() {
        let item = held(b"\x0a\x01i\x12\x04fish");
        assert_eq!(item.id, "i");
        assert_eq!(*item.tokens.unwrap().ids, [101, 3869, 102]);
    }

    #[test]
    fn bad_utf8_is_that_items_fault_and_its_id_is_recovered() {
        let item = held(b"\x0a\x01i\x12\x02\xff\xfe");
        assert_eq!(item.id, "i");
        assert!(matches!(item.tokens, Err(ItemFault::Malformed(_))));
        let garbage = held(b"\xff\xff\xff");
        assert_eq!(garbage.id, "");
        assert!(matches!(garbage.tokens, Err(ItemFault::Malformed(_))));
    }

    #[test]
    fn a_model_that_takes_media_has_them_beside_texts() {
        let json = MINILM_JSON.replace("[\"text\"]", "[\"text\",\"media\"]");
        let model = Model::read("d", &json, &minilm_folder()).unwrap();
        let media = Media {
            data: Bytes::from_static(b"abc"),
            ..Media::default()
        };
        let item = Item {
            id: "i".to_owned(),
            content: Some(Content::Media(media)),
        };
        let held = held_by(&model, &item.encode_to_vec());
        assert_eq!(
            (held.id.as_str(), held.tokens),
            ("i", media::tokens(b"abc"))
        );
        let text = held_by(&model, b"\x0a\x01i\x12\x04fish");
        assert_eq!(*text.tokens.unwrap().ids, [101, 3869, 102]);
    }

    #[test]
    fn what_cannot_be_computed_says_why() {
        assert!(matches!(fault("i", None), ItemFault::Empty(_)));
        let media = Media {
            mime_type: "image/png".to_owned(),
            ..Media::default()
        };
        assert_eq!(
            fault("i", Some(Content::Media(media))).to_string(),
            "model minilm takes text; item has media of type \"image/png\""
        );
        let text = |length: usize| Some(Content::Text("x ".repeat(length / 2)));
        assert_eq!(
            fault(&"i".repeat(257), text(2)),
            ItemFault::IdTooLong { bytes: 257 }
        );
        let bytes = limits::TEXT_BYTES + 2;
        assert_eq!(fault("i", text(bytes)), ItemFault::TooLarge { bytes });
    }
}
