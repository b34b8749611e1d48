//! Tokens guessed from bytes, for exchanges whose provider did not say. What comes of it is marked `Estimated`.

/// Bytes of text per token. English prose and code come to about four with OpenAI's tokenizers; other scripts have
/// more tokens per character but also more bytes. Source: <https://help.openai.com/en/articles/4936856>
pub const BYTES_PER_TOKEN: u64 = 4;

/// Tokens of a request, from the size of its body. JSON's own characters are counted as if they were text, which
/// is near what chat templates add per message.
pub fn estimate_input(body_bytes: u64) -> u64 {
    body_bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Tokens of an answer, from the bytes of its text (UTF-8, JSON escapes decoded).
pub fn estimate_output(text_bytes: u64) -> u64 {
    text_bytes.div_ceil(BYTES_PER_TOKEN)
}

/// Bytes of one event of a stream, which mostly brings one token: the delta of an empty one is about 200.
const BYTES_PER_EVENT: u64 = 200;

/// Tokens of an answer that nobody read, from its bytes on the wire, headers and all.
pub fn estimate_unread(stream: bool, wire_bytes: u64) -> u64 {
    wire_bytes.div_ceil(if stream { BYTES_PER_EVENT } else { BYTES_PER_TOKEN })
}
