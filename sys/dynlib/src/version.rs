//! Versions of vendors' software, and which of them we know.

use std::fmt;

/// `major.minor.patch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number, 0 when there is none. Release candidates count as their release.
    pub patch: u32,
}

impl Version {
    /// A version.
    pub const fn new(major: u32, minor: u32, patch: u32) -> Version {
        Version { major, minor, patch }
    }

    /// Reads the leading numbers: `8.5.0`, `8.1.RC1` (8.1.0), `8.5.0-beta.1` (8.5.0), `V100R001` is `None`.
    pub fn parse(text: &str) -> Option<Version> {
        let mut parts = text.trim().split('.');
        let major = parts.next()?.parse().ok()?;
        let minor = leading(parts.next()?)?;
        Some(Version { major, minor, patch: parts.next().and_then(leading).unwrap_or(0) })
    }
}

/// The number at the start of `part`.
fn leading(part: &str) -> Option<u32> {
    let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
    part[..end].parse().ok()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The versions that we know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// What is versioned, for messages.
    pub what: &'static str,
    /// First version that serves.
    pub from: Version,
    /// First version that we do not know.
    pub below: Version,
}

/// A version outside its gate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// Before the first that serves.
    #[error("{what} {found} is too old: {from} is the first that serves")]
    TooOld {
        /// What is versioned.
        what: &'static str,
        /// What is here.
        found: Version,
        /// First that serves.
        from: Version,
    },
    /// Later than those we know.
    #[error("{what} {found} is newer than what this build knows (below {below}): its interface may have changed")]
    TooNew {
        /// What is versioned.
        what: &'static str,
        /// What is here.
        found: Version,
        /// First unknown.
        below: Version,
    },
    /// Not a version.
    #[error("{what} calls itself {text:?}, which is no version")]
    Unreadable {
        /// What is versioned.
        what: &'static str,
        /// What it said.
        text: String,
    },
}

impl Gate {
    /// The version if it is one that we know.
    pub fn check(&self, found: Version) -> Result<Version, VersionError> {
        let what = self.what;
        if found < self.from {
            Err(VersionError::TooOld { what, found, from: self.from })
        } else if found >= self.below {
            Err(VersionError::TooNew { what, found, below: self.below })
        } else {
            Ok(found)
        }
    }

    /// [`Gate::check`] of a text.
    pub fn check_text(&self, text: &str) -> Result<Version, VersionError> {
        let unreadable = || VersionError::Unreadable { what: self.what, text: text.into() };
        self.check(Version::parse(text).ok_or_else(unreadable)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_vendors_write_them() {
        for (text, want) in [
            ("8.5.0", Some((8, 5, 0))),
            ("8.1.RC1", Some((8, 1, 0))),
            ("8.5.0-beta.1", Some((8, 5, 0))),
            (" 9.0\n", Some((9, 0, 0))),
            ("8.2.3.4", Some((8, 2, 3))),
            ("V100R001", None),
            ("8", None),
            ("", None),
            ("99999999999.1", None),
        ] {
            assert_eq!(Version::parse(text), want.map(|(a, b, c)| Version::new(a, b, c)), "{text:?}");
        }
    }

    #[test]
    fn a_gate_names_what_it_wants() {
        let gate = Gate { what: "CANN", from: Version::new(8, 0, 0), below: Version::new(10, 0, 0) };
        assert!(gate.check_text("8.0.RC3").is_ok() && gate.check_text("9.9.9").is_ok());
        let says = |text| gate.check_text(text).unwrap_err().to_string();
        assert_eq!(says("7.3.0"), "CANN 7.3.0 is too old: 8.0.0 is the first that serves");
        assert!(says("10.0.0").contains("below 10.0.0") && says("next").contains("\"next\""));
    }
}
