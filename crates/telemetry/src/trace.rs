//! A Chrome trace (`--profile`): named scopes of a rank, to be opened in Perfetto or `chrome://tracing`.
//!
//! The file is a JSON array of complete events (`"ph": "X"`, microseconds), written as they end; the format allows the closing
//! bracket to be missing, so the trace of a killed run opens as well.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::MetricsFileError;
use crate::jsonl::push_json_string;
use crate::scopes::ScopeSink;

/// The trace of one rank.
#[derive(Debug)]
pub struct Trace {
    out: BufWriter<File>,
    path: PathBuf,
    rank: usize,
    zero: Instant,
    open: Vec<(Cow<'static, str>, Instant)>,
    first: bool,
}

impl Trace {
    /// Creates `path`, and its folder when missing. Times count from now.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn create(path: &Path, rank: usize) -> Result<Trace, MetricsFileError> {
        let fail = |action, source| MetricsFileError { action, path: path.to_path_buf(), source };
        if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| fail("create the folder of", e))?;
        }
        let out = BufWriter::new(File::create(path).map_err(|e| fail("create", e))?);
        let mut trace =
            Trace { out, path: path.to_path_buf(), rank, zero: Instant::now(), open: Vec::new(), first: true };
        trace.put(&format!(
            "{{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": {rank}, \"tid\": 0, \"args\": {{\"name\": \"rank {rank}\"}}}}"
        ))?;
        Ok(trace)
    }

    /// Opens a scope inside those that are open.
    pub fn begin(&mut self, name: impl Into<Cow<'static, str>>) {
        self.open.push((name.into(), Instant::now()));
    }

    /// Closes the innermost scope; nothing happens when none is open.
    pub fn end(&mut self) -> Result<(), MetricsFileError> {
        match self.open.pop() {
            Some((name, began)) => self.event(&name, 0, began, began.elapsed()),
            None => Ok(()),
        }
    }

    /// A span that was measured elsewhere, for instance on a stream. `track` is the row it stands in; 0 is the scopes'.
    pub fn event(
        &mut self,
        name: &str,
        track: usize,
        began: Instant,
        length: Duration,
    ) -> Result<(), MetricsFileError> {
        let mut text = String::from("{\"name\": ");
        push_json_string(name, &mut text);
        let start = began.saturating_duration_since(self.zero).as_secs_f64() * 1e6;
        text.push_str(&format!(
            ", \"ph\": \"X\", \"pid\": {}, \"tid\": {track}, \"ts\": {start:.3}, \"dur\": {:.3}}}",
            self.rank,
            length.as_secs_f64() * 1e6
        ));
        self.put(&text)
    }

    /// A value over time, drawn as an area.
    pub fn counter(&mut self, name: &str, value: f64) -> Result<(), MetricsFileError> {
        let now = self.zero.elapsed().as_secs_f64() * 1e6;
        let mut text = String::from("{\"name\": ");
        push_json_string(name, &mut text);
        let value = if value.is_finite() { value } else { 0.0 };
        text.push_str(&format!(
            ", \"ph\": \"C\", \"pid\": {}, \"tid\": 0, \"ts\": {now:.3}, \"args\": {{\"value\": {value}}}}}",
            self.rank
        ));
        self.put(&text)
    }

    /// Closes open scopes and the file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<(), MetricsFileError> {
        while !self.open.is_empty() {
            self.end()?;
        }
        self.write("\n]\n")?;
        self.out.flush().map_err(|source| MetricsFileError { action: "write", path: self.path.clone(), source })
    }

    fn put(&mut self, event: &str) -> Result<(), MetricsFileError> {
        let before = if std::mem::take(&mut self.first) { "[\n" } else { ",\n" };
        self.write(before)?;
        self.write(event)
    }

    fn write(&mut self, text: &str) -> Result<(), MetricsFileError> {
        let fail = |source| MetricsFileError { action: "write", path: self.path.clone(), source };
        self.out.write_all(text.as_bytes()).map_err(fail)
    }
}

impl ScopeSink for Trace {
    fn begin(&mut self, name: &'static str) {
        Trace::begin(self, name);
    }

    fn end(&mut self) -> Result<(), MetricsFileError> {
        Trace::end(self)
    }

    fn finish(self: Box<Self>) -> Result<(), MetricsFileError> {
        Trace::finish(*self)
    }
}
