//! Reader, workers and ordered writer.

use super::batch::{Done, Encoded, Work};
use super::encode::encode;
use super::gate::Gate;
use super::input::InputFile;
use super::output::Outputs;
use super::progress::{self, Progress};
use super::{Job, Summary, reader};
use crate::Error;
use std::collections::BTreeMap;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Input between reader and writer. Ids take at most four times as much again.
const IN_FLIGHT_BYTES: usize = 24 << 20;

/// Skipped lines that are described; the rest are only counted (all are in the file set aside).
const SKIPPED_SHOWN: u64 = 20;

/// Runs the job into `outputs`. The summary lacks only the files' names.
pub(super) fn run(job: &Job<'_>, outputs: &mut Outputs, out: &mut dyn Write) -> Result<Summary, Error> {
    let gate = Gate::new(IN_FLIGHT_BYTES);
    let (work_in, work_out) = channel();
    let (done_in, done_out) = channel();
    let queue = Mutex::new(work_out);
    thread::scope(|scope| {
        let started = (|| -> std::io::Result<()> {
            let gate = &gate;
            let queue = &queue;
            thread::Builder::new()
                .name("preprocess-reader".into())
                .spawn_scoped(scope, move || reader::read_all(&job.files, job.start(), &job.read, gate, &work_in))?;
            for i in 0..job.args.workers {
                let done = done_in.clone();
                thread::Builder::new()
                    .name(format!("preprocess-{i}"))
                    .spawn_scoped(scope, move || work(job, gate, queue, &done))?;
            }
            drop(done_in);
            Ok(())
        })();
        let result = match started {
            Ok(()) => write_in_order(job, &gate, &done_out, outputs, out),
            Err(e) => Err(Error::Argument {
                flag: "--workers",
                detail: format!("cannot start {} threads: {e}", job.args.workers),
            }),
        };
        // After an error, reader and workers stop at their next batch.
        gate.close();
        result
    })
}

/// A worker's life: batches until there are no more.
fn work(job: &Job<'_>, gate: &Gate, queue: &Mutex<Receiver<Work>>, done: &Sender<Done>) {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Work { index, batch }) = next else { return };
        if gate.is_closed() {
            return;
        }
        let (cost, encoded) = match batch {
            Err(e) => (0, Err(e)),
            Ok(batch) => {
                // A panic in a tokenizer must end the run with the lines that caused it: a writer that waits for a
                // dead worker's batch would wait for ever.
                let encoded = catch_unwind(AssertUnwindSafe(|| encode(job, &batch)));
                let crashed = |panic: Box<dyn std::any::Any + Send>| Error::WorkerCrashed {
                    file: job.files[batch.file].path.clone(),
                    first_line: batch.first_line,
                    last_line: batch.first_line + batch.ends.len() as u64 - 1,
                    detail: (panic.downcast_ref::<String>().map(String::as_str))
                        .or_else(|| panic.downcast_ref::<&str>().copied())
                        .unwrap_or("no message")
                        .into(),
                };
                (batch.bytes.len(), encoded.map_err(crashed).and_then(|encoded| encoded))
            }
        };
        if done.send(Done { index, cost, encoded }).is_err() {
            return;
        }
    }
}

fn write_in_order(
    job: &Job<'_>,
    gate: &Gate,
    done: &Receiver<Done>,
    outputs: &mut Outputs,
    out: &mut dyn Write,
) -> Result<Summary, Error> {
    let mut summary = job.from.as_ref().map(Summary::of).unwrap_or_default();
    summary.resumed_tokens = outputs.tokens();
    let disk = || job.read.load(Ordering::Relaxed);
    let before = progress::Done::new(&summary, disk(), outputs.tokens());
    let (interval, terminal) = (job.args.log_interval, job.options.terminal);
    let total = job.files.iter().map(InputFile::disk_bytes).sum();
    let mut progress = Progress::new(interval, terminal, total, before);
    let mut saved = Instant::now();
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    for one in done {
        waiting.insert(one.index, one);
        while let Some(Done { cost, encoded, .. }) = waiting.remove(&next) {
            let encoded = encoded.inspect_err(|_| drop(progress.clear(out)))?;
            outputs.write(&encoded).inspect_err(|_| drop(progress.clear(out)))?;
            if !encoded.bad.is_empty() {
                progress.clear(out)?;
                set_bad_lines_aside(job, &encoded, outputs, &mut summary, out)?;
            }
            summary.documents += encoded.documents as u64;
            summary.blank_lines += encoded.blank_lines;
            summary.bytes += encoded.bytes;
            progress.report(progress::Done::new(&summary, disk(), outputs.tokens()), out)?;
            if saved.elapsed() >= job.options.checkpoint_every {
                outputs.checkpoint(summary.state(encoded.next))?;
                saved = Instant::now();
            }
            gate.leave(cost);
            next += 1;
        }
    }
    assert!(waiting.is_empty(), "batch {next} was lost between reader and writer");
    progress.clear(out)?;
    Ok(summary)
}

