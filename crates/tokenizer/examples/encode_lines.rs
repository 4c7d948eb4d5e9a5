//! Ids of JSON strings: one string a line in, one list of ids a line out. For comparisons with other libraries:
//!
//! ```text
//! encode_lines --tokenizer-type Llama2Tokenizer --tokenizer-model tokenizer.model < texts.jsonl
//! ```

use ferrotron_tokenizer::{TikTokenOptions, TokenizerSpec, build_with};
use std::error::Error;
use std::io::{BufRead, Write};

fn main() -> Result<(), Box<dyn Error>> {
    let mut spec = TokenizerSpec::default();
    let mut tiktoken = TikTokenOptions::default();
    let mut decode = false;
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        if flag == "--decode" {
            decode = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--tokenizer-type" => spec.tokenizer_type = value,
            "--tokenizer-model" => spec.tokenizer_model = Some(value),
            "--vocab-file" => spec.vocab_file = Some(value.into()),
            "--merge-file" => spec.merge_file = Some(value.into()),
            "--vocab-size" => spec.vocab_size = Some(value.parse()?),
            "--tiktoken-pattern" => tiktoken.pattern = Some(value),
            "--tiktoken-num-special-tokens" => tiktoken.num_special_tokens = value.parse()?,
            _ => return Err(format!("unknown flag {flag}").into()),
        }
    }
    let tokenizer = build_with(&spec, &tiktoken)?;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let mut ids = Vec::new();
    for line in std::io::stdin().lock().lines() {
        ids.clear();
        tokenizer.encode(&serde_json::from_str::<String>(&line?)?, &mut ids)?;
        match decode {
            true => serde_json::to_writer(&mut out, &tokenizer.decode(&ids)?)?,
            false => serde_json::to_writer(&mut out, &ids)?,
        }
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}
