//! `--split-sentences`: a text to its sentences by fixed rules.
//!
//! Megatron uses nltk's punkt, whose statistics come from training texts that this program does not have. The rules:
//! * a sentence ends after `.`, `!`, `?` or `…` (any number of them), closing quotes and brackets included, where
//!   whitespace follows;
//! * a single `.` does not end one after a known abbreviation, an initial (one letter), or a number that begins a
//!   sentence or a line (a list), nor before a lower-case letter;
//! * it ends after `。`, `！`, `？`, `｡` and `॥`, `।`, closing quotes included, whatever follows;
//! * it ends at an empty line.
//!
//! Whitespace between sentences is dropped; with `--keep-newlines` the newlines among it stay at the end of the sentence.

use std::borrow::Cow;

/// Words (lower case, without the full stop) that are rarely the end of a sentence.
const ABBREVIATIONS: [&str; 46] = [
    "mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "rev", "gen", "col", "capt", "lt", "sgt", "hon", "gov", "sen",
    "rep", "vs", "e.g", "i.e", "cf", "viz", "al", "approx", "fig", "figs", "eq", "no", "nos", "vol", "pp", "p", "ed",
    "eds", "dept", "univ", "inc", "ltd", "co", "corp", "jan", "feb", "aug", "sept", "u.s",
];

/// The sentences of a text, in order; none for a text of whitespace.
pub(super) fn split(text: &str, keep_newlines: bool) -> Vec<Cow<'_, str>> {
    let mut sentences = Vec::new();
    let mut start = text.len() - text.trim_start().len();
    while start < text.len() {
        let end = end_of_sentence(text, start);
        let next = text.len() - text[end..].trim_start().len();
        let newlines: String = text[end..next].chars().filter(|&c| c == '\n').collect();
        let sentence = &text[start..end];
        sentences.push(match keep_newlines && !newlines.is_empty() {
            true => Cow::Owned(sentence.to_string() + &newlines),
            false => Cow::Borrowed(sentence),
        });
        start = next;
    }
    sentences
}

fn is_closing(c: char) -> bool {
    matches!(c, '"' | '\'' | ')' | ']' | '}' | '”' | '’' | '»' | '」' | '』' | '）' | '】' | '》')
}

/// Where the sentence that begins at `start` (not with whitespace) ends, whitespace excluded.
fn end_of_sentence(text: &str, start: usize) -> usize {
    let mut at = start;
    while let Some(c) = text[at..].chars().next() {
        let after = at + c.len_utf8();
        match c {
            '.' | '!' | '?' | '…' => {
                let marks = &text[at..skip(text, after, |c| matches!(c, '.' | '!' | '?' | '…'))];
                let end = skip(text, at + marks.len(), is_closing);
                let rest = &text[end..];
                let whitespace = rest.starts_with(char::is_whitespace) || rest.is_empty();
                if whitespace && !(marks == "." && end == after && is_abbreviation(text, start, at, rest)) {
                    return end;
                }
                at = end.max(after);
            }
            '。' | '！' | '？' | '｡' | '।' | '॥' => {
                return skip(text, skip(text, after, |c| matches!(c, '。' | '！' | '？' | '｡')), is_closing);
            }
            '\n' => {
                let space = skip(text, at, char::is_whitespace);
                if text[at..space].matches('\n').count() > 1 {
                    return start + text[start..at].trim_end().len();
                }
                at = space;
            }
            _ => at = after,
        }
    }
    start + text[start..].trim_end().len()
}

/// The first place from `at` on whose character is not of a kind.
fn skip(text: &str, at: usize, kind: impl Fn(char) -> bool) -> usize {
    at + text[at..].find(|c| !kind(c)).unwrap_or(text.len() - at)
}

/// Whether the full stop at `stop` belongs to its word. `rest` is what follows it.
fn is_abbreviation(text: &str, start: usize, stop: usize, rest: &str) -> bool {
    if rest.trim_start().starts_with(char::is_lowercase) {
        return true;
    }
    let before = &text[start..stop];
    let word_start =
        before.rfind(char::is_whitespace).map_or(0, |i| i + before[i..].chars().next().map_or(0, char::len_utf8));
    let word = before[word_start..].trim_start_matches(|c: char| !c.is_alphanumeric());
    let initial = word.chars().count() == 1 && word.starts_with(char::is_uppercase);
    let numbered = !word.is_empty()
        && word.bytes().all(|b| b.is_ascii_digit())
        && before[..word_start].trim_end_matches([' ', '\t']).chars().next_back().is_none_or(|c| c == '\n');
    initial || numbered || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, want: &[&str]) {
        assert_eq!(split(text, false), want, "{text:?}");
    }

    #[test]
    fn sentences_end_where_the_rules_say() {
        check("One. Two! Three? Four", &["One.", "Two!", "Three?", "Four"]);
        check(
            "Dr. Smith met J. R. Doe at 3.14 p.m. yesterday. Yes.",
            &["Dr. Smith met J. R. Doe at 3.14 p.m. yesterday.", "Yes."],
        );
        check(
            "He said \"Go.\" She went (fast!). End...  More",
            &["He said \"Go.\"", "She went (fast!).", "End...", "More"],
        );
        check("e.g. this, i.e. that. Done", &["e.g. this, i.e. that.", "Done"]);
        check("1. First item. 2. Second.", &["1. First item.", "2. Second."]);
        check("今天很好。明天呢？「好。」是", &["今天很好。", "明天呢？", "「好。」", "是"]);
        check("A title\n\nA line\nthat goes on. x.y", &["A title", "A line\nthat goes on. x.y"]);
        check("  only one  ", &["only one"]);
        check(" \n ", &[]);
        check("", &[]);
    }

    #[test]
    fn newlines_stay_on_request() {
        assert_eq!(split("One. \n Two.\n\nThree\n", true), ["One.\n", "Two.\n\n", "Three\n"]);
        assert_eq!(split("One. \n Two.\n\nThree\n", false), ["One.", "Two.", "Three"]);
    }

    proptest! {
        /// Nothing but whitespace is lost, whatever the text.
        #[test]
        fn only_whitespace_is_lost(text in "([A-Za-z]{1,6}|[.!?…。\"')]{1,3}|[ \n\t]{1,3}|Dr\\. |\\PC){0,30}", keep in any::<bool>()) {
            let solid = |s: &str| s.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            let sentences = split(&text, keep);
            prop_assert_eq!(solid(&sentences.concat()), solid(&text));
            prop_assert!(sentences.iter().all(|s| !s.trim().is_empty()), "{:?}", sentences);
        }
    }
}
