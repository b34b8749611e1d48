//! Request bodies that come compressed: decoded whole, before they are read.

use std::io::{BufRead, Read};

use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{FrameDecoder, StreamingDecoder};

/// How much of what it gave a zstd decoder keeps at most: what RFC 9659 allows in HTTP.
const WINDOW: u64 = 8 << 20;

/// A body is one part, or a few: a million tiny ones would hold a worker for seconds.
const MAX_PARTS: usize = 100;

/// A content coding that clients use. Codex sends zstd, some HTTP libraries gzip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    Gzip,
    Zstd,
}

/// Why a body cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodingFault {
    /// More comes out than is allowed.
    TooLarge,
    /// What came in is not what it says, or not all of it.
    Broken,
}

impl Coding {
    /// By the value of `content-encoding`; several codings in a row are none of ours.
    pub fn named(name: &str) -> Option<Self> {
        let is = |coding: &str| name.trim().eq_ignore_ascii_case(coding);
        match () {
            () if is("gzip") || is("x-gzip") => Some(Self::Gzip),
            () if is("zstd") => Some(Self::Zstd),
            () => None,
        }
    }

    /// As `content-encoding` says it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// All of `body`, decoded. Never holds much more than `limit` bytes and a window, whatever the body claims to become.
    ///
    /// # Errors
    /// More than `limit` bytes, or a body that is broken.
    pub fn decode(self, mut body: impl BufRead, limit: u64) -> Result<Vec<u8>, CodingFault> {
        let mut out = Vec::new();
        // Each part (gzip's members, zstd's frames) costs a decoder of its own, however little is in it.
        for _ in 0..MAX_PARTS {
            out = match self {
                Self::Gzip => read(flate2::bufread::GzDecoder::new(&mut body), out, limit)?,
                Self::Zstd => read(frame(&mut body)?, out, limit)?,
            };
            if body.fill_buf().map_err(|_| CodingFault::Broken)?.is_empty() {
                return Ok(out);
            }
        }
        Err(CodingFault::Broken)
    }
}

fn frame<B: BufRead>(body: B) -> Result<StreamingDecoder<B, FrameDecoder>, CodingFault> {
    StreamingDecoder::new_with_max_window_size(body, WINDOW).map_err(|error| match error {
        FrameDecoderError::WindowSizeTooBig { .. } => CodingFault::TooLarge,
        _ => CodingFault::Broken,
    })
}

/// Appends what `decoder` gives to `out`.
fn read(decoder: impl Read, mut out: Vec<u8>, limit: u64) -> Result<Vec<u8>, CodingFault> {
    let left = limit.saturating_sub(out.len() as u64);
    decoder.take(left + 1).read_to_end(&mut out).map_err(|_| CodingFault::Broken)?;
    if out.len() as u64 > limit { Err(CodingFault::TooLarge) } else { Ok(out) }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    }

    #[test]
    fn codings_go_by_their_names() {
        assert_eq!(Coding::named("GZIP"), Some(Coding::Gzip));
        assert_eq!(Coding::named("x-gzip "), Some(Coding::Gzip));
        assert_eq!(Coding::named("zstd"), Some(Coding::Zstd));
        for other in ["", "br", "deflate", "gzip, zstd", "gzip,gzip"] {
            assert_eq!(Coding::named(other), None, "{other}");
        }
    }

    #[test]
    fn a_bomb_stops_at_the_limit() {
        let bytes = vec![b' '; 10_000_000];
        for (coding, bomb) in [(Coding::Gzip, gzip(&bytes)), (Coding::Zstd, zstd(&bytes))] {
            assert!(bomb.len() < 50_000);
            assert_eq!(coding.decode(bomb.as_slice(), 100_000), Err(CodingFault::TooLarge));
            assert_eq!(coding.decode(bomb.as_slice(), 10_000_000).map(|b| b.len()), Ok(10_000_000));
        }
    }

    #[test]
    fn many_tiny_parts_are_refused() {
        for (coding, part) in [(Coding::Gzip, gzip(b"x")), (Coding::Zstd, zstd(b"x"))] {
            let all = coding.decode(part.repeat(MAX_PARTS).as_slice(), 1_000);
            assert_eq!(all, Ok(vec![b'x'; MAX_PARTS]));
            assert_eq!(coding.decode(part.repeat(MAX_PARTS + 1).as_slice(), 1_000), Err(CodingFault::Broken));
        }
    }

    #[test]
    fn a_window_beyond_reason_is_refused() {
        // Magic, a descriptor without a content size, a window of 16 MiB, an empty last block.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x70, 0x01, 0x00, 0x00];
        assert_eq!(Coding::Zstd.decode(frame.as_slice(), 1_000), Err(CodingFault::TooLarge));
        let allowed = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x68, 0x01, 0x00, 0x00];
        assert_eq!(Coding::Zstd.decode(allowed.as_slice(), 1_000), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 1..4)) {
            let whole = parts.concat();
            let joined = |encode: fn(&[u8]) -> Vec<u8>| parts.iter().flat_map(|p| encode(p)).collect::<Vec<u8>>();
            for (coding, encoded) in [(Coding::Gzip, joined(gzip)), (Coding::Zstd, joined(zstd))] {
                // However it arrives.
                let slowly = std::io::BufReader::with_capacity(7, encoded.as_slice());
                prop_assert_eq!(coding.decode(slowly, whole.len() as u64), Ok(whole.clone()));
                let cut = &encoded[..encoded.len() - 1];
                prop_assert_eq!(coding.decode(cut, 1 << 20), Err(CodingFault::Broken));
            }
        }

        #[test]
        fn anything_is_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let framed = [&[0x28, 0xb5, 0x2f, 0xfd], bytes.as_slice()].concat();
            for coding in [Coding::Gzip, Coding::Zstd] {
                let _ = coding.decode(bytes.as_slice(), 1 << 16);
                let _ = coding.decode(framed.as_slice(), 1 << 16);
            }
        }
    }
}
