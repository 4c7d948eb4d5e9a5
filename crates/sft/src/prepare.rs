//! Between tokenizing and packing: truncation that never leaves an example without a target, and a look at the masks.

use crate::{Error, Example, Result};
use ferrotron_tokenizer::Tokenizer;

/// Examples that fit, and what became of the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fitted {
    /// Examples of at most the given length, in order, each with a target.
    pub examples: Vec<Example>,
    /// Examples that were cut at the end.
    pub truncated: usize,
    /// Examples left out because nothing to learn was left.
    pub dropped: usize,
}

/// Cuts examples to `length` ids and leaves out those without a target after that.
///
/// # Errors
/// When none is left: such a run would learn nothing.
pub fn fit(examples: impl IntoIterator<Item = Example>, length: usize) -> Result<Fitted> {
    let (mut fitted, mut all) = (Fitted::default(), 0);
    for mut example in examples {
        all += 1;
        if example.ids.len() > length {
            example.ids.truncate(length);
            example.mask.truncate(length);
            fitted.truncated += 1;
        }
        match example.targets() {
            0 => fitted.dropped += 1,
            _ => fitted.examples.push(example),
        }
    }
    match fitted.examples.is_empty() {
        true => Err(Error::Setting(format!(
            "{} of {all} examples have no target tokens after truncation to {length}; nothing is left to train on: use a \
             longer --seq-length, or see whether the conversations have assistant messages",
            fitted.dropped
        ))),
        false => Ok(fitted),
    }
}

impl Fitted {
    /// What a user should know; `None` when every example was kept.
    pub fn notice(&self, length: usize) -> Option<String> {
        (self.dropped > 0).then(|| {
            let all = self.examples.len() + self.dropped;
            format!("{} of {all} examples have no target tokens after truncation to {length}", self.dropped)
        })
    }
}

/// The text of an example with `⟦…⟧` around what is to be learned.
///
/// # Errors
/// When the tokenizer cannot decode.
pub fn preview(tokenizer: &dyn Tokenizer, example: &Example) -> Result<String> {
    let (mut text, mut at) = (String::new(), 0);
    while at < example.ids.len() {
        let learned = example.mask[at];
        let end = at + example.mask[at..].iter().take_while(|&&m| m == learned).count();
        let part = tokenizer.decode(&example.ids[at..end])?;
        match learned {
            true => text.extend(["⟦", &part, "⟧"]),
            false => text.push_str(&part),
        }
        at = end;
    }
    Ok(text)
}
