//! Faults to make on purpose.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// What went wrong: a vendor's code, and words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Code of the vendor.
    pub code: i32,
    /// What happened.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text, self.code)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    site: String,
    left: u64,
    code: i32,
}

/// Rules that turn the n-th visit of a site into an error.
#[derive(Debug, Default)]
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
}

impl Faults {
    /// Adds rules, `site#n=code` joined by `;`: the n-th visit from now on fails, once. `site` is the name of a
    /// function; work of a stream is `task:name`. A final `*` stands for any rest.
    pub fn add(&self, text: &str) -> Result<(), String> {
        let rules: Result<Vec<Rule>, String> =
            text.split(';').map(str::trim).filter(|r| !r.is_empty()).map(parse).collect();
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).extend(rules?);
        Ok(())
    }

    /// Takes all rules away.
    pub fn clear(&self) {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Notes a visit; the code when it shall fail.
    pub fn visit(&self, site: &str) -> Option<i32> {
        let mut rules = self.rules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut hit = None;
        for rule in rules.iter_mut().filter(|r| r.left > 0) {
            let matches = match rule.site.strip_suffix('*') {
                Some(start) => site.starts_with(start),
                None => rule.site == site,
            };
            if matches {
                rule.left -= 1;
                if rule.left == 0 {
                    hit = hit.or(Some(rule.code));
                }
            }
        }
        hit
    }
}

fn parse(text: &str) -> Result<Rule, String> {
    let wrong = || format!("{text:?} is not site#n=code, such as aclrtMalloc#3=207001");
    let (site, rest) = text.split_once('#').ok_or_else(wrong)?;
    let (left, code) = rest.split_once('=').ok_or_else(wrong)?;
    let left: u64 = left.parse().map_err(|_| wrong())?;
    if site.is_empty() || left == 0 {
        return Err(wrong());
    }
    Ok(Rule { site: site.into(), left, code: code.parse().map_err(|_| wrong())? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_visit_fails_once() {
        let f = Faults::default();
        f.add("aclrtMalloc#2=207001; task:aclnn*#1=507015").unwrap();
        let visits: Vec<_> = (0..3).map(|_| f.visit("aclrtMalloc")).collect();
        assert_eq!(visits, [None, Some(207001), None]);
        assert_eq!(
            (f.visit("aclnnAdd"), f.visit("task:aclnnAdd"), f.visit("task:aclnnAdd")),
            (None, Some(507015), None)
        );
        f.add("x#1=1").unwrap();
        f.clear();
        assert_eq!(f.visit("x"), None);
    }

    #[test]
    fn rules_that_are_none_are_refused() {
        for text in ["malloc", "malloc#0=1", "#1=2", "malloc#x=1", "malloc#1=", "a#1=2;b"] {
            assert!(Faults::default().add(text).unwrap_err().contains("is not site#n=code"), "{text}");
        }
    }
}
