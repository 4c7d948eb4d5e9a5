//! The smallest `preprocess_data`, for measurements: `preprocess_jsonl INPUT TOKENIZER_FOLDER OUTPUT_PREFIX WORKERS`.

use ferrotron_tokenizer::TokenizerSpec;
use ferrotron_tokenizer::preprocess::{Options, PreprocessArgs, run_to_files};
use std::error::Error;
use std::io::IsTerminal;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [input, tokenizer, prefix, workers] = args.as_slice() else {
        return Err("four arguments: INPUT TOKENIZER_FOLDER OUTPUT_PREFIX WORKERS".into());
    };
    let tokenizer = TokenizerSpec {
        tokenizer_type: "HuggingFaceTokenizer".into(),
        tokenizer_model: Some(tokenizer.clone()),
        ..TokenizerSpec::default()
    };
    let args = PreprocessArgs {
        input: vec![input.clone()],
        json_keys: vec!["text".into()],
        tokenizer,
        output_prefix: prefix.into(),
        append_eod: true,
        prepend_bos: false,
        workers: workers.parse()?,
        log_interval: 10_000,
        skip_bad: 0,
    };
    let mut out = std::io::stdout().lock();
    let options = Options { terminal: out.is_terminal(), ..Options::default() };
    run_to_files(&args, &options, &mut out)?;
    Ok(())
}
