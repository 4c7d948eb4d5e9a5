//! Recognises checkpoints of other programs by their files, to say so instead of "not found".

use std::fmt;
use std::path::Path;

/// A checkpoint format that is not ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Megatron-LM `--ckpt-format torch`: `mp_rank_XX/model_optim_rng.pt`.
    MegatronTorch,
    /// Megatron-LM `--ckpt-format torch_dist`: `metadata.json` naming that back end, `*.distcp`.
    MegatronTorchDist,
    /// Megatron-LM `--ckpt-format zarr`.
    MegatronZarr,
    /// `torch.distributed.checkpoint`: `.metadata` and `*.distcp` alone (`torch_dcp`, `fsdp_dtensor`).
    TorchDcp,
    /// DeepSpeed: `global_stepN`, `*_model_states.pt`.
    DeepSpeed,
    /// Hugging Face: `config.json` with `model*.safetensors` or `pytorch_model*.bin`.
    HuggingFace,
}

impl Foreign {
    /// The name that users type or read in the other program.
    pub const fn short(self) -> &'static str {
        match self {
            Foreign::MegatronTorch => "--ckpt-format torch",
            Foreign::MegatronTorchDist => "--ckpt-format torch_dist",
            Foreign::MegatronZarr => "--ckpt-format zarr",
            Foreign::TorchDcp => "torch.distributed.checkpoint",
            Foreign::DeepSpeed => "DeepSpeed",
            Foreign::HuggingFace => "Hugging Face",
        }
    }
}

impl Foreign {
    /// What to do with one.
    pub(crate) fn remedy(self) -> String {
        match self {
            Foreign::HuggingFace | Foreign::MegatronTorch | Foreign::MegatronTorchDist => {
                "Training starts from one by pretrain_gpt --load or --pretrained-checkpoint".into()
            }
            _ => format!(
                "Conversion from {} is planned; until then start from a checkpoint that Ferrotron or Megatron-LM (torch, \
                 torch_dist) saved, or from a Hugging Face folder",
                self.short()
            ),
        }
    }
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Foreign::MegatronTorch | Foreign::MegatronTorchDist | Foreign::MegatronZarr => {
                write!(f, "Megatron-LM checkpoint ({})", self.short())
            }
            Foreign::TorchDcp => f.write_str("torch.distributed.checkpoint folder (.metadata, *.distcp)"),
            Foreign::DeepSpeed => f.write_str("DeepSpeed checkpoint"),
            Foreign::HuggingFace => f.write_str("Hugging Face model folder"),
        }
    }
}

/// What the folder is, if it is a known format of another program. Looks at names and at a short `metadata.json` only.
pub fn detect(dir: &Path) -> Option<Foreign> {
    let names: Vec<String> =
        std::fs::read_dir(dir).ok()?.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    let any = |f: &dyn Fn(&str) -> bool| names.iter().any(|n| f(n));
    let has = |name: &str| names.iter().any(|n| n == name);

    if any(&|n| n.starts_with("mp_rank_") && dir.join(n).is_dir()) {
        return Some(Foreign::MegatronTorch);
    }
    if any(&|n| n.ends_with("_model_states.pt")) || any(&|n| numbered(n, "global_step")) {
        return Some(Foreign::DeepSpeed);
    }
    if has("metadata.json") {
        let backend = crate::layout::read_limited(&dir.join("metadata.json"), 1 << 16)
            .ok()
            .and_then(|b| serde_json::from_slice::<serde_json::Value>(&b).ok())
            .and_then(|v| v.get("sharded_backend").and_then(|b| b.as_str().map(str::to_owned)));
        match backend.as_deref() {
            Some("zarr") => return Some(Foreign::MegatronZarr),
            Some(_) => return Some(Foreign::MegatronTorchDist),
            None => {}
        }
    }
    if any(&|n| n.ends_with(".distcp")) {
        return Some(Foreign::TorchDcp);
    }
    let weights = |n: &str| {
        (n.starts_with("model") && (n.ends_with(".safetensors") || n.ends_with(".safetensors.index.json")))
            || (n.starts_with("pytorch_model") && (n.ends_with(".bin") || n.ends_with(".bin.index.json")))
    };
    any(&weights).then_some(Foreign::HuggingFace)
}

fn numbered(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}
