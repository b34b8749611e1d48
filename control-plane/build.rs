//! Generates the tonic services; their messages are core's.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = "../filter/core/proto";
    println!("cargo::rerun-if-changed={root}");
    let descriptors = protox::compile(["dataplane.proto"], [root])?;
    tonic_prost_build::configure()
        .extern_path(".sluicegate.dataplane.v1", "::sluicegate_core::proto::dataplane")
        .compile_fds(descriptors)?;
    Ok(())
}
