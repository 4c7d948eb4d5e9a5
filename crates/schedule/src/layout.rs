//! Megatron's `--pipeline-model-parallel-layout`: `E|(t|)*3,tt||L` says what each virtual stage holds. `E` embedding, `t`
//! decoder layer, `m` multi-token-prediction layer, `L` loss; `|` ends a virtual stage, `x*3` and `(...)*3` repeat,
//! commas are for the eye. (megatron/core/transformer/pipeline_parallel_layer_layout.py)

/// More symbols than any model has: an end for repetitions of repetitions.
const MOST: usize = 1 << 20;

/// A layout that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// A character that has no meaning there.
    #[error("pipeline layout: '{found}' at character {at} (of E, t, m, L, |, *number and parentheses)")]
    Character {
        /// What stands there.
        found: char,
        /// Where, from 1.
        at: usize,
    },
    /// A parenthesis without its other half, or a repetition of nothing or by no number.
    #[error("pipeline layout: {0}")]
    Form(&'static str),
    /// Embedding or loss are not where they must be.
    #[error("pipeline layout: {0}")]
    Ends(&'static str),
    /// Layers of multi-token prediction.
    #[error("pipeline layout: m layers (multi-token prediction) are not there yet")]
    Prediction,
}

/// Decoder layers of each virtual stage, in the order of the model.
pub fn parse_layout(text: &str) -> Result<Vec<usize>, LayoutError> {
    let flat = unroll(text)?;
    if flat.contains('m') {
        return Err(LayoutError::Prediction);
    }
    let parts: Vec<&str> = flat.split('|').collect();
    let count = |c: char| flat.matches(c).count();
    if count('E') != 1 || !flat.starts_with('E') {
        return Err(LayoutError::Ends("E must stand once, first of all"));
    }
    if count('L') != 1 || !flat.ends_with('L') {
        return Err(LayoutError::Ends("L must stand once, last of all"));
    }
    Ok(parts.iter().map(|p| p.matches('t').count()).collect())
}

/// Writes repetitions out, innermost first.
fn unroll(text: &str) -> Result<String, LayoutError> {
    // Text before each open parenthesis, and where the last symbol or group began in the text after it.
    let mut outer: Vec<String> = vec![];
    let (mut flat, mut last) = (String::new(), None);
    let mut chars = text.chars().enumerate().peekable();
    while let Some((i, c)) = chars.next() {
        match c {
            ',' | ' ' => {}
            'E' | 't' | 'm' | 'L' | '|' => {
                last = Some(flat.len());
                flat.push(c);
            }
            '(' => {
                outer.push(std::mem::take(&mut flat));
                last = None;
            }
            ')' => {
                let before = outer.pop().ok_or(LayoutError::Form(") without ("))?;
                last = Some(before.len());
                flat.insert_str(0, &before);
            }
            '*' => {
                let mut n = 0usize;
                let mut digits = 0;
                while let Some(d) = chars.peek().and_then(|(_, c)| c.to_digit(10)) {
                    n = n.saturating_mul(10).saturating_add(d as usize);
                    digits += 1;
                    chars.next();
                }
                let from = last.take().ok_or(LayoutError::Form("* repeats nothing"))?;
                if digits == 0 || n == 0 {
                    return Err(LayoutError::Form("* needs a number from 1"));
                }
                let unit = flat.split_off(from);
                if unit.len().saturating_mul(n).saturating_add(flat.len()) > MOST {
                    return Err(LayoutError::Form("repetitions make more layers than a model can have"));
                }
                flat.push_str(&unit.repeat(n));
            }
            found => return Err(LayoutError::Character { found, at: i + 1 }),
        }
    }
    if outer.is_empty() { Ok(flat) } else { Err(LayoutError::Form("( without )")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        assert_eq!(parse_layout("Et|tL").unwrap(), [1, 1]);
        assert_eq!(parse_layout("E|(t|)*3,tt||L").unwrap(), [0, 1, 1, 1, 2, 0, 0]);
        assert_eq!(parse_layout("Et*3|(tt|)*2L").unwrap(), [3, 2, 2, 0]);
        assert_eq!(parse_layout("E((t*2|)*2t|)*2L").unwrap(), [2, 2, 1, 2, 2, 1, 0]);
        assert_eq!(parse_layout("EtL").unwrap(), [1]);
    }

    #[test]
    fn what_cannot_be_read() {
        let why = |t: &str| parse_layout(t).unwrap_err().to_string();
        assert!(why("Ex|L").contains("'x' at character 2"));
        assert!(why("E(t|L").contains("( without )"));
        assert!(why("Et)|L").contains(") without ("));
        assert!(why("E|*|L").contains("needs a number"));
        assert!(why("*3").contains("repeats nothing"));
        assert!(why("Et*0L").contains("from 1"));
        assert!(why("t|EL").contains("E must stand once"));
        assert!(why("Et|L|t").contains("L must stand once"));
        assert!(why("Em|L").contains("multi-token"));
        assert!(why("E((((t*99999)*99999)*99999)*99999)L").contains("more layers"));
        assert!(why("Et*99999999999999999999999L").contains("more layers"));
        assert!(why("").contains("E must"));
    }
}
