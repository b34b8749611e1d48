//! `sluicegate`; the library does everything.

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    sluicegate::cli::main().await
}
