//! Compiles the protos without a protoc.
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/policy.proto", "proto/dataplane.proto"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["proto"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
