//! Numbers from flags and variables, with a mistake noted for each that is none.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use ferrotron_config::{Severity, Violation};

use super::Reader;

impl Reader<'_> {
    /// Notes a mistake.
    pub(super) fn fault(&mut self, flags: &[&str], what: String, legal: &str) {
        let violation = Violation::new(Severity::Invalid, flags, what);
        self.faults.push(if legal.is_empty() { violation } else { violation.legal(legal) });
    }

    /// A text that must be a number in range; `label` is what the user wrote it for.
    pub(super) fn check<T: FromStr + PartialOrd + Display>(
        &mut self,
        label: &str,
        text: &str,
        legal: RangeInclusive<T>,
    ) -> Option<T> {
        match text.trim().parse::<T>() {
            Ok(n) if legal.contains(&n) => Some(n),
            _ => {
                let range = format!("{} to {}", legal.start(), legal.end());
                self.fault(&[label], format!("{label} '{text}' is not a whole number in range"), &range);
                None
            }
        }
    }

    /// A flag that is a number; `Err(())` when it is given and wrong.
    pub(super) fn number<T: FromStr + PartialOrd + Display>(
        &mut self,
        name: &str,
        legal: RangeInclusive<T>,
    ) -> Result<Option<T>, ()> {
        let label = format!("--{name}");
        match self.typed.get(name) {
            Some(text) => self.check(&label, text, legal).map(Some).ok_or(()),
            None if self.typed.has(name) => {
                let why = "an unset shell variable often leaves such a gap";
                let violation = Violation::new(Severity::Syntax, &[&label], format!("{label} has an empty value"));
                self.faults.push(violation.why(why));
                Err(())
            }
            None if self.typed.is_broken(name) => Err(()),
            None => Ok(None),
        }
    }
}
