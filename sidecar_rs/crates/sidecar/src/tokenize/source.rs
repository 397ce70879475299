//! Where an item's bytes are.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use prost::Message;
use sha2::{Digest, Sha256};
use shoal_proto::shoal::v1::ItemStatus;

use crate::faults::ItemFault;

/// Bytes of a file that are read and digested at once: they are in the cache still when they are digested.
const CHUNK_BYTES: u64 = 256 * 1024;

/// An item as it came: a serialized shoal.v1.Item, or what stands for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// In memory.
    Here(Bytes),
    /// In a file.
    File(Stored),
    /// Its worker could not have it: a serialized shoal.v1.ItemStatus.
    Nowhere(Bytes),
}

/// A file and what it should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub path: PathBuf,
    pub size_bytes: u64,
    pub sha256: Bytes,
}

impl Source {
    /// Whether it has to be read from a file.
    pub fn is_file(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Bytes of it that are in memory.
    pub fn bytes_here(&self) -> usize {
        match self {
            Self::Here(bytes) => bytes.len(),
            Self::File(_) | Self::Nowhere(_) => 0,
        }
    }

    /// The item's bytes, checked. Reads a file: call it where waiting is allowed.
    pub fn read(self) -> Result<Bytes, ItemFault> {
        match self {
            Self::Here(bytes) => Ok(bytes),
            Self::File(stored) => stored.read(),
            Self::Nowhere(status) => Err(match ItemStatus::decode(status) {
                Ok(status) => ItemFault::NotFetched {
                    code: status.code,
                    reason: status.reason,
                    message: status.message,
                },
                Err(error) => ItemFault::Malformed(error.to_string()),
            }),
        }
    }
}

impl Stored {
    fn read(&self) -> Result<Bytes, ItemFault> {
        let (bytes, sha256) = digested(&self.path, self.size_bytes).map_err(|error| {
            tracing::error!(path = %self.path.display(), %error, "an item's file cannot be read");
            ItemFault::Unreadable(error.kind())
        })?;
        if bytes.len() as u64 != self.size_bytes || self.sha256 != sha256.as_slice() {
            tracing::error!(path = %self.path.display(), size = bytes.len(), "an item's file is damaged");
            return Err(ItemFault::Damaged);
        }
        Ok(bytes.into())
    }
}

/// A file's bytes, at most one more than it should have, and their SHA-256.
fn digested(path: &Path, size_bytes: u64) -> io::Result<(Vec<u8>, [u8; 32])> {
    let mut file = File::open(path)?.take(size_bytes + 1);
    let mut bytes = Vec::with_capacity(size_bytes as usize + 1);
    let mut digest = Sha256::new();
    loop {
        let begin = bytes.len();
        if (&mut file).take(CHUNK_BYTES).read_to_end(&mut bytes)? == 0 {
            return Ok((bytes, digest.finalize().into()));
        }
        digest.update(&bytes[begin..]);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;

    use super::*;

    fn stored(folder: &Path, bytes: &[u8]) -> Stored {
        Stored {
            path: folder.join("item"),
            size_bytes: bytes.len() as u64,
            sha256: Bytes::copy_from_slice(&Sha256::digest(bytes)),
        }
    }

    #[test]
    fn what_its_worker_says_of_an_item_is_said_of_it() {
        let status = ItemStatus {
            code: 15,
            message: "it has other bytes".to_owned(),
            reason: "BLOB_DAMAGED".to_owned(),
        };
        let nowhere = Source::Nowhere(status.encode_to_vec().into());
        assert!(!nowhere.is_file());
        assert_eq!(nowhere.read().unwrap_err().status(), status);
        let garbage = Source::Nowhere(Bytes::from_static(b"\xff"));
        assert_eq!(
            garbage.read().unwrap_err().status().reason,
            "ITEM_MALFORMED"
        );
    }

    #[test]
    fn a_file_is_read_when_its_turn_comes() {
        let folder = tempfile::tempdir().unwrap();
        for size in [1, CHUNK_BYTES as usize - 1, 3 * CHUNK_BYTES as usize] {
            let bytes: Vec<u8> = (0..size).map(|place| (place % 251) as u8).collect();
            let file = Source::File(stored(folder.path(), &bytes));
            assert!(file.is_file());
            fs::write(folder.path().join("item"), &bytes).unwrap();
            assert_eq!(file.read().unwrap(), bytes);
        }
    }

    #[test]
    fn a_file_that_is_not_what_was_written_is_no_item() {
        let folder = tempfile::tempdir().unwrap();
        let file = stored(folder.path(), b"item");
        let absent = file.read().unwrap_err();
        assert_eq!(absent, ItemFault::Unreadable(ErrorKind::NotFound));
        assert_eq!(absent.status().reason, "BLOB_STORAGE_FAILED");
        for damaged in ["", "ite", "itex", "items", "items and much more"] {
            fs::write(&file.path, damaged).unwrap();
            let fault = file.read().unwrap_err();
            assert_eq!(fault, ItemFault::Damaged);
            assert_eq!(fault.status().reason, "BLOB_DAMAGED");
        }
    }
}
