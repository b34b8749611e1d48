//! What an exchange used, normalised over dialects.

use crate::proto::dataplane as wire;

/// Token counts, each token in exactly one field: `input` excludes cached tokens, `output` excludes reasoning and audio.
/// Dialects that report totals subtract before they fill this in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub input: u64,
    pub cache_read: u64,
    pub cache_write_5m: u64,
    pub cache_write_1h: u64,
    pub output: u64,
    pub reasoning: u64,
    pub audio_in: u64,
    pub audio_out: u64,
    pub images: u64,
}

/// Where a [`Usage`] comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// Nothing ran at a provider.
    #[default]
    None,
    /// The provider said so.
    Reported,
    /// Guessed from bytes, because the provider did not say.
    Estimated,
}

impl Usage {
    /// Everything the provider read, cached or not. Price tiers go by it.
    pub fn all_input(&self) -> u64 {
        [self.cache_read, self.cache_write_5m, self.cache_write_1h, self.audio_in]
            .iter()
            .fold(self.input, |sum, n| sum.saturating_add(*n))
    }

    /// Everything the provider wrote.
    pub fn all_output(&self) -> u64 {
        self.output.saturating_add(self.reasoning).saturating_add(self.audio_out)
    }

    pub fn to_wire(&self) -> wire::Usage {
        wire::Usage {
            input: self.input,
            cache_read: self.cache_read,
            cache_write_5m: self.cache_write_5m,
            cache_write_1h: self.cache_write_1h,
            output: self.output,
            reasoning: self.reasoning,
            audio_in: self.audio_in,
            audio_out: self.audio_out,
            images: self.images,
        }
    }

    pub fn from_wire(usage: &wire::Usage) -> Self {
        Self {
            input: usage.input,
            cache_read: usage.cache_read,
            cache_write_5m: usage.cache_write_5m,
            cache_write_1h: usage.cache_write_1h,
            output: usage.output,
            reasoning: usage.reasoning,
            audio_in: usage.audio_in,
            audio_out: usage.audio_out,
            images: usage.images,
        }
    }
}

impl Source {
    pub fn to_wire(self) -> wire::Source {
        match self {
            Self::None => wire::Source::None,
            Self::Reported => wire::Source::Reported,
            Self::Estimated => wire::Source::Estimated,
        }
    }
}
