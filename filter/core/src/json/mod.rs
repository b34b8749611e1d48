//! Resumable JSON scanning and surgical edits: what a gateway needs of a body it forwards, without holding it.

pub mod edit;
mod scalar;
pub mod scan;
mod scanned;
mod text;

pub use edit::{Edit, Edits};
pub use scan::Scanner;
pub use scanned::{Kind, Member, ScanError, ScanErrorKind, Scanned};
