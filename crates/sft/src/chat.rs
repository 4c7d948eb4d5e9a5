//! A conversation to ids and a mask of what the assistant says.

use crate::template::ChatTemplate;
use crate::{Conversation, Error, Result};
use ferrotron_tokenizer::{HuggingFaceTokenizer, TokenizerSpec};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::Path;

/// Ids of one conversation, `[T]`, and which of them are to be learned.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Example {
    /// Ids.
    pub ids: Vec<u32>,
    /// True for what the assistant says, the end of its turn included. Not shifted.
    pub mask: Vec<bool>,
}

impl Example {
    /// Ids that are targets: masked ones, except the first of all, which nothing predicts.
    pub fn targets(&self) -> usize {
        self.mask.iter().skip(1).filter(|&&m| m).count()
    }
}

/// A tokenizer with its chat template.
#[derive(Debug)]
pub struct ChatTokenizer {
    tokenizer: HuggingFaceTokenizer,
    template: ChatTemplate,
}

impl ChatTokenizer {
    /// From a folder with `tokenizer.json` and a chat template.
    ///
    /// # Errors
    /// When one of them is absent or unusable.
    pub fn from_folder(folder: &Path) -> Result<ChatTokenizer> {
        let spec = TokenizerSpec {
            tokenizer_type: "HuggingFaceTokenizer".into(),
            tokenizer_model: Some(folder.display().to_string()),
            ..TokenizerSpec::default()
        };
        let tokenizer = HuggingFaceTokenizer::from_spec(&spec)?;
        Ok(ChatTokenizer { tokenizer, template: ChatTemplate::from_folder(folder)? })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &HuggingFaceTokenizer {
        &self.tokenizer
    }

    /// The template.
    pub fn template(&self) -> &ChatTemplate {
        &self.template
    }

    /// Renders and tokenizes a whole conversation: the text is tokenized as one, so that ids are those of inference.
    /// A token that begins or ends inside what the assistant says counts as said by it.
    ///
    /// # Errors
    /// What the template refuses; a template without `{% generation %}` whose turns cannot be told apart.
    pub fn encode(&self, conversation: &Conversation, variables: &Map<String, Value>) -> Result<Example> {
        let all = 0..conversation.messages.len();
        let rendered = self.template.render(conversation, all, false, variables)?;
        let spans = match self.template.marks_generation() {
            true => rendered.generated,
            false => self.spans_by_prefix(conversation, &rendered.text, variables)?,
        };
        let encoded = self.tokenizer.encode_with_offsets(&rendered.text)?;
        let mut spans = spans.into_iter().peekable();
        let mut mask = Vec::with_capacity(encoded.ids.len());
        for offsets in &encoded.offsets {
            while spans.peek().is_some_and(|span| span.end <= offsets.start) {
                spans.next();
            }
            mask.push(spans.peek().is_some_and(|span| span.start < offsets.end && offsets.start < span.end));
        }
        Ok(Example { ids: encoded.ids, mask })
    }

    /// What each assistant message adds to the text of the messages before it, up to the end of its last special
    /// end-of-turn token: the part that a model generates after the generation prompt.
    fn spans_by_prefix(
        &self,
        conversation: &Conversation,
        text: &str,
        variables: &Map<String, Value>,
    ) -> Result<Vec<Range<usize>>> {
        let mut spans = Vec::new();
        for (i, message) in conversation.messages.iter().enumerate() {
            if message["role"] != "assistant" {
                continue;
            }
            let before = self.template.render(conversation, 0..i, true, variables)?.text;
            let after = self.template.render(conversation, 0..i + 1, false, variables)?.text;
            if !(after.starts_with(&before) && text.starts_with(&after)) {
                return Err(Error::Template {
                    place: "this model".into(),
                    problem: format!(
                        "it writes message {} differently when others follow, and does not say with {{% generation %}} \
                         what is generated; put {{% generation %}} and {{% endgeneration %}} around the assistant's text",
                        i + 1
                    ),
                });
            }
            let said = &text[before.len()..after.len()];
            let end = self.template.special("eos_token").and_then(|eos| said.rfind(eos).map(|at| at + eos.len()));
            spans.push(before.len()..before.len() + end.unwrap_or(said.len()));
        }
        Ok(spans)
    }
}
