//! Where the parts are: binaries that were built or fetched before the tests began.

use std::path::{Path, PathBuf};

pub use test_postgres::scratch::{folder, free_port};

/// The root of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

/// The folder with the fetched tools; `SLUICEGATE_TOOLS`, else `.tools` in the workspace.
pub fn root() -> PathBuf {
    std::env::var_os("SLUICEGATE_TOOLS").map_or_else(|| workspace().join(".tools"), PathBuf::from)
}

/// The Envoy that is tested by default.
pub fn envoy() -> PathBuf {
    existing(root().join("envoy/_bin/envoy"))
}

/// An older Envoy of the supported ones.
pub fn older_envoy(version: &str) -> PathBuf {
    existing(root().join(format!("envoy-{version}/envoy/_bin/envoy")))
}

/// A program of this workspace; it lies beside the test binary's folder.
pub fn built(program: &str) -> PathBuf {
    existing(profile().join(program))
}

/// The filter as it is shipped.
pub fn filter() -> PathBuf {
    existing(profile().with_file_name(FILTER))
}

/// The filter that traps where a request asks for it.
pub fn fault_filter() -> PathBuf {
    existing(profile().with_file_name("fault").join(FILTER))
}

const FILTER: &str = "wasm32-wasip1/wasm/sluicegate_filter.wasm";

fn profile() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>").to_owned()
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing: `make test` fetches the tools and builds everything first", path.display());
    path
}
