//! `ferrotron inspect`: what is in a checkpoint, a token file or a safetensors file.

use std::path::Path;

use ferrotron_checkpoint::{Checkpoint, SafetensorsFile};
use ferrotron_data::indexed::Multimodal;
use ferrotron_data::{IndexedDataset, Tokens};

const PROGRAM: &str = "ferrotron inspect";

/// Prints what `argv[0]` is; gives the exit code.
pub fn run(argv: &[String]) -> u8 {
    let [path] = argv else {
        eprintln!("usage: {PROGRAM} PATH   (a --save folder, a .idx or .bin file or prefix, a .safetensors file)");
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
        let file = SafetensorsFile::open(path).map_err(|e| e.to_string())?;
        let rows = file.tensors().iter().map(|t| format!("{:<8} {:?} {}", t.dtype_name, t.shape, t.name));
        return Ok(rows.collect::<Vec<_>>().join("\n"));
    }
    if Path::new(path).is_dir() {
        return checkpoint(path);
    }
    let prefix = path.strip_suffix(".idx").or_else(|| path.strip_suffix(".bin")).unwrap_or(path);
    let data = IndexedDataset::open(prefix, Multimodal::No).map_err(|e| e.to_string())?;
    let n = data.sequences();
    let tokens: usize = (0..n).map(|i| data.length(i)).sum();
    Ok(format!("{prefix}: {n} sequences, {tokens} tokens of {:?}", data.token_type()))
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
