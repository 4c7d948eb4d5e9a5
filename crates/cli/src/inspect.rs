//! `ferrotron inspect`: what is in a checkpoint (ours or Megatron-LM's), a published model, a token file or a safetensors file.

use std::path::Path;

use ferrotron_checkpoint::{Checkpoint, SafetensorsFile};
use ferrotron_data::indexed::Multimodal;
use ferrotron_data::{IndexedDataset, Tokens};
use ferrotron_foreign::Megatron;
use ferrotron_published::Folder;

const PROGRAM: &str = "ferrotron inspect";

/// Prints what `argv[0]` is; gives the exit code.
pub fn run(argv: &[String]) -> u8 {
    let [path] = argv else {
        eprintln!(
            "usage: {PROGRAM} PATH   (a --save folder, Megatron-LM's or Hugging Face's too, a .idx or .bin file or prefix, \
             a .safetensors file)"
        );
        return 2;
    };
    match describe(path) {
        Ok(text) => {
            println!("{text}");
            0
        }
        Err(e) => crate::fail(PROGRAM, e),
    }
}

fn describe(path: &str) -> Result<String, String> {
    if path.ends_with(".safetensors") {
        return SafetensorsFile::open(path).map(|file| tensors(&file)).map_err(|e| e.to_string());
    }
    let dir = Path::new(path);
    if dir.is_dir() {
        return if Folder::is_one(dir) {
            published(dir)
        } else if Megatron::is_one(dir, None) {
            megatron(dir)
        } else {
            checkpoint(path)
        };
    }
    if !dir.exists() && !Path::new(&format!("{path}.idx")).exists() {
        return Err(format!("{path} is not there, nor {path}.idx"));
    }
    let prefix = path.strip_suffix(".idx").or_else(|| path.strip_suffix(".bin")).unwrap_or(path);
    let data = IndexedDataset::open(prefix, Multimodal::No).map_err(|e| e.to_string())?;
    let n = data.sequences();
    let tokens: usize = (0..n).map(|i| data.length(i)).sum();
    Ok(format!("{prefix}: {n} sequences, {tokens} tokens of {:?}", data.token_type()))
}

fn tensors(file: &SafetensorsFile) -> String {
    let rows = file.tensors().iter().map(|t| format!("{:<8} {:?} {}", t.dtype_name, t.shape, t.name));
    rows.collect::<Vec<_>>().join("\n")
}

fn published(dir: &Path) -> Result<String, String> {
    let folder = Folder::open(dir).map_err(|e| e.to_string())?;
    let m = folder.model();
    let mut out = format!(
        "{}: a {} of {} layers, hidden size {}, {} rows of vocabulary\n",
        dir.display(),
        folder.family().name(),
        m.num_layers,
        m.hidden,
        m.vocab
    );
    out.push_str(&folder.files().iter().map(tensors).collect::<Vec<_>>().join("\n"));
    Ok(out)
}

fn megatron(dir: &Path) -> Result<String, String> {
    let c = Megatron::open(dir, None).map_err(|e| e.to_string())?;
    let mut out = format!(
        "{}: Megatron-LM's, {}; parameters over all its ranks, by our names\n",
        c.dir().display(),
        c.describe()
    );
    for (name, shape) in c.parameters() {
        out.push_str(&format!("{shape:?} {name}\n"));
    }
    Ok(out.trim_end().to_string())
}

fn checkpoint(path: &str) -> Result<String, String> {
    let c = Checkpoint::open(path, None).map_err(|e| e.to_string())?;
    let common = c.common();
    let mut out = format!(
        "{}: iteration {}, {} samples consumed, {} shards\n",
        c.dir().display(),
        common.iteration,
        common.consumed_samples,
        c.shards()
    );
    for t in c.stored() {
        out.push_str(&format!("{:<12} {:<5} {:?} {}\n", t.kind.to_string(), t.dtype.to_string(), t.global, t.name));
    }
    Ok(out.trim_end().to_string())
}
