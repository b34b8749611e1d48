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

/// Another Envoy of the supported ones, `None` where it was not fetched.
pub fn envoy_version(version: &str) -> Option<PathBuf> {
    Some(root().join(format!("envoy-{version}/envoy/_bin/envoy"))).filter(|p| p.exists())
}

/// A program of this workspace; it lies beside the test binary's folder.
pub fn built(program: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of this program");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    existing(profile.join(program))
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing: `make test` fetches the tools and builds everything first", path.display());
    path
}
