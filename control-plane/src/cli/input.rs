//! Files that a command reads: bounded, and never a device without an end.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};

/// Opens a file or a pipe, or standard input for `-`.
pub(super) fn open(path: &Path) -> anyhow::Result<Box<dyn Read>> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    // Looked at before it is opened: opening some devices has effects.
    let kind = std::fs::metadata(path).with_context(|| name(path))?.file_type();
    // A pipe is what a shell's `<(...)` and /dev/stdin are.
    ensure!(kind.is_file() || kind.is_fifo(), "{} is neither a file nor a pipe", path.display());
    Ok(Box::new(File::open(path).with_context(|| name(path))?))
}

/// All of it, at most `most` bytes.
pub(super) fn bytes(path: &Path, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open(path)?.take(most + 1).read_to_end(&mut bytes).with_context(|| name(path))?;
    if read as u64 > most {
        bail!("{} is larger than {} MiB", name(path), most >> 20);
    }
    Ok(bytes)
}

/// All of it as text, at most `most` bytes.
pub(super) fn text(path: &Path, most: u64) -> anyhow::Result<String> {
    String::from_utf8(bytes(path, most)?).map_err(|_| anyhow::anyhow!("{} is not text in UTF-8", name(path)))
}

fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}
