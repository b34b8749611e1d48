//! Resumable JSON scanning and surgical edits.
