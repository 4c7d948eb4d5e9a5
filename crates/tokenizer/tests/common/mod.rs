//! What the tests of preprocessing share: a folder of its own for each, and a reader of Megatron's format that is not
//! the program's own.

#![allow(dead_code)] // each test file uses its part

use ferrotron_tokenizer::TokenizerSpec;
use ferrotron_tokenizer::preprocess::{Options, PreprocessArgs, Summary, run_to_files};
use std::fs;
use std::path::{Path, PathBuf};

/// A new folder, removed at the end.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("ferrotron-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn dataset(&self, name: &str) -> Dataset {
        Dataset::read(&self.0.join(name))
    }

    /// NullTokenizer with ids 0..=100 on one input.
    pub fn args(&self, input: &str) -> PreprocessArgs {
        let tokenizer =
            TokenizerSpec { tokenizer_type: "NullTokenizer".into(), vocab_size: Some(100), ..Default::default() };
        PreprocessArgs {
            input: vec![input.into()],
            json_keys: vec!["text".into()],
            tokenizer,
            output_prefix: self.0.join("out"),
            append_eod: false,
            prepend_bos: false,
            workers: 2,
            log_interval: 1000,
            skip_bad: 0,
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

/// Files of one dataset, and what they hold.
#[derive(Debug, PartialEq)]
pub struct Dataset {
    pub bin: Vec<u8>,
    pub idx: Vec<u8>,
}

impl Dataset {
    pub fn read(prefix: &Path) -> Dataset {
        let read = |suffix: &str| fs::read(format!("{}.{suffix}", prefix.display())).unwrap();
        Dataset { bin: read("bin"), idx: read("idx") }
    }

    fn u64(&self, at: usize) -> usize {
        u64::from_le_bytes(self.idx[at..at + 8].try_into().unwrap()) as usize
    }

    fn width(&self) -> usize {
        if self.idx[17] == 8 { 2 } else { 4 }
    }

    /// Ids of each sequence.
    pub fn sequences(&self) -> Vec<Vec<u32>> {
        let mut bytes = self.bin.chunks_exact(self.width());
        (0..self.u64(18))
            .map(|i| {
                let length = u32::from_le_bytes(self.idx[34 + 4 * i..38 + 4 * i].try_into().unwrap());
                let id = |b: &[u8]| b.iter().rev().fold(0u32, |id, &b| id << 8 | u32::from(b));
                (0..length).map(|_| id(bytes.next().unwrap())).collect()
            })
            .collect()
    }

    /// Sequences up to the end of each document.
    pub fn documents(&self) -> Vec<usize> {
        let start = 34 + 12 * self.u64(18);
        (0..self.u64(26)).map(|d| self.u64(start + 8 * d)).collect()
    }
}

/// Runs to files; gives the summary and what was printed.
pub fn preprocess(args: &PreprocessArgs, options: &Options) -> Result<(Summary, String), String> {
    let mut out = Vec::new();
    let summary = run_to_files(args, options, &mut out);
    summary.map(|s| (s, String::from_utf8(out).unwrap())).map_err(|e| e.to_string())
}

pub fn golden(name: &str) -> String {
    format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}
