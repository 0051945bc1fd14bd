//! The ways in which a command fails, and their exit codes.

use std::process::ExitCode;

/// The exit code after a signal that asked the program to stop.
pub(crate) const INTERRUPTED: u8 = 130;

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command failed. The text is one line for the user.
    Failed(String),
    /// There is no such key.
    NotFound(String),
    /// The arguments are wrong.
    Usage(String),
    /// The pool is damaged, or may be.
    Damaged(String),
    /// The reader of standard output has closed it.
    Closed,
    /// A signal asked the program to stop.
    Interrupted,
}

impl Failure {
    /// Builds a failure of `action`.
    pub(crate) fn io(action: impl std::fmt::Display, error: &std::io::Error) -> Self {
        Failure::Failed(format!("{action}: {error}"))
    }

    /// The exit code.
    pub(crate) fn code(&self) -> ExitCode {
        ExitCode::from(match self {
            Failure::Failed(_) | Failure::NotFound(_) => 1,
            Failure::Usage(_) => 2,
            Failure::Damaged(_) => 3,
            Failure::Closed => 0,
            Failure::Interrupted => INTERRUPTED,
        })
    }

    /// The kind of failure, for programs.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Failure::Failed(_) => "failed",
            Failure::NotFound(_) => "not-found",
            Failure::Usage(_) => "usage",
            Failure::Damaged(_) => "damaged",
            Failure::Closed => "closed",
            Failure::Interrupted => "interrupted",
        }
    }

    /// Describes the failure in one line.
    pub(crate) fn message(&self) -> &str {
        match self {
            Failure::Failed(text)
            | Failure::NotFound(text)
            | Failure::Usage(text)
            | Failure::Damaged(text) => text,
            Failure::Closed => "standard output was closed",
            Failure::Interrupted => "interrupted",
        }
    }

    /// Puts the place of the failure in front of the message, unless the message begins with it.
    pub(crate) fn within(self, place: impl std::fmt::Display) -> Self {
        let place = format!("{place}: ");
        self.with(|text| if text.starts_with(&place) { text } else { place + &text })
    }

    /// Appends the message of a failure that happened later.
    pub(crate) fn and(self, later: &Failure) -> Self {
        self.with(|text| format!("{text}; then: {}", later.message()))
    }

    fn with(self, change: impl FnOnce(String) -> String) -> Self {
        match self {
            Failure::Failed(text) => Failure::Failed(change(text)),
            Failure::NotFound(text) => Failure::NotFound(change(text)),
            Failure::Usage(text) => Failure::Usage(change(text)),
            Failure::Damaged(text) => Failure::Damaged(change(text)),
            other => other,
        }
    }
}

impl From<outlast::Error> for Failure {
    fn from(error: outlast::Error) -> Self {
        let mut text = format!("{error:?}");
        if matches!(error, outlast::Error::Suspect) {
            // The library advises to call `verify`. The command of that name changes nothing, so
            // name the one that helps.
            text.push_str(" with `outlast accept`");
        }
        if error.is_damage() { Failure::Damaged(text) } else { Failure::Failed(text) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_from_other_errors_and_causes_are_named() {
        let damage = outlast::Damage::new(64, "1", "2");
        assert!(matches!(Failure::from(outlast::Error::from(damage)), Failure::Damaged(_)));
        assert!(matches!(
            Failure::from(outlast::Error::Locked { path: "a".into() }),
            Failure::Failed(_)
        ));
        let source = std::io::Error::other("the cause");
        let error = outlast::Error::Io { action: "the action".into(), source };
        assert_eq!(Failure::from(error).message(), "the action: the cause");
    }
}
