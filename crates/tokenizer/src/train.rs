//! Training of a byte-level BPE vocabulary on JSONL: `tokenizer.json` for this program and for Hugging Face's.

use crate::hf::patterns::{LLAMA3, QWEN};
use crate::preprocess::texts;
use crate::{Error, HuggingFaceTokenizer, TokenizerSpec};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, SplitDelimiterBehavior,
    TokenizerImpl,
};

/// How text is cut into words before pairs are counted; merges never reach over a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Words {
    /// GPT-2's pattern.
    #[default]
    Gpt2,
    /// Llama 3's (cl100k): digits by threes, contractions without regard to case.
    Llama3,
    /// Qwen's: as Llama 3's, with single digits.
    Qwen,
}

/// What to train.
#[derive(Debug, Clone)]
pub struct BpeTraining {
    /// JSONL files, folders and patterns, as for `preprocess_data`; packed ones too.
    pub input: Vec<String>,
    /// Keys whose texts are learned from.
    pub json_keys: Vec<String>,
    /// Entries of the vocabulary, special tokens and the 256 bytes included.
    pub vocab_size: usize,
    /// Pairs that occur less often than this are not joined.
    pub min_frequency: u64,
    /// Tokens with the lowest ids, in this order. The first ends documents.
    pub special_tokens: Vec<String>,
    /// How text is cut into words.
    pub words: Words,
    /// Folder for `tokenizer.json` and `tokenizer_config.json`; made if it does not exist.
    pub output: PathBuf,
}

/// What came out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trained {
    /// Entries of the vocabulary: fewer than asked for when the corpus has no more pairs.
    pub vocab_size: usize,
    /// Texts that were read.
    pub texts: u64,
    /// Bytes of those.
    pub bytes: u64,
}

/// Trains and writes a tokenizer. The result depends on the texts and the settings only, not on threads.
///
/// # Errors
/// A setting that cannot work, the first bad line of the input, or files that cannot be written; nothing is left then.
pub fn bpe_train(training: &BpeTraining) -> Result<Trained, Error> {
    let special = &training.special_tokens;
    let bad = |flag, detail: String| Err(Error::Argument { flag, detail });
    let least = 256 + special.len();
    if training.vocab_size < least {
        let detail =
            format!("{} is less than the 256 bytes and {} special tokens, {least}", training.vocab_size, special.len());
        return bad("--vocab-size", detail);
    }
    if let Some((i, token)) = special.iter().enumerate().find(|(i, t)| t.is_empty() || special[..*i].contains(t)) {
        return bad("--special-tokens", format!("token {} ({token:?}) is empty or given twice", i + 1));
    }
    let malformed = |e: tokenizers::Error| Error::Malformed { path: training.output.clone(), detail: e.to_string() };
    let mut trainer = BpeTrainer::builder()
        .show_progress(false)
        .vocab_size(training.vocab_size)
        .min_frequency(training.min_frequency)
        .special_tokens(special.iter().map(|t| AddedToken::from(t.as_str(), true)).collect())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    // Typed parts, not their wrappers: the trainer of BPE trains only a BPE.
    let mut tokenizer: TokenizerImpl<
        BPE,
        NormalizerWrapper,
        PreTokenizerWrapper,
        PostProcessorWrapper,
        DecoderWrapper,
    > = TokenizerImpl::new(BPE::default());
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer(training.words).map_err(malformed)?));
    tokenizer.with_decoder(Some(ByteLevel::default()));

    let (mut failed, mut count, mut bytes) = (None, 0, 0);
    let texts = texts::of(&training.input, &training.json_keys)?.map_while(|text| {
        let text = text.map_err(|e| failed = Some(e)).ok()?;
        count += 1;
        bytes += text.len() as u64;
        Some(text)
    });
    tokenizer.train(&mut trainer, texts).map_err(malformed)?;
    if let Some(e) = failed {
        return Err(e);
    }
    let vocab_size = tokenizer.get_vocab_size(true);
    let json = tokenizer.to_string(true).map_err(malformed)?;
    write(training, &json)?;
    Ok(Trained { vocab_size, texts: count, bytes })
}

fn pre_tokenizer(words: Words) -> tokenizers::Result<PreTokenizerWrapper> {
    let pattern = match words {
        Words::Gpt2 => return Ok(ByteLevel::new(false, true, true).into()),
        Words::Llama3 => LLAMA3,
        Words::Qwen => QWEN,
    };
    let split = Split::new(SplitPattern::Regex(pattern.into()), SplitDelimiterBehavior::Isolated, false)?;
    Ok(Sequence::new(vec![split.into(), ByteLevel::new(false, true, false).into()]).into())
}

/// Writes both files under temporary names, reads the tokenizer back, and gives them their names.
fn write(training: &BpeTraining, json: &str) -> Result<(), Error> {
    let folder = &training.output;
    fs::create_dir_all(folder).map_err(Error::io("make the folder", folder))?;
    let first: Value = training.special_tokens.first().map_or(Value::Null, |t| t.as_str().into());
    let config = json!({
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": first,
        "eos_token": first,
        "clean_up_tokenization_spaces": false,
        "model_max_length": 1_000_000,
    });
    let trial = folder.join(".partial");
    let result = fs::create_dir_all(&trial).map_err(Error::io("make the folder", &trial)).and_then(|()| {
        let files = [("tokenizer.json", json.to_string()), ("tokenizer_config.json", format!("{config:#}\n"))];
        for (name, text) in &files {
            write_durably(&trial.join(name), text)?;
        }
        HuggingFaceTokenizer::from_spec(&TokenizerSpec {
            tokenizer_type: "HuggingFaceTokenizer".into(),
            tokenizer_model: Some(trial.display().to_string()),
            ..TokenizerSpec::default()
        })?;
        for (name, _) in &files {
            let to = folder.join(name);
            fs::rename(trial.join(name), &to).map_err(Error::io("rename a finished file to", &to))?;
        }
        Ok(())
    });
    // Empty after success; nothing more can be done about it otherwise.
    let _ = fs::remove_dir_all(&trial);
    result
}

fn write_durably(path: &Path, text: &str) -> Result<(), Error> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(Error::io("write", path))
}
