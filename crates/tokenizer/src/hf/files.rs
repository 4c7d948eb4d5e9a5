//! Which files make a tokenizer, and reading them with a limit.

use crate::Error;
use crate::files::read_limited;
use serde_json::{Map, Value};
use std::fs;
use std::path::{Path, PathBuf};

/// Files of one tokenizer. Only the first must exist.
#[derive(Debug)]
pub(super) struct Files {
    /// `tokenizer.json`.
    pub tokenizer: PathBuf,
    /// The folder it lies in, searched for `tokenizer_config.json`, `special_tokens_map.json` and `config.json`.
    pub folder: PathBuf,
}

/// Largest side file that is read; chat templates make `tokenizer_config.json` a few hundred kilobytes at most.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// Finds the tokenizer at `path`, given by `flag`.
pub(super) fn locate(flag: &'static str, path: &str) -> Result<Files, Error> {
    let given = Path::new(path);
    let meta = match fs::metadata(given) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Error::NotLocal { flag, path: path.into() }),
        Err(e) => return Err(Error::io("open", given)(e)),
    };
    if meta.is_dir() {
        let tokenizer = given.join("tokenizer.json");
        if !tokenizer.is_file() {
            return Err(Error::Malformed { path: given.into(), detail: absent(given) });
        }
        return Ok(Files { tokenizer, folder: given.into() });
    }
    let folder = given.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(Files { tokenizer: given.into(), folder: folder.into() })
}

/// What a folder without `tokenizer.json` has instead, and what to do about it.
fn absent(folder: &Path) -> String {
    let has = |name: &str| folder.join(name).is_file();
    let instead = if has("vocab.json") && has("merges.txt") {
        "; it has vocab.json and merges.txt: for GPT-2 use --tokenizer-type GPT2BPETokenizer --vocab-file --merge-file, \
         else let transformers save the fast tokenizer"
    } else if has("tokenizer.model") {
        "; it has tokenizer.model: if that is SentencePiece use --tokenizer-type Llama2Tokenizer (TikTokenizer if it is \
         tiktoken), or let transformers save the fast tokenizer, which writes tokenizer.json"
    } else {
        "; copy it from the model's repository"
    };
    format!("the folder has no tokenizer.json{instead}")
}

impl Files {
    /// A JSON object beside `tokenizer.json`; empty when the file does not exist.
    pub(super) fn object(&self, name: &str) -> Result<Map<String, Value>, Error> {
        let path = self.folder.join(name);
        if !path.is_file() {
            return Ok(Map::new());
        }
        let bytes = read_limited(&path, MAX_CONFIG_BYTES)?;
        serde_json::from_slice(&bytes).map_err(|e| Error::Malformed { path, detail: format!("not a JSON object: {e}") })
    }
}
