//! Resumable JSON scanning and surgical edits: what a gateway needs of a body it forwards, without holding it.

pub mod edit;
pub mod scan;
mod text;

pub use edit::{Edit, Edits};
pub use scan::{Kind, Member, ScanError, ScanErrorKind, Scanned, Scanner};
