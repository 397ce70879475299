//! One text to tokens, exactly as the tokenizer's own truncation would give them.
//!
//! A long text is tokenized only as far as it can matter. Tokens of different pre-tokens ("words")
//! don't influence each other, so what stands before the last word of a prefix, and not close to the
//! cut, is what the whole text would give there. A prefix with more such tokens than are used is
//! enough; else it is doubled, up to the whole text.

use std::borrow::Cow;

use tokenizers::{Encoding, Tokenizer, TruncationDirection};

use crate::faults::ItemFault;
use crate::limits::{UNSETTLED_BYTES, WHOLE_TEXT_BYTES};
use crate::options::WhenTooLong;
use crate::unit::Tokens;

/// How texts of a unit are tokenized.
pub struct Rules<'a> {
    pub prompt: &'a str,
    /// Special tokens and prompt included.
    pub max_tokens: usize,
    /// Tokens that the tokenizer adds; fewer than `max_tokens`.
    pub special_tokens: usize,
    pub when_too_long: WhenTooLong,
}

/// Tokenizes a text behind its prompt.
pub fn tokenize(tokenizer: &Tokenizer, rules: &Rules<'_>, text: &str) -> Result<Tokens, ItemFault> {
    if text.chars().all(|c| c.is_whitespace() || c.is_control()) {
        return Err(ItemFault::Empty(
            "there is nothing but spaces and control characters",
        ));
    }
    let room = rules.max_tokens - rules.special_tokens;
    let input: Cow<'_, str> = if rules.prompt.is_empty() {
        Cow::Borrowed(text)
    } else {
        Cow::Owned([rules.prompt, text].concat())
    };
    let Body {
        mut encoding,
        settled,
    } = body(tokenizer, &input, !rules.prompt.is_empty(), room)?;
    let tokens = settled.unwrap_or(encoding.len()) + rules.special_tokens;
    let own = first_own_token(&encoding, rules.prompt).ok_or(ItemFault::Empty(
        "the tokenizer drops all of its characters",
    ))?;
    if tokens > rules.max_tokens && rules.when_too_long == WhenTooLong::Fail {
        return Err(ItemFault::TooLong {
            tokens,
            at_least: settled.is_some(),
            limit: rules.max_tokens,
        });
    }
    if own >= room {
        return Err(ItemFault::NoRoom {
            limit: rules.max_tokens,
        });
    }
    encoding.truncate(room, 0, TruncationDirection::Right);
    encoding.take_overflowing();
    let encoding = tokenizer
        .post_process(encoding, None, true)
        .map_err(failed)?;
    Ok(Tokens {
        ids: encoding.get_ids().iter().map(|id| *id as i32).collect(),
        input_tokens: tokens as u32,
        lower_bound: settled.is_some(),
    })
}

/// Tokens of prompt and text, without special tokens.
struct Body {
    encoding: Encoding,
    /// Set when only a prefix was tokenized: how many tokens are sure, more than there is room for.
    settled: Option<usize>,
}

fn body(
    tokenizer: &Tokenizer,
    input: &str,
    with_offsets: bool,
    room: usize,
) -> Result<Body, ItemFault> {
    let mut prefix_bytes = WHOLE_TEXT_BYTES;
    while prefix_bytes < input.len() {
        let prefix = &input[..input.floor_char_boundary(prefix_bytes)];
        let encoding = tokenizer.encode(prefix, false).map_err(failed)?;
        let settled = settled_tokens(&encoding, prefix.len() - UNSETTLED_BYTES);
        if settled > room {
            return Ok(Body {
                encoding,
                settled: Some(settled),
            });
        }
        prefix_bytes *= 2;
    }
    let encoding = if with_offsets {
        tokenizer.encode(input, false)
    } else {
        tokenizer.encode_fast(input, false)
    };
    Ok(Body {
        encoding: encoding.map_err(failed)?,
        settled: None,
    })
}

/// Tokens before the last word that end at `limit` or before.
fn settled_tokens(encoding: &Encoding, limit: usize) -> usize {
    let words = encoding.get_word_ids();
    let Some(last_word) = words.last() else {
        return 0;
    };
    let ends = encoding.get_offsets().iter().map(|(_, end)| *end);
    words
        .iter()
        .zip(ends)
        .take_while(|(word, end)| *word != last_word && *end <= limit)
        .count()
}

/// The first token that stands for something of the text, and not of the prompt alone.
fn first_own_token(encoding: &Encoding, prompt: &str) -> Option<usize> {
    if prompt.is_empty() {
        return (!encoding.is_empty()).then_some(0);
    }
    let mut offsets = encoding.get_offsets().iter();
    offsets.position(|(start, end)| *end > prompt.len() && end > start)
}

