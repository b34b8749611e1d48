//! Log files that outlive a restart.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// One that has grown beyond this many bytes is put aside at the next start.
const LARGE: u64 = 10 << 20;

/// Opens the log at `path` to append to it. A large one becomes `<path>.1` first, in place of the one before.
///
/// # Errors
/// When it cannot be written.
pub fn open(path: &Path) -> io::Result<File> {
    open_beyond(path, LARGE)
}

fn open_beyond(path: &Path, large: u64) -> io::Result<File> {
    if std::fs::metadata(path).is_ok_and(|log| log.len() > large) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        std::fs::rename(path, aside)?;
    }
    OpenOptions::new().append(true).create(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_log_is_continued_until_it_is_large() {
        let path = std::env::temp_dir().join(format!("sluicegate-log-{}", uuid::Uuid::now_v7()));
        for _ in 0..3 {
            open_beyond(&path, 7).unwrap().write_all(b"line\n").unwrap();
        }
        let aside = path.with_extension("1");
        assert_eq!(std::fs::read_to_string(&aside).unwrap(), "line\nline\n");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "line\n");
        std::fs::remove_file(aside).unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
