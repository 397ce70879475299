//! The mesh's protobuf contracts as Rust types, nested as their packages are.

#![allow(clippy::all, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/packages.rs"));

/// All files as a serialized `google.protobuf.FileDescriptorSet`, for reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));