fn failed(error: tokenizers::Error) -> ItemFault {
    ItemFault::Tokenizer(error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokenizers::TruncationParams;

    use super::*;
    use crate::testing::minilm;

    fn rules(max_tokens: usize) -> Rules<'static> {
        Rules {
            prompt: "",
            max_tokens,
            special_tokens: 2,
            when_too_long: WhenTooLong::Cut,
        }
    }

    fn ours(text: &str, max_tokens: usize) -> Result<Tokens, ItemFault> {
        tokenize(&minilm().tokenizer, &rules(max_tokens), text)
    }

    /// The tokenizer's own truncation, over the whole text.
    fn reference(text: &str, max_tokens: usize) -> (Vec<i32>, usize) {
        let mut tokenizer = minilm().tokenizer.clone();
        let whole = tokenizer.encode(text, true).unwrap().len();
        let params = TruncationParams {
            max_length: max_tokens,
            ..TruncationParams::default()
        };
        tokenizer.with_truncation(Some(params)).unwrap();
        let encoding = tokenizer.encode(text, true).unwrap();
        (
            encoding.get_ids().iter().map(|id| *id as i32).collect(),
            whole,
        )
    }

    fn assert_like_reference(text: &str, max_tokens: usize) -> Tokens {
        let tokens = ours(text, max_tokens).unwrap();
        let (ids, whole) = reference(text, max_tokens);
        assert_eq!(*tokens.ids, *ids);
        if tokens.lower_bound {
            assert!(tokens.input_tokens as usize <= whole && tokens.truncated());
        } else {
            assert_eq!(tokens.input_tokens as usize, whole);
            assert_eq!(tokens.truncated(), whole > max_tokens);
        }
        tokens
    }

    #[test]
    fn tokens_equal_the_tokenizers_own_truncation() {
        let text = "Schwärme of tiny models, served [SEP] by a mesh: 漢字 & unaffable 🐟!";
        let (_, whole) = reference(text, 512);
        for max_tokens in 3..=whole + 1 {
            assert_like_reference(text, max_tokens);
        }
    }

    #[test]
    fn texts_without_a_token_of_their_own_are_empty() {
        for text in ["", " \n\t ", "\0\0", "\u{feff}\u{200b}", "\u{301}"] {
            assert!(
                matches!(ours(text, 256), Err(ItemFault::Empty(_))),
                "{text:?}"
            );
            let prompted = Rules {
                prompt: "query: ",
                ..rules(256)
            };
            let tokens = tokenize(&minilm().tokenizer, &prompted, text);
            assert!(
                matches!(tokens, Err(ItemFault::Empty(_))),
                "{text:?} behind a prompt"
            );
        }
    }

    #[test]
    fn a_prompt_counts_and_must_leave_room() {
        let prompted = |max_tokens| Rules {
            prompt: "query: ",
            ..rules(max_tokens)
        };
        let tokenizer = &minilm().tokenizer;
        let tokens = tokenize(tokenizer, &prompted(256), "fish").unwrap();
        assert_eq!(*tokens.ids, *reference("query: fish", 256).0);
        assert!(tokenize(tokenizer, &prompted(5), "fish").is_ok());
        let fault = tokenize(tokenizer, &prompted(4), "fish").unwrap_err();
        assert_eq!(fault, ItemFault::NoRoom { limit: 4 });
    }

    #[test]
    fn too_long_can_be_a_fault_that_names_both_counts() {
        let failing = Rules {
            when_too_long: WhenTooLong::Fail,
            ..rules(4)
        };
        let tokenizer = &minilm().tokenizer;
        assert!(tokenize(tokenizer, &failing, "two words").is_ok());
        let fault = tokenize(tokenizer, &failing, "now three words").unwrap_err();
        let at_least = false;
        assert_eq!(
            fault,
            ItemFault::TooLong {
                tokens: 5,
                at_least,
                limit: 4
            }
        );
        let long = "fish ".repeat(100_000);
        let fault = tokenize(tokenizer, &failing, &long).unwrap_err();
        assert!(fault.to_string().contains("at least "), "{fault}");
    }

    #[test]
    fn long_texts_of_awkward_shapes_are_like_the_whole() {
        let spaces = " ".repeat(300 * 1024);
        let words = "unaffable fish swim. ".repeat(20_000);
        let giant = "x".repeat(200 * 1024);
        assert!(assert_like_reference(&words, 512).lower_bound);
        assert!(!assert_like_reference(&giant, 256).lower_bound);
        assert!(!assert_like_reference(&format!("{giant} fish"), 256).lower_bound);
        assert!(!assert_like_reference(&format!("{spaces}then a text"), 256).lower_bound);
        assert!(assert_like_reference(&format!("{words}{giant}"), 256).lower_bound);
        assert_like_reference(&format!("one two {giant} three {words}"), 256);
        assert_like_reference(&"é\u{301}漢🐟".repeat(10_000), 512);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        /// Any text of words around the first prefixes gives the tokens of the whole.
        #[test]
        fn long_texts_are_like_the_whole(
            words in prop::collection::vec("[a-zé漢.]{1,40}|[ \n]{1,900}|[x]{90,300}", 40),
            repeats in 1..60_usize,
            max_tokens in 3..512_usize,
        ) {
            let text = words.join(" ").repeat(repeats);
            if ours(&text, max_tokens).is_ok() {
                assert_like_reference(&text, max_tokens);
            }
        }
    }
}
