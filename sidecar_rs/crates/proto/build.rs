//! Compiles the protos that the sidecar speaks: protox reads them, so no protoc is needed.

use std::path::{Path, PathBuf};
use std::{env, fs};

use prost::Message;

type Failure = Box<dyn std::error::Error>;

/// Packages that are spoken here; what they import is found by itself.
const FOLDERS: [&str; 4] = ["v1", "work/v1", "sidecar/v1", "runtime/v1"];

fn main() -> Result<(), Failure> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../../..");
    let protos = root.join("protos");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    println!("cargo::rerun-if-changed={}", protos.display());
    println!("cargo::rerun-if-env-changed=GOOGLEAPIS_INCLUDE");

    let mut files = vec![PathBuf::from("google/rpc/error_details.proto")];
    for folder in FOLDERS {
        files.extend(protos_in(&protos.join("shoal").join(folder))?);
    }
    let descriptors = protox::compile(files, [protos, googleapis(&root)?])?;
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".")
        .include_file("packages.rs")
        .compile_fds(descriptors)?;
    Ok(())
}

fn protos_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "proto")
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// The folder that holds google/rpc/*.proto.
fn googleapis(root: &Path) -> Result<PathBuf, Failure> {
    let holds = |folder: &Path| folder.join("google/rpc/status.proto").is_file();
    if let Some(folder) = env::var_os("GOOGLEAPIS_INCLUDE").map(PathBuf::from) {
        if holds(&folder) {
            return Ok(folder);
        }
        return Err(format!(
            "GOOGLEAPIS_INCLUDE is {}, which has no google/rpc/status.proto",
            folder.display()
        )
        .into());
    }
    let versions = fs::read_dir(root.join(".venv/lib"));
    versions
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("site-packages"))
        .find(|folder| holds(folder))
        .ok_or_else(|| {
            "google/rpc/status.proto was not found: install googleapis-common-protos (uv sync), or set \
             GOOGLEAPIS_INCLUDE to the folder that holds google/rpc"
                .into()
        })
}
