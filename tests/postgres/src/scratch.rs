//! Folders and ports of this run.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of this run for logs and data; folders of runs that are over are removed first.
pub fn scratch() -> &'static Path {
    static SCRATCH: LazyLock<PathBuf> = LazyLock::new(|| {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/scratch");
        std::fs::create_dir_all(&all).expect("target is writable");
        let all = all.canonicalize().expect("it was just made");
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
