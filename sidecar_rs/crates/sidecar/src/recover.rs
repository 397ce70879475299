//! The id of a message that does not parse as a whole.

use prost::Message;

/// Units and items have their id in field 1; other fields are skipped unread.
#[derive(Clone, PartialEq, Message)]
struct Named {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
}

/// The id, if it can be told and has at most `most_bytes`; else nothing.
pub fn id(bytes: &[u8], most_bytes: usize) -> String {
    let id = Named::decode(bytes)
        .map(|named| named.id)
        .unwrap_or_default();
    if id.len() > most_bytes {
        return String::new();
    }
    String::from_utf8(id).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_id_is_found_beside_bad_utf8_and_never_invented() {
        assert_eq!(super::id(b"\x0a\x01i\x12\x02\xff\xfe", 256), "i");
        assert_eq!(super::id(b"\x0a\x02\xff\xfe", 256), "");
        assert_eq!(super::id(b"\x0a\x02id", 1), "");
        assert_eq!(super::id(b"\xff\xff", 256), "");
    }
}
