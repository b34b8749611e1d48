//! The filter's module: embedded when this was built, or from a file.

use std::path::{Path, PathBuf};

use bytes::Bytes;

/// Built in by `make`; `None` in a build without the filter.
static EMBEDDED: Option<&[u8]> = include!(concat!(env!("OUT_DIR"), "/filter.rs"));
/// What every WebAssembly module begins with.
const MAGIC: &[u8] = b"\0asm";

/// Why there is no filter to send.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    #[error("this build has no filter in it: run `make wasm` and build again, or give --wasm <file>")]
    NotEmbedded,
    #[error("--wasm {}: {error}", path.display())]
    File { path: PathBuf, error: std::io::Error },
    #[error("--wasm {}: is not a WebAssembly module", .0.display())]
    NotWasm(PathBuf),
}

/// The module in `file`, or the embedded one.
///
/// # Errors
/// When there is none, or the file is not one.
pub fn load(file: Option<&Path>) -> Result<Bytes, FilterError> {
    let Some(path) = file else {
        return EMBEDDED.map(Bytes::from_static).ok_or(FilterError::NotEmbedded);
    };
    let module = std::fs::read(path).map_err(|error| FilterError::File { path: path.to_owned(), error })?;
    if module.starts_with(MAGIC) { Ok(module.into()) } else { Err(FilterError::NotWasm(path.to_owned())) }
}
