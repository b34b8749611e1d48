//! Request bodies that come compressed: decoded whole, before they are read, a small step at a time.
//!
//! How long a body takes to decode is its sender's to say: millions of empty blocks fit into a megabyte. So a [`Decoder`]
//! works in steps, each of which takes little whatever the body is, and whoever drives it stops when time is over.

mod gzip;
mod input;
mod zstd;

use input::Input;

/// What comes out of a body may be so many times what came in, once it is over [`FREE_BYTES`]: text is hardly over 20, but
/// for what somebody copied many times.
const MAX_RATIO: u64 = 200;
const FREE_BYTES: u64 = 8 << 20;

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
    /// It wants more memory than a decoder keeps: a zstd window over 8 MiB.
    Window,
    /// What came in is not what it says, or not all of it.
    Broken,
}

/// What a step has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    /// All of it is decoded.
    Whole,
}

/// One body on its way.
#[derive(Debug)]
pub struct Decoder {
    coding: Coding,
    limit: u64,
    input: Input,
    part: Part,
    out: Vec<u8>,
    /// Reused from frame to frame.
    zstd: zstd::Frames,
}

/// A body is a row of parts: gzip's members, zstd's frames.
#[derive(Debug)]
enum Part {
    None,
    Gzip(Box<gzip::Member>),
    Zstd(zstd::Frame),
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
}

impl Decoder {
    /// Never holds much more than `limit` bytes and a window, whatever the body claims to become.
    pub fn new(coding: Coding, limit: u64) -> Self {
        Self {
            coding,
            limit,
            input: Input::default(),
            part: Part::None,
            out: Vec::new(),
            zstd: zstd::Frames::default(),
        }
    }

    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// What came out so far.
    pub fn out(&self) -> &[u8] {
        &self.out
    }

    pub fn into_out(self) -> Vec<u8> {
        self.out
    }

    /// One step. `more` gives the next bytes of the body, at most as many as it is asked for; none at its end.
    ///
    /// # Errors
    /// A body that is broken, or that becomes too much.
    pub fn step(&mut self, more: &mut dyn FnMut(usize) -> Vec<u8>) -> Result<Progress, CodingFault> {
        let done = match &mut self.part {
            Part::None => {
                if !self.input.has(1, more) {
                    return if self.input.taken() == 0 { Err(CodingFault::Broken) } else { Ok(Progress::Whole) };
                }
                self.part = match self.coding {
                    Coding::Gzip => Part::Gzip(Box::new(gzip::Member::new(std::mem::take(&mut self.input)))),
                    Coding::Zstd => Part::Zstd(self.zstd.begin(&mut self.input, more)?),
                };
                false
            }
            Part::Gzip(member) => member.step(&mut self.out, more)?,
            Part::Zstd(frame) => self.zstd.step(frame, &mut self.input, &mut self.out, more)?,
        };
        if done && let Part::Gzip(member) = std::mem::replace(&mut self.part, Part::None) {
            self.input = member.into_input();
        }
        let (taken, out) = (self.taken(), self.out.len() as u64);
        if out > self.limit || out > FREE_BYTES.max(taken.saturating_mul(MAX_RATIO)) {
            return Err(CodingFault::TooLarge);
        }
        Ok(Progress::More)
    }

    /// Bytes of the body that were asked for.
    fn taken(&self) -> u64 {
        match &self.part {
            Part::Gzip(member) => member.taken(),
            Part::None | Part::Zstd(_) => self.input.taken(),
        }
    }
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

    /// The whole body, given in pieces of at most `piece` bytes.
    fn decode_in(coding: Coding, body: &[u8], limit: u64, piece: usize) -> Result<Vec<u8>, CodingFault> {
        let (mut decoder, mut rest) = (Decoder::new(coding, limit), body);
        let mut more = |most: usize| {
            let (now, later) = rest.split_at(most.min(piece).min(rest.len()));
            rest = later;
            now.to_vec()
        };
        while decoder.step(&mut more)? == Progress::More {}
        Ok(decoder.into_out())
    }

