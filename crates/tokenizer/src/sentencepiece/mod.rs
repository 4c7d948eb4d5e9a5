//! SentencePiece `.model` files: Unigram, BPE, word and character models, with ids equal to those of the library.

mod bpe;
mod charsmap;
mod decode;
mod normalizer;
mod proto;

mod unigram;
mod vocab;

use crate::hf::python_bool;
use crate::tokenizer::{MEGATRON_CLASS, Tokenizer};
use crate::{Error, TokenizerSpec, files};
use bpe::Bpe;
use decode::Decoder;
use normalizer::{Normalizer, SPACE};
use proto::{Algorithm, ModelFile};
use serde_json::{Map, Value, json};
use std::path::Path;
use unigram::Unigram;
use vocab::{Ids, Vocab};

/// Largest `.model` that is read. The largest public ones have about 5 MB.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// A tokenizer of Google's SentencePiece: `SentencePieceTokenizer`, `GPTSentencePieceTokenizer`, `Llama2Tokenizer`.
///
/// As in Megatron (`megatron/core/tokenizers/text/libraries/sentencepiece_tokenizer.py`) nothing is put around a text,
/// the text of a control symbol in a document is ordinary text, documents end with `</s>`, and the vocabulary is what
/// the file has.
#[derive(Debug)]
pub struct SentencePieceTokenizer {
    name: String,
    vocab: Vocab,
    normalizer: Normalizer,
    model: Model,
    decoder: Decoder,
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    identifiers: Map<String, Value>,
}

#[derive(Debug)]
enum Model {
    Unigram(Unigram),
    Bpe(Bpe),
    /// Everything between spaces is one piece.
    Word {
        whitespace_as_suffix: bool,
    },
    /// Every character is one piece.
    Char,
}

impl SentencePieceTokenizer {
    /// From `--tokenizer-model`: a `.model` file, or a folder with `tokenizer.model`.
    ///
    /// # Errors
    /// The file is not here or not a SentencePiece model, or tokens are to be added to it.
    pub fn from_spec(spec: &TokenizerSpec) -> Result<SentencePieceTokenizer, Error> {
        const FLAG: &str = "--tokenizer-model";
        let need =
            || Error::MissingFlag { tokenizer: "SentencePieceTokenizer", flag: "--tokenizer-model: a .model file" };
        let given = spec.tokenizer_model.as_ref().or(spec.tokenizer_name_or_path.as_ref()).ok_or_else(need)?;
        if !spec.special_tokens.is_empty() {
            return Err(Error::Argument {
                flag: "--tokenizer-special-tokens",
                detail: format!(
                    "a SentencePiece model gets its special tokens when it is trained; {:?} cannot be added to {given}",
                    spec.special_tokens
                ),
            });
        }
        let mut path = Path::new(given).to_path_buf();
        if path.is_dir() {
            path.push("tokenizer.model");
        }
        if !path.is_file() {
            return Err(Error::NotLocal { flag: FLAG, path: path.display().to_string() });
        }
        let bytes = files::read_limited(&path, MAX_FILE_BYTES)?;
        let mut ids = Map::new();
        ids.insert("class".into(), json!(MEGATRON_CLASS));
        ids.insert("tokenizer_path".into(), json!(given));
        ids.insert("legacy".into(), json!(python_bool(false)));
        ids.insert("special_tokens".into(), json!("None"));
        let malformed = |detail: String| Error::Malformed { path: path.clone(), detail };
        let mut tokenizer = SentencePieceTokenizer::from_bytes(&bytes).map_err(|detail| {
            malformed(match crate::tiktoken::looks_like_ranks(&bytes) {
                true => "is a tiktoken vocabulary, not a SentencePiece model; use --tokenizer-type TikTokenizer".into(),
                false => format!("is not a SentencePiece model: {detail}"),
            })
        })?;
        tokenizer.name.clone_from(&spec.tokenizer_type);
        tokenizer.identifiers = ids;
        if let Some(token) = &spec.eod_token {
            let id = tokenizer.vocab.id(token.as_bytes());
            if id == tokenizer.vocab.unk {
                let detail = format!("{token:?} is not a piece of {}", path.display());
                return Err(Error::Argument { flag: "--eod-token", detail });
            }
            tokenizer.eos = Some(id);
            tokenizer.identifiers.insert("eod_token".into(), json!(token));
        }
        Ok(tokenizer)
    }

    /// From the bytes of a `.model` file.
    ///
    /// # Errors
    /// What is wrong with them, as a clause.
    pub fn from_bytes(bytes: &[u8]) -> Result<SentencePieceTokenizer, String> {
        let mut file = ModelFile::parse(bytes)?;
        let vocab = Vocab::new(&mut file)?;
        let model = match file.algorithm {
            Algorithm::Unigram => Model::Unigram(Unigram::new(&vocab)),
            Algorithm::Bpe => Model::Bpe(Bpe::new(&vocab)),
            Algorithm::Word => Model::Word { whitespace_as_suffix: file.whitespace_as_suffix },
            Algorithm::Char => Model::Char,
        };
        Ok(SentencePieceTokenizer {
            name: "SentencePieceTokenizer".into(),
            normalizer: Normalizer::new(&file.normalizer, file.whitespace_as_suffix)?,
            decoder: Decoder::new(&file)?,
            bos: vocab.control(&file.bos_piece),
            eos: vocab.control(&file.eos_piece),
            pad: vocab.control(&file.pad_piece),
            vocab,
            model,
            identifiers: Map::new(),
        })
    }
}

impl Tokenizer for SentencePieceTokenizer {
    fn name(&self) -> &str {
        &self.name
    }

    fn vocab_size(&self) -> usize {
        self.vocab.pieces.len()
    }

    fn encode(&self, text: &str, out: &mut Vec<u32>) -> Result<(), Error> {
        let normalized = self.normalizer.normalize(text, &self.vocab.symbols);
        let mut ids = Ids::new(&self.vocab, out);
        match &self.model {
            Model::Unigram(unigram) => unigram.encode(&self.vocab, &normalized, &mut ids),
            Model::Bpe(bpe) => bpe.encode(&self.vocab, &normalized, &mut ids),
            Model::Word { whitespace_as_suffix } => {
                let mut rest = normalized.as_slice();
                while !rest.is_empty() {
                    let ends = |&at: &usize| match whitespace_as_suffix {
                        true => rest[..at].ends_with(SPACE),
                        false => rest[at..].starts_with(SPACE),
                    };
                    let end = (1..rest.len()).find(ends).unwrap_or(rest.len());
                    ids.push(&rest[..end], self.vocab.id(&rest[..end]));
                    rest = &rest[end..];
                }
            }
            Model::Char => {
                let mut rest = normalized.as_slice();
                while !rest.is_empty() {
                    let (end, _) = self.vocab.symbol_or_char(rest);
                    ids.push(&rest[..end], self.vocab.id(&rest[..end]));
                    rest = &rest[end..];
                }
            }
        }
        Ok(())
    }

    fn decode(&self, ids: &[u32]) -> Result<String, Error> {
        Ok(self.decoder.decode(&self.vocab, ids))
    }

    fn eod(&self) -> Option<u32> {
        self.eos
    }

    fn pad(&self) -> Option<u32> {
        self.pad
    }

    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn unique_identifiers(&self) -> Map<String, Value> {
        self.identifiers.clone()
    }
}
