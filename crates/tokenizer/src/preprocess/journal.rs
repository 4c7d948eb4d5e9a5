//! What lets an interrupted run go on: lines of JSON beside the output, the last complete one counts.
//!
//! The first line says what the run is about; a journal of another run is not gone on with. Every following line says
//! how far the input was read and how far each file was written, and is on disk only after those files are.

use crate::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A place in the input: the next line to read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Place in the list of inputs.
    pub file: usize,
    /// Byte of the unpacked file at which the line begins.
    pub offset: u64,
    /// Its number, from 1 where this run's share of the file begins.
    pub line: u64,
}

/// Counters of one dataset and the size of its files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyState {
    pub bytes: u64,
    pub sequences: u64,
    pub documents: u64,
    pub tokens: u64,
    pub longest: u64,
    pub empty: u64,
}

/// How far a run is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    pub next: Place,
    pub documents: u64,
    pub blank_lines: u64,
    pub dropped: u64,
    /// Input bytes read.
    pub bytes: u64,
    /// Size of the file of bad lines.
    pub bad_bytes: u64,
    pub keys: Vec<KeyState>,
}

/// The journal of a run, locked against a second one.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or begins the journal of the run that `about` describes, and gives the state to go on from, if any, and
    /// whether a journal of another run was found and thrown away.
    pub fn open(path: &Path, about: &Value) -> Result<(Journal, Option<State>, bool), Error> {
        let io = |action| Error::io(action, path);
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(path).map_err(io("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Argument {
                    flag: "--output-prefix",
                    detail: format!("another run is writing there: it holds {}", path.display()),
                });
            }
            // File systems of clusters may not know locks: a run must not fail for want of a guard against a second.
            Err(TryLockError::Error(e)) if e.kind() == std::io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(e)) => return Err(io("lock")(e)),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io("read"))?;
        // A line that a kill cut off has no end, and nothing follows it.
        let mut lines = bytes.split_inclusive(|&b| b == b'\n').filter(|line| line.ends_with(b"\n"));
        let first = lines.next();
        let first_value: Option<Value> = first.and_then(|line| serde_json::from_slice(line).ok());
        if let (Some(first), true) = (first, first_value.as_ref() == Some(about)) {
            let mut valid = first.len();
            let mut last = None;
            for line in lines {
                let Ok(state) = serde_json::from_slice::<State>(line) else { break };
                last = Some(state);
                valid += line.len();
            }
            if last.is_some() {
                file.set_len(valid as u64).and_then(|()| file.seek(SeekFrom::End(0))).map_err(io("write"))?;
                return Ok((Journal { path: path.into(), file }, last, false));
            }
        }
        let other = first_value.is_some_and(|first| first != *about);
        file.set_len(0).and_then(|()| file.rewind()).map_err(io("write"))?;
        let mut journal = Journal { path: path.into(), file };
        journal.write(about)?;
        Ok((journal, None, other))
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), Error> {
        let mut write = || -> std::io::Result<()> {
            let mut bytes = serde_json::to_vec(line)?;
            bytes.push(b'\n');
            self.file.write_all(&bytes)?;
            self.file.sync_data()
        };
        write().map_err(Error::io("write", &self.path))
    }

    /// Adds a state. What it speaks of must be on disk.
    pub fn add(&mut self, state: &State) -> Result<(), Error> {
        self.write(state)
    }

    /// Ends the journal: the run is over.
    pub fn remove(self) {
        // A journal that cannot be removed describes files that are gone, so the next run begins anew.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_last_complete_state_of_the_same_run_counts() {
        let path = std::env::temp_dir().join(format!("ferrotron-journal-{}", std::process::id()));
        let open = |about: &Value| Journal::open(&path, about).unwrap();
        let about = json!({"input": ["a"]});
        let (mut journal, state, other) = open(&about);
        assert_eq!((state, other), (None, false));
        let e = Journal::open(&path, &about).unwrap_err().to_string();
        assert!(e.contains("another run is writing there"), "{e}");
        let states: Vec<State> =
            (0..3).map(|i| State { documents: i, keys: vec![KeyState::default()], ..Default::default() }).collect();
        states.iter().for_each(|s| journal.add(s).unwrap());
        drop(journal);
        let text = std::fs::read_to_string(&path).unwrap();
        // Cut anywhere: the states that are whole before the cut.
        for cut in 0..=text.len() {
            std::fs::write(&path, &text[..cut]).unwrap();
            let whole = text[..cut].matches('\n').count();
            let want = whole.checked_sub(2).map(|i| states[i].clone());
            let (mut journal, state, other) = open(&about);
            assert_eq!((state, other), (want, false), "{cut}");
            // Going on after the cut leaves a journal that is whole again.
            journal.add(&states[2]).unwrap();
            drop(journal);
            assert_eq!(open(&about).1.as_ref(), Some(&states[2]), "{cut}");
        }
        std::fs::write(&path, &text).unwrap();
        let (journal, state, other) = open(&json!({"input": ["b"]}));
        assert_eq!((state, other), (None, true));
        journal.remove();
        assert!(!path.exists());
    }
}
