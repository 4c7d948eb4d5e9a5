//! Vocabulary files: Megatron's JSON list of tokens, and tiktoken's lines of base64 and rank.

use serde::Deserialize;

/// Tokens as bytes with their ranks.
pub(super) type Ranks = Vec<(Vec<u8>, u32)>;

/// One token of Megatron's file (`reload_mergeable_ranks` in `tiktoken_tokenizer.py`).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    rank: u32,
    token_bytes: String,
    #[serde(rename = "token_str")]
    _text: Option<String>,
}

/// Whether bytes look like tiktoken's lines: a word of base64, a space, a number.
pub(crate) fn looks_like_ranks(bytes: &[u8]) -> bool {
    let line = bytes.split(|&b| b == b'\n').next().unwrap_or_default();
    std::str::from_utf8(line).is_ok_and(|line| parse_line(line).is_some())
}

fn parse_line(line: &str) -> Option<(Vec<u8>, u32)> {
    let (token, rank) = line.trim_end().split_once(' ')?;
    Some((base64(token)?, rank.parse().ok()?))
}

/// Reads `<base64> <rank>` lines. Blank lines are passed over.
///
/// # Errors
/// What is wrong where, as a clause.
pub(super) fn from_lines(bytes: &[u8]) -> Result<Ranks, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text")?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let ranks: Ranks = lines
        .map(|(i, line)| {
            let wrong = || format!("line {} is not a token in base64 and its rank", i + 1);
            parse_line(line).filter(|(token, _)| !token.is_empty()).ok_or_else(wrong)
        })
        .collect::<Result<_, _>>()?;
    check(&ranks)?;
    Ok(ranks)
}

/// Reads the first `count` tokens of Megatron's JSON list; their ranks are 0, 1, 2 …
///
/// # Errors
/// What is wrong where, as a clause.
pub(super) fn from_json(bytes: &[u8], count: usize) -> Result<Ranks, String> {
    let entries: Vec<Entry> = serde_json::from_slice(bytes)
        .map_err(|e| format!("it is not a list of objects with rank, token_bytes and token_str: {e}"))?;
    if entries.len() < count {
        return Err(format!("it has {} tokens, but {count} are needed", entries.len()));
    }
    let mut ranks = Ranks::with_capacity(count);
    for (i, entry) in entries.into_iter().take(count).enumerate() {
        let token = base64(&entry.token_bytes)
            .filter(|t| !t.is_empty())
            .ok_or_else(|| format!("token_bytes {:?} of entry {i} is not base64", entry.token_bytes))?;
        if entry.rank as usize != i {
            return Err(format!("entry {i} has the rank {}", entry.rank));
        }
        if i < 256 && token != [i as u8] {
            return Err(format!("entry {i} must be the byte {i}, but is {token:?}"));
        }
        ranks.push((token, entry.rank));
    }
    check(&ranks)?;
    Ok(ranks)
}

/// No token and no rank twice: text could not be told from ids.
fn check(ranks: &Ranks) -> Result<(), String> {
    if ranks.is_empty() {
        return Err("it has no tokens".into());
    }
    let mut by_token: Vec<_> = ranks.iter().map(|(token, _)| token).collect();
    by_token.sort();
    if let Some(twice) = by_token.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("the token {:?} occurs twice", String::from_utf8_lossy(twice[0])));
    }
    let mut by_rank: Vec<u32> = ranks.iter().map(|&(_, rank)| rank).collect();
    by_rank.sort_unstable();
    if let Some(twice) = by_rank.windows(2).find(|w| w[0] == w[1]) {
        return Err(format!("the rank {} occurs twice", twice[0]));
    }
    match by_rank.last() {
        Some(&last) if last > i32::MAX as u32 - 1 => Err(format!("the rank {last} is beyond 31 bits")),
        _ => Ok(()),
    }
}

/// Standard base64 with padding; `None` for anything else.
fn base64(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let digits = text.trim_end_matches('=');
    if bytes.len() - digits.len() > 2 {
        return None;
    }
    let mut out = Vec::with_capacity(bytes.len() / 4 * 3);
    for group in digits.as_bytes().chunks(4) {
        let mut value = 0u32;
        for &digit in group {
            let six = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            value = value << 6 | u32::from(six);
        }
        value <<= 6 * (4 - group.len());
        // Three bytes from four digits, two from three, one from two.
        out.extend_from_slice(&value.to_be_bytes()[1..group.len()]);
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_the_standard_one() {
        for (text, want) in
            [("", Some(&b""[..])), ("IQ==", Some(b"!")), ("aGk=", Some(b"hi")), ("AP+/", Some(&[0, 255, 191]))]
        {
            assert_eq!(base64(text).as_deref(), want, "{text}");
        }
        for bad in ["a", "ab=", "ab!=", "====", "a===", "ab=c"] {
            assert!(base64(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn each_mistake_of_a_file_is_named() {
        let check = |got: Result<Ranks, String>, part: &str| {
            let e = got.unwrap_err();
            assert!(e.contains(part), "{e}");
        };
        check(from_lines(b""), "no tokens");
        check(from_lines(b"IQ== 0\nIQ==\n"), "line 2 is not a token");
        check(from_lines(b"IQ== 0\nIQ== 1\n"), "\"!\" occurs twice");
        check(from_lines(b"IQ== 3\naGk= 3\n"), "rank 3 occurs twice");
        check(from_lines(b"IQ== 4294967295\n"), "beyond 31 bits");
        check(from_lines(b"\xff"), "not text");
        let entry = |rank: u32, bytes: &str| format!(r#"{{"rank":{rank},"token_bytes":"{bytes}","token_str":"x"}}"#);
        check(from_json(b"{}", 1), "not a list");
        check(from_json(format!("[{}]", entry(0, "AA==")).as_bytes(), 2), "has 1 tokens, but 2 are needed");
        check(from_json(format!("[{}]", entry(1, "AA==")).as_bytes(), 1), "entry 0 has the rank 1");
        check(from_json(format!("[{}]", entry(0, "AQ==")).as_bytes(), 1), "must be the byte 0");
        check(from_json(br#"[{"rank":0,"token_bytes":"AA==","x":1}]"#, 1), "unknown field `x`");
        assert_eq!(from_lines(b"IQ== 5\n\naGk= 3\n").unwrap(), [(b"!".to_vec(), 5), (b"hi".to_vec(), 3)]);
        assert!(looks_like_ranks(b"IQ== 0\nxx") && !looks_like_ranks(b"\x0a\x03abc"));
    }
}
