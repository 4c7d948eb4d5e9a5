//! Where to look for a library, in order, and what was found there.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use crate::Library;

/// A folder to look in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Why there: the variable that names it, or "usual place".
    pub why: String,
    /// The folder; `None` is the system's own search.
    pub folder: Option<PathBuf>,
}

impl Place {
    /// A folder.
    pub fn folder(why: impl Into<String>, folder: impl Into<PathBuf>) -> Place {
        Place { why: why.into(), folder: Some(folder.into()) }
    }

    /// The system's own search: LD_LIBRARY_PATH as it was at start, then the loader's cache.
    pub fn system() -> Place {
        Place { why: "the system's loader (LD_LIBRARY_PATH, ld.so.cache)".into(), folder: None }
    }

    fn candidate(&self, name: &str) -> OsString {
        self.folder.as_ref().map_or_else(|| name.into(), |f| f.join(name).into_os_string())
    }
}

/// One candidate that did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// Path or bare name.
    pub candidate: String,
    /// Why there.
    pub why: String,
    /// The loader's words, or "no such file".
    pub outcome: String,
}

impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.candidate, self.why, self.outcome)
    }
}

/// No candidate could be loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot load {}{}", .names.join(" or "), lines(.tried))]
pub struct NotFound {
    /// Names looked for, in order.
    pub names: Vec<String>,
    /// Everything that was tried, in order.
    pub tried: Vec<Tried>,
}

fn lines(tried: &[Tried]) -> String {
    tried.iter().map(|t| format!("\n  searched {t}")).collect()
}

/// An ordered search: every place for the first name, then every place for the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Search {
    names: Vec<String>,
    places: Vec<Place>,
}

impl Search {
    /// A search for the first of these names.
    pub fn new<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Search {
        Search { names: names.into_iter().map(Into::into).collect(), places: Vec::new() }
    }

    /// Adds places, in order.
    pub fn places(mut self, places: impl IntoIterator<Item = Place>) -> Search {
        self.places.extend(places);
        self
    }

    /// Loads the first candidate that can be loaded. A file that is there but does not load (another machine's, or one
    /// that needs a library which is missing) does not end the search; its error is in the list.
    pub fn open(&self) -> Result<Library, NotFound> {
        let mut tried = Vec::new();
        for name in &self.names {
            for place in &self.places {
                let candidate = place.candidate(name);
                let outcome = match &place.folder {
                    Some(folder) if !folder.join(name).exists() => "no such file".to_string(),
                    _ => match Library::open(&candidate) {
                        Ok(library) => return Ok(library),
                        Err(words) => words,
                    },
                };
                tried.push(Tried { candidate: candidate.display().to_string(), why: place.why.clone(), outcome });
            }
        }
        Err(NotFound { names: self.names.clone(), tried })
    }

    /// Every file that [`Search::open`] would try, in order: for reports, without loading anything.
    pub fn candidates(&self) -> Vec<String> {
        let each = self.names.iter().flat_map(|n| self.places.iter().map(move |p| (p, n)));
        each.map(|(p, n)| format!("{} ({})", p.candidate(n).display(), p.why)).collect()
    }
}
