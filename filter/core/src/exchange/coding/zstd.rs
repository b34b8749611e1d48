//! zstd (RFC 8878), by ruzstd, a block at a time. What a frame says of itself is checked here: its checksum and its size.

use std::io::BufRead as _;

use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::CodingFault;
use super::input::Input;

/// How much of what it gave a decoder keeps at most: what RFC 9659 allows in HTTP.
const WINDOW: u64 = 8 << 20;
/// Of a frame with everything in it.
const LONGEST_HEADER: usize = 18;
const BLOCK_HEADER: usize = 3;
const CHECKSUM: usize = 4;
const LONGEST_BLOCK: u32 = 128 << 10;
/// A frame for the decoder's user and not for us: magic `0x184D2A5?`, a length, and so many bytes.
const SKIPPABLE: u32 = 0x184d_2a50;

/// Decodes frames, one after the other.
#[derive(Default)]
pub(super) struct Frames(FrameDecoder);

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").finish_non_exhaustive()
    }
}

/// One frame on its way.
#[derive(Debug)]
pub(super) enum Frame {
    /// How much has come out of it before.
    Blocks {
        produced: u64,
    },
    Skipped {
        left: u32,
    },
}

type More<'a> = dyn FnMut(usize) -> Vec<u8> + 'a;

impl Frames {
    /// Reads a frame's header; there is at least a byte of it.
    pub(super) fn begin(&mut self, input: &mut Input, more: &mut More<'_>) -> Result<Frame, CodingFault> {
        input.has(LONGEST_HEADER, more);
        if let Some([magic, length]) = words(input.peek())
            && magic & !0xf == SKIPPABLE
        {
            input.consume(8);
            return Ok(Frame::Skipped { left: length });
        }
        self.0.set_max_window_size(WINDOW);
        let mut rest = input.peek();
        let before = rest.len();
        self.0.reset(&mut rest).map_err(|error| match error {
            FrameDecoderError::WindowSizeTooBig { .. } => CodingFault::Window,
            _ => CodingFault::Broken,
        })?;
        let read = before - rest.len();
        input.consume(read);
        Ok(Frame::Blocks { produced: 0 })
    }

    /// Whether the frame has ended.
    pub(super) fn step(
        &mut self,
        frame: &mut Frame,
        input: &mut Input,
        out: &mut Vec<u8>,
        more: &mut More<'_>,
    ) -> Result<bool, CodingFault> {
        match frame {
            Frame::Skipped { left: 0 } => Ok(true),
            Frame::Skipped { left } => {
                if !input.has(1, more) {
                    return Err(CodingFault::Broken);
                }
                let here = input.peek().len().min(*left as usize);
                input.consume(here);
                *left -= here as u32;
                Ok(*left == 0)
            }
            Frame::Blocks { produced } => self.block(produced, input, out, more),
        }
    }

    fn block(
        &mut self,
        produced: &mut u64,
        input: &mut Input,
        out: &mut Vec<u8>,
        more: &mut More<'_>,
    ) -> Result<bool, CodingFault> {
        // The decoder cannot go on in the middle of a block: all of it has to be here.
        let Some(size) = block_size(input, more) else { return Err(CodingFault::Broken) };
        input.has(size + CHECKSUM, more);
        let mut rest = input.peek();
        let before = rest.len();
        let ended = self.0.decode_blocks(&mut rest, BlockDecodingStrategy::UptoBlocks(1));
        let ended = ended.map_err(|_| CodingFault::Broken)?;
        let read = before - rest.len();
        input.consume(read);
        let came = self.0.collect_to_writer(&mut *out).map_err(|_| CodingFault::Broken)?;
        *produced = produced.saturating_add(came as u64);
        if ended && !self.keeps_its_word(*produced) {
            return Err(CodingFault::Broken);
        }
        Ok(ended)
    }

    fn keeps_its_word(&self, produced: u64) -> bool {
        let checksum = self.0.get_checksum_from_data();
        let size = self.0.content_size();
        checksum.is_none_or(|said| self.0.get_calculated_checksum() == Some(said)) && (size == 0 || size == produced)
    }
}

/// Of the next block with its header; `None` where it is cut off, or none.
fn block_size(input: &mut Input, more: &mut More<'_>) -> Option<usize> {
    const RLE: u32 = 1;
    input.has(BLOCK_HEADER, more);
    let [a, b, c] = *input.peek().first_chunk::<BLOCK_HEADER>()?;
    let header = u32::from_le_bytes([a, b, c, 0]);
    let content = if (header >> 1) & 3 == RLE { 1 } else { header >> 3 };
    (content <= LONGEST_BLOCK).then_some(BLOCK_HEADER + content as usize)
}

fn words(bytes: &[u8]) -> Option<[u32; 2]> {
    let [a, b, c, d, e, f, g, h] = *bytes.first_chunk::<8>()?;
    Some([u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])])
}
