//! A provider that does what the test says: the vendor's end of an end-to-end test, of the quickstart and of the bench.
//!
//! It speaks OpenAI chat completions (stream or not, tools, reasoning, usage detail), embeddings and models over
//! HTTP/1.1 and HTTP/2, in plain text or TLS. A [`Script`] says per request what is answered and how it is delivered:
//! late, in pieces of any size, cut, without usage. Every request is kept as it came, for byte-exact assertions.
//!
//! Answers are deterministic: the same request gets the same bytes.

mod answer;
mod chat;
mod deliver;
mod hold;
mod record;
mod script;
mod server;
mod socket;
mod tls;

pub use answer::{Answer, Content, Cut, CutHow, Delivery, Newline, Pieces, Wait};
pub use chat::{Chat, ReportedUsage, Text, ToolCall, UsageOn};
pub use hold::Hold;
pub use record::{Fate, Recorded};
pub use script::{Rule, Script};
pub use server::{Listen, Provider};
pub use tls::TestCa;
