//! What was found, a line each.

/// One line of what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    Good(String),
    /// Neither good nor bad.
    Note(String),
    /// It works, but perhaps not as meant, or not for long.
    Warning(String),
    /// It does not work, or is not safe.
    Bad(String),
}

impl Finding {
    pub fn line(&self) -> String {
        match self {
            Self::Good(fact) => format!("OK   {fact}\n"),
            Self::Note(fact) => format!("note {fact}\n"),
            Self::Warning(fault) => format!("WARN {fault}\n"),
            Self::Bad(fault) => format!("FAIL {fault}\n"),
        }
    }
}

/// Findings about one thing, in the order in which it was looked at.
#[derive(Debug)]
pub(super) struct Findings {
    about: String,
    pub all: Vec<Finding>,
}

impl Findings {
    pub fn about(about: impl Into<String>) -> Self {
        Self { about: about.into(), all: Vec::new() }
    }

    pub fn good(&mut self, fact: &str) {
        self.all.push(Finding::Good(format!("{}: {fact}", self.about)));
    }

    pub fn note(&mut self, fact: &str) {
        self.all.push(Finding::Note(format!("{}: {fact}", self.about)));
    }

    /// What is wrong and what to do.
    pub fn warning(&mut self, fault: &str, remedy: &str) {
        self.all.push(Finding::Warning(format!("{}: {fault}; {remedy}", self.about)));
    }

    /// What is wrong and what to do.
    pub fn bad(&mut self, fault: &str, remedy: &str) {
        self.all.push(Finding::Bad(format!("{}: {fault}; {remedy}", self.about)));
    }
}
