//! Generates the tonic services, whose messages are core's, and embeds the filter where it has been built.

use std::path::{Path, PathBuf};

/// Where `make wasm` leaves the filter, under the target directory.
const FILTER: &str = "wasm32-wasip1/wasm/sluicegate_filter.wasm";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../filter/core/proto";
    println!("cargo::rerun-if-changed={root}");
    let descriptors = protox::compile(["dataplane.proto"], [root])?;
    tonic_prost_build::configure()
        .extern_path(".sluicegate.dataplane.v1", "::sluicegate_core::proto::dataplane")
        .compile_fds(descriptors)?;
    embed_filter()
}

/// `filter.rs` is an expression: the module's bytes, or `None`.
fn embed_filter() -> Result<(), Box<dyn std::error::Error>> {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR")?);
    println!("cargo::rerun-if-env-changed=CARGO_TARGET_DIR");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| manifest.join("../target"), PathBuf::from);
    let filter = target.join(FILTER);
    println!("cargo::rerun-if-changed={}", filter.display());
    let expression =
        if filter.exists() { format!("Some(include_bytes!({:?}))", filter.canonicalize()?) } else { "None".into() };
    std::fs::write(Path::new(&std::env::var("OUT_DIR")?).join("filter.rs"), expression)?;
    Ok(())
}