    fn decode(coding: Coding, body: &[u8], limit: u64) -> Result<Vec<u8>, CodingFault> {
        decode_in(coding, body, limit, usize::MAX)
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
            assert_eq!(decode(coding, &bomb, 100_000), Err(CodingFault::TooLarge));
            assert_eq!(decode(coding, &bomb, 10_000_000), Err(CodingFault::TooLarge), "out of all proportion");
            let little = vec![b' '; 1 << 20];
            let encoded = if coding == Coding::Gzip { gzip(&little) } else { zstd(&little) };
            assert_eq!(decode(coding, &encoded, 10_000_000), Ok(little));
        }
    }

    /// What one step takes in and gives out is bounded, so it takes little time whatever the body is.
    #[test]
    fn a_step_is_small() {
        let text: Vec<u8> = (0..400_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let empty_blocks = [[0x02, 0x08, 0x20, 0x80, 0x00].repeat(20_000), vec![0x03, 0x00]].concat();
        let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
        let blocks = [header.as_slice(), &empty_blocks, &[0; 8]].concat();
        for (coding, body) in [(Coding::Gzip, gzip(&text)), (Coding::Zstd, zstd(&text)), (Coding::Gzip, blocks)] {
            let (mut decoder, mut rest, mut steps) = (Decoder::new(coding, 1 << 30), body.as_slice(), 0_usize);
            loop {
                let (before, mut fed) = (decoder.out().len(), 0);
                let step = decoder.step(&mut |most| {
                    let (now, later) = rest.split_at(most.min(rest.len()));
                    (rest, fed) = (later, fed + now.len());
                    now.to_vec()
                });
                steps += 1;
                assert!(fed <= 160 << 10 && decoder.out().len() - before <= 256 << 10, "{coding:?}: {fed}");
                if step.unwrap() == Progress::Whole {
                    break;
                }
            }
            assert!(steps > 10, "{coding:?}");
        }
    }

    #[test]
    fn what_a_zstd_frame_says_of_itself_is_held_against_it() {
        let body = b"Pay 100 dollars, and not a cent more than that.";
        let good = zstd(body);
        assert_eq!(decode(Coding::Zstd, &good, 1_000).unwrap(), body);
        let at = good.windows(3).position(|w| w == b"100").unwrap();
        let mut forged = good.clone();
        forged[at] = b'9';
        assert_eq!(decode(Coding::Zstd, &forged, 1_000), Err(CodingFault::Broken), "the checksum");
        // Magic, a descriptor with one byte of content size (single segment), which says 4; a raw last block of 3 bytes.
        let short = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x04, 0x19, 0x00, 0x00, b'a', b'b', b'c'];
        assert_eq!(decode(Coding::Zstd, &short, 1_000), Err(CodingFault::Broken), "the content size");
        let right = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0x03, 0x19, 0x00, 0x00, b'a', b'b', b'c'];
        assert_eq!(decode(Coding::Zstd, &right, 1_000).unwrap(), b"abc");
    }

    #[test]
    fn a_skippable_frame_is_skipped() {
        let skippable = [0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        let around = [skippable.as_slice(), &zstd(b"abc"), &skippable].concat();
        assert_eq!(decode(Coding::Zstd, &around, 1_000).unwrap(), b"abc");
        assert_eq!(decode(Coding::Zstd, &around[..around.len() - 1], 1_000), Err(CodingFault::Broken));
    }

    #[test]
    fn a_window_beyond_reason_is_refused() {
        // Magic, a descriptor without a content size, a window of 16 MiB, an empty last block.
        let frame = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x70, 0x01, 0x00, 0x00];
        assert_eq!(decode(Coding::Zstd, &frame, 1_000), Err(CodingFault::Window));
        let allowed = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x68, 0x01, 0x00, 0x00];
        assert_eq!(decode(Coding::Zstd, &allowed, 1_000), Ok(Vec::new()));
    }

    proptest! {
        #[test]
        fn what_was_encoded_comes_back(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 1..4)) {
            let whole = parts.concat();
            let joined = |encode: fn(&[u8]) -> Vec<u8>| parts.iter().flat_map(|p| encode(p)).collect::<Vec<u8>>();
            for (coding, encoded) in [(Coding::Gzip, joined(gzip)), (Coding::Zstd, joined(zstd))] {
                // However it arrives.
                prop_assert_eq!(decode_in(coding, &encoded, whole.len() as u64, 7), Ok(whole.clone()));
                let cut = &encoded[..encoded.len() - 1];
                prop_assert_eq!(decode(coding, cut, 1 << 20), Err(CodingFault::Broken));
            }
        }

        #[test]
        fn anything_is_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let framed = [&[0x28, 0xb5, 0x2f, 0xfd], bytes.as_slice()].concat();
            for coding in [Coding::Gzip, Coding::Zstd] {
                let _ = decode(coding, &bytes, 1 << 16);
                let _ = decode(coding, &framed, 1 << 16);
            }
        }
    }
}
