//! Named scopes of a rank, told to whoever records them: the Chrome trace of `--profile`, a profiler's ranges.

use std::fmt;

use crate::MetricsFileError;

/// Records scopes of one thread. They are well nested, so that an end needs no name.
pub trait ScopeSink: fmt::Debug + Send {
    /// A scope opens inside those that are open.
    fn begin(&mut self, name: &'static str);
    /// The innermost open scope ends.
    ///
    /// # Errors
    /// It could not be recorded.
    fn end(&mut self) -> Result<(), MetricsFileError>;
    /// Nothing more comes, and nothing is open.
    ///
    /// # Errors
    /// The record could not be completed.
    fn finish(self: Box<Self>) -> Result<(), MetricsFileError>;
}

/// One of the sinks of [`crate::Timers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinkId(u64);

/// The scopes of a rank and its sinks. Without a sink a scope costs a branch.
#[derive(Debug, Default)]
pub(crate) struct Scopes {
    open: Vec<&'static str>,
    sinks: Vec<Attached>,
    /// Sinks so far.
    count: u64,
    /// The first scope that could not be recorded: told when its sink goes, so that scopes need no error.
    failed: Option<MetricsFileError>,
}

#[derive(Debug)]
struct Attached {
    id: SinkId,
    sink: Box<dyn ScopeSink>,
    /// Scopes that were open before, of which it knows nothing.
    before: usize,
}

impl Scopes {
    /// From now on `sink` hears of scopes that open.
    pub(crate) fn attach(&mut self, sink: Box<dyn ScopeSink>) -> SinkId {
        self.count += 1;
        let id = SinkId(self.count);
        self.sinks.push(Attached { id, sink, before: self.open.len() });
        id
    }

    /// Ends what a sink still holds open, and the sink.
    pub(crate) fn detach(&mut self, id: SinkId) -> Result<(), MetricsFileError> {
        let Some(at) = self.sinks.iter().position(|s| s.id == id) else { return Ok(()) };
        let mut gone = self.sinks.remove(at);
        for _ in gone.before..self.open.len() {
            self.failed = self.failed.take().or(gone.sink.end().err());
        }
        if self.sinks.is_empty() {
            self.open.clear();
        }
        let finished = gone.sink.finish();
        self.failed.take().map_or(finished, Err)
    }

    /// All sinks; gives the first error.
    pub(crate) fn detach_all(&mut self) -> Result<(), MetricsFileError> {
        let all: Vec<SinkId> = self.sinks.iter().map(|s| s.id).collect();
        let ends: Vec<_> = all.into_iter().map(|id| self.detach(id)).collect();
        ends.into_iter().collect()
    }

    pub(crate) fn begin(&mut self, name: &'static str) {
        if self.sinks.is_empty() {
            return;
        }
        self.open.push(name);
        self.sinks.iter_mut().for_each(|s| s.sink.begin(name));
    }

    /// Ends the innermost scope of that name, and what is still open inside it; nothing when there is none.
    pub(crate) fn end(&mut self, name: &str) {
        let Some(at) = self.open.iter().rposition(|open| *open == name) else { return };
        while self.open.len() > at {
            self.open.pop();
            let depth = self.open.len();
            for s in &mut self.sinks {
                // a sink may have come while this scope was open
                if s.before <= depth {
                    self.failed = self.failed.take().or(s.sink.end().err());
                }
                s.before = s.before.min(depth);
            }
        }
    }
}