fn set_bad_lines_aside(
    job: &Job<'_>,
    encoded: &Encoded,
    outputs: &mut Outputs,
    summary: &mut Summary,
    out: &mut dyn Write,
) -> Result<(), Error> {
    let allowed = job.args.skip_bad;
    for bad in &encoded.bad {
        summary.dropped += 1;
        if allowed == 0 {
            return Err(Error::Line(bad.error.clone()));
        }
        if summary.dropped > allowed {
            return Err(Error::TooManyBadLines { last: bad.error.clone(), count: summary.dropped, allowed });
        }
        outputs.set_aside(&bad.raw)?;
        if summary.dropped <= SKIPPED_SHOWN {
            writeln!(out, "warning: skipped {}", bad.error).map_err(Error::io("print to", "standard output"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preprocess::output::Names;
    use crate::preprocess::source::Packing;
    use crate::preprocess::{DocumentSink, Options, PreprocessArgs, SinkError};
    use crate::{TokenDType, Tokenizer};
    use serde_json::{Map, Value};
    use std::path::PathBuf;
    use std::sync::Arc;

    /// Panics at "panic", and gives an id beyond its vocabulary at "beyond".
    #[derive(Debug)]
    struct Faulty;

    impl Tokenizer for Faulty {
        fn name(&self) -> &str {
            "Faulty"
        }
        fn vocab_size(&self) -> usize {
            10
        }
        fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
            assert_ne!(text, "panic", "as asked");
            out.push(if text == "beyond" { 10 } else { 9 });
            Ok(())
        }
        fn decode(&self, _: &[u32]) -> Result<String, Error> {
            Ok(String::new())
        }
        fn eod(&self) -> Option<u32> {
            None
        }
        fn pad(&self) -> Option<u32> {
            None
        }
        fn bos(&self) -> Option<u32> {
            None
        }
        fn unique_identifiers(&self) -> Map<String, Value> {
            Map::new()
        }
    }

    struct Forgetful;

    impl DocumentSink for Forgetful {
        fn add_document(&mut self, _: &[u32], _: &[usize]) -> Result<(), SinkError> {
            Ok(())
        }
        fn finish(self: Box<Self>) -> Result<(), SinkError> {
            Ok(())
        }
    }

    fn run_faulty(name: &str, text: &str) -> Result<Summary, Error> {
        let path = std::env::temp_dir().join(format!("ferrotron-pipeline-{name}-{}.jsonl", std::process::id()));
        // Enough documents for several batches before and after the faulty one.
        let good = "{\"text\": \"fine\"}\n".repeat(20_000);
        std::fs::write(&path, format!("{good}{{\"text\": \"{text}\"}}\n{good}")).unwrap();
        let args = PreprocessArgs {
            input: vec![],
            json_keys: vec!["text".into()],
            tokenizer: Default::default(),
            output_prefix: PathBuf::new(),
            append_eod: false,
            prepend_bos: false,
            workers: 3,
            log_interval: 15_000,
            skip_bad: 0,
        };
        let files = vec![InputFile::new(path.clone(), 0, Packing::Plain)];
        let options = Options::default();
        let job = Job {
            args: &args,
            options: &options,
            files,
            tokenizer: Arc::new(Faulty),
            bos: None,
            eod: None,
            from: None,
            read: Arc::default(),
        };
        let names = Names { prefix: path.with_extension("out"), level: "document" };
        let mut sinks = |_: &_| Ok(Box::new(Forgetful) as Box<dyn DocumentSink>);
        let mut outputs = Outputs::create(&names, &args.json_keys, TokenDType::U16, &mut sinks, (None, None)).unwrap();
        let mut log = Vec::new();
        let result = run(&job, &mut outputs, &mut log);
        std::fs::remove_file(&path).unwrap();
        if result.is_ok() {
            let log = String::from_utf8(log).unwrap();
            assert_eq!(log.lines().count(), 2, "{log}");
            assert!(log.starts_with("Processed 15000 documents (") && log.contains("\nProcessed 30000 documents ("));
        }
        result
    }

    #[test]
    fn a_crash_names_the_lines_and_ends_the_run() {
        let e = run_faulty("panic", "panic").unwrap_err();
        let Error::WorkerCrashed { first_line, last_line, .. } = &e else { panic!("{e}") };
        assert!((first_line..=last_line).contains(&&20_001), "{e}");
        assert!(e.to_string().contains("as asked"), "{e}");
    }

    #[test]
    fn an_id_beyond_the_vocabulary_is_an_error() {
        let e = run_faulty("beyond", "beyond").unwrap_err().to_string();
        assert!(e.contains(":20001:2: key \"text\": token id 10 is not below the vocabulary size 10"), "{e}");
        assert_eq!(run_faulty("fine", "fine").unwrap().documents, 40_001);
    }
}
