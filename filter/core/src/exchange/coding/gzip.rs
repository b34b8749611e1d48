//! gzip (RFC 1952), by flate2.

use std::io::{ErrorKind, Read as _};

use flate2::bufread::GzDecoder;

use super::CodingFault;
use super::input::Input;

/// What comes out of one step at most.
const OUT: usize = 64 << 10;

/// One member on its way.
#[derive(Debug)]
pub(super) struct Member(GzDecoder<Input>);

impl Member {
    pub(super) fn new(input: Input) -> Self {
        Self(GzDecoder::new(input))
    }

    /// Whether it has ended. The decoder goes on where its input stopped it; its checksum and length are checked at the end.
    pub(super) fn step(
        &mut self,
        out: &mut Vec<u8>,
        more: &mut dyn FnMut(usize) -> Vec<u8>,
    ) -> Result<bool, CodingFault> {
        let before = out.len();
        out.resize(before + OUT, 0);
        let read = self.0.read(out.get_mut(before..).unwrap_or_default());
        out.truncate(before + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(read) => Ok(read == 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.0.get_mut().feed(more);
                Ok(false)
            }
            Err(_) => Err(CodingFault::Broken),
        }
    }

    pub(super) fn taken(&self) -> u64 {
        self.0.get_ref().taken()
    }

    pub(super) fn into_input(self) -> Input {
        self.0.into_inner()
    }
}
