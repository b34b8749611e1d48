//! Files and directories that only their owner may read.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use zeroize::Zeroizing;

/// Makes `path` a directory that only we may enter, if it is not there.
///
/// # Errors
/// When it cannot be made, or is not ours.
pub fn directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o700))
}

/// Writes a file that only we may read.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)
}

/// The text in the file at `path`, which is made by `make` if it is not there.
///
/// # Errors
/// When it can be neither read nor written.
pub fn text(path: &Path, make: impl FnOnce() -> io::Result<Zeroizing<String>>) -> io::Result<Zeroizing<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Zeroizing::new(text.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = make()?;
            write(path, made.as_bytes())?;
            Ok(made)
        }
        Err(error) => Err(error),
    }
}
