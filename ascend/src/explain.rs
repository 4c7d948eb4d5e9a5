//! Codes of CANN in words: `ferrotron explain`.

use ferrotron_acl_sys::code;
use ferrotron_hccl_sys::explain as hccl;

/// Codes in texts: the letter says who speaks, the number what.
const LETTERS: &[(&str, &str)] = &[
    ("EI0001", "HCCL: a variable has a value that HCCL does not take; the text names it"),
    (
        "EI0002",
        "HCCL: a rank waited in vain for another in a collective: find the rank that is silent or died first; \
      HCCL_EXEC_TIMEOUT is how long it waited",
    ),
    ("EI0003", "HCCL: a wrong argument of a collective: a mistake of this program; please report it"),
    ("EI0004", "HCCL: the rank table does not fit: ranks, devices and addresses must be those of this job"),
    ("EI0005", "HCCL: ranks called different collectives, counts or types: compare with --check-collectives"),
    (
        "EI0006",
        "HCCL: ranks could not connect in time: did all start? see HCCL_CONNECT_TIMEOUT, HCCL_SOCKET_IFNAME, firewall",
    ),
    ("EI0007", "HCCL: memory or another resource is used up: smaller HCCL_BUFFSIZE, fewer communicators"),
    ("EI0014", "HCCL: the rank table is of another generation of chips (version 1.0: 910B, 1.2: 910C), or wrong"),
    ("EI0015", "HCCL: ranks could not agree at start: did all get the same world size and master address?"),
    ("EJ0001", "the network service of a device did not start: a stale process holds it (npu-smi info)"),
    ("EJ0003", "a port is taken: ports 60000 to 60031 (HCCL_IF_BASE_PORT), or a stale process"),
    ("EE", "the runtime; the text after it has the cause"),
    ("EH", "AscendCL refused a call: a mistake of this program; please report it"),
    ("EZ", "an operator refused its arguments or failed; errorStr in the text is the cause"),
    ("EI", "HCCL; the text after it has the cause"),
    ("EJ", "the network service of a device; the text after it has the cause"),
    ("EL", "the driver; see npu-smi info"),
    ("E", "the operator compiler; is the kernels package of this chip installed?"),
];

/// One line for each code in the words, which may be a whole message. Numbers are codes of AscendCL and aclnn, or with
/// `hccl:` before them results of HCCL.
pub fn explain<'a>(words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut lines = vec![];
    let mut add = |line: String| {
        if !lines.contains(&line) {
            lines.push(line);
        }
    };
    let all: Vec<&str> = words.into_iter().collect();
    for word in all.iter().flat_map(|w| w.split(|c: char| !c.is_ascii_alphanumeric() && c != ':' && c != '_')) {
        let word = word.trim_matches(':');
        if let Some(n) = word.to_ascii_lowercase().strip_prefix("hccl:").and_then(|n| n.parse().ok()) {
            let (name, advice) = hccl(n);
            add(format!("{n} {name}: {advice}"));
        } else if word.len() == 6 && word.bytes().all(|b| b.is_ascii_digit()) {
            add(code::explain(word.parse().unwrap_or_default()).to_string());
        } else if let Some(text) = lettered(word) {
            add(format!("{word}: {text}"));
        } else if let Some((code, _)) = code::NAMES.iter().find(|(_, name)| name.eq_ignore_ascii_case(bare(word))) {
            add(code::explain(*code).to_string());
        } else if let Some(n) = (0..=64).find(|n| hccl(*n).0.eq_ignore_ascii_case(word)) {
            add(format!("{n} {}: {}", hccl(n).0, hccl(n).1));
        }
    }
    lines
}

/// A name as headers have it, without what all of them begin with.
fn bare(word: &str) -> &str {
    ["ACL_ERROR_RT_", "ACL_ERROR_"].iter().find_map(|p| word.strip_prefix(p)).unwrap_or(word)
}

/// A letter or two and digits: `EI0002`.
fn lettered(word: &str) -> Option<&'static str> {
    let digits = word.trim_start_matches(|c: char| c.is_ascii_uppercase());
    let letters = word.len() - digits.len();
    let shape = word.starts_with('E') && (1..=2).contains(&letters) && (4..=5).contains(&digits.len());
    if !shape || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let exact = LETTERS.iter().find(|(code, _)| *code == word);
    exact.or_else(|| LETTERS.iter().find(|(code, _)| *code == &word[..letters])).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_in_messages_and_told_once() {
        let message = "EZ9999: Inner Error, aclrtSynchronizeStream failed, error code is 507015. [507015] see EI0002!";
        let lines = explain([message]);
        assert_eq!(lines.len(), 3, "{lines:?}");
        assert!(lines[0].starts_with("EZ9999: an operator refused") && lines[1].starts_with("507015 AICORE_EXCEPTION"));
        assert!(lines[2].starts_with("EI0002: HCCL: a rank waited in vain"));
    }

    #[test]
    fn numbers_names_and_results() {
        let first = |w: &str| explain([w]).first().cloned().unwrap_or_default();
        assert!(first("207001").contains("MEMORY_ALLOCATION: the device's memory is used up"));
        assert!(first("ACL_ERROR_RT_AICORE_TIMEOUT").starts_with("507014 AICORE_TIMEOUT"));
        assert_eq!(
            first("hccl:9"),
            "9 HCCL_E_TIMEOUT: not all ranks came in time: see HCCL_CONNECT_TIMEOUT, and whether a rank died"
        );
        assert_eq!(
            first("HCCL_E_TIMEOUT"),
            "9 HCCL_E_TIMEOUT: not all ranks came in time: see HCCL_CONNECT_TIMEOUT, and whether a rank died"
        );
        assert!(first("145000").contains("graph engine") && first("361001").contains("ACLNN_ERR_RUNTIME_ERROR"));
        assert!(first("E40021").contains("operator compiler"));
        for nothing in ["", "hello", "12345", "1234567", "EXAMPLE", "E1"] {
            assert_eq!(first(nothing), "", "{nothing}");
        }
    }
}
