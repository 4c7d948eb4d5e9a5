//! The texts of a corpus one after the other, for those who need nothing else of it.

use super::input::{self, InputFile};
use super::reader::MAX_LINE_BYTES;
use super::record::{self, Text};
use super::source;
use crate::{Error, LineError, Problem};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{BufRead, Read};
use std::sync::Arc;

/// Every text of the keys of every line, in order, or the first error, after which nothing follows.
pub(crate) fn of(
    input: &[String],
    keys: &[String],
) -> Result<impl Iterator<Item = Result<String, Error>> + Send, Error> {
    if keys.is_empty() {
        return Err(Error::Argument { flag: "--json-keys", detail: "no key given; the usual one is text".into() });
    }
    let files = input::expand(input)?.into_iter();
    let mut texts = Texts { files, keys: keys.to_vec(), open: None, ready: VecDeque::new(), line: Vec::new() };
    let mut failed = false;
    Ok(std::iter::from_fn(move || {
        if failed {
            return None;
        }
        let next = texts.next_text().transpose();
        failed = matches!(next, Some(Err(_)));
        next
    }))
}

struct Texts {
    files: std::vec::IntoIter<InputFile>,
    keys: Vec<String>,
    /// The file being read, and lines of it that were.
    open: Option<(InputFile, Box<dyn BufRead + Send>, u64)>,
    ready: VecDeque<String>,
    line: Vec<u8>,
}

impl Texts {
    fn next_text(&mut self) -> Result<Option<String>, Error> {
        loop {
            if let Some(text) = self.ready.pop_front() {
                return Ok(Some(text));
            }
            let Some((file, reader, number)) = &mut self.open else {
                let Some(file) = self.files.next() else { return Ok(None) };
                let reader = source::open(&file.path, file.packing, 0, &Arc::default());
                let reader = reader.map_err(Error::io("read", &file.path))?;
                self.open = Some((file, reader, 0));
                continue;
            };
            self.line.clear();
            *number += 1;
            let read = reader.take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut self.line);
            let read = read.map_err(Error::io("read", &file.path))? as u64;
            if read == 0 {
                self.open = None;
                continue;
            }
            let error = |(column, problem)| LineError { file: file.path.clone(), line: *number, column, problem };
            if read > MAX_LINE_BYTES {
                return Err(error((1, Problem::TooLong { limit: MAX_LINE_BYTES })).into());
            }
            let line = self.line.strip_prefix(b"\xef\xbb\xbf").filter(|_| *number == 1).unwrap_or(&self.line);
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let mut texts = Vec::new();
            record::parse(line, &self.keys, &mut texts).map_err(error)?;
            for text in texts.into_iter().flatten() {
                match text {
                    Text::One(text) => self.ready.push_back(text.into_owned()),
                    Text::Many(texts) => self.ready.extend(texts.into_iter().map(Cow::into_owned)),
                    // `record::parse` refuses these.
                    Text::Other(_) => {}
                }
            }
        }
    }
}
