//! What several test files share: golden files and scratch folders.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use ferrotron_data::{Cache, DataConfig, DataSource, GptConfig, TokenRules};
use serde_json::{Value, json};

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub fn read_json(name: &str) -> Value {
    serde_json::from_slice(&fs::read(golden(name)).unwrap()).unwrap()
}

/// A new, empty folder below the build's scratch folder, removed when dropped.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("data-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Sorted names in the folder.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn i64s(v: &Value) -> Vec<i64> {
    v.as_array().unwrap().iter().map(|x| x.as_i64().unwrap()).collect()
}

/// The configuration most tests start from: the rules of the golden runs, no cache.
pub fn config(paths: &[&str], split: &str, sequence_length: usize, seed: u32) -> DataConfig {
    DataConfig {
        source: DataSource::Shared { paths: paths.iter().map(|p| p.to_string()).collect(), split: split.to_owned() },
        requested: [None; 3],
        gpt: GptConfig {
            sequence_length,
            seed,
            add_extra_token: true,
            drop_last_partial_validation_sequence: true,
            rules: TokenRules {
                padded_vocab_size: 100_001,
                eod: Some(0),
                pad: None,
                reset_position_ids: false,
                reset_attention_mask: false,
                eod_mask_loss: false,
            },
        },
        mid_level_dataset_surplus: 0.005,
        tokenizer: json!({"class": "golden.Tok", "vocab_size": 100_001, "eod": 0}),
        cache: Cache::Off,
    }
}
