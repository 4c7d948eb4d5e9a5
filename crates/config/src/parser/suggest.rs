//! Did-you-mean: the flags nearest to a misspelt one.

use crate::flags::{Status, Table};

/// Up to three spellings that `written` may stand for, best first: the same words with dashes, then flags that begin
/// with it (abbreviations are not accepted), then spellings a few edits away.
pub fn suggest(table: &Table, written: &str) -> Vec<&'static str> {
    let dashed = normalised(written);
    if dashed.trim_start_matches('-').is_empty() {
        return Vec::new();
    }
    let mut ranked: Vec<(usize, usize, usize, &'static str)> = Vec::new();
    for (row, spelling) in table.spellings() {
        let name = normalised(spelling);
        let allowed = (dashed.len() / 4).clamp(1, 4);
        let tier = if name == dashed {
            0
        } else if dashed.len() > 4 && name.starts_with(&dashed) {
            1
        } else if name.len().abs_diff(dashed.len()) <= allowed {
            2
        } else {
            continue;
        };
        let distance = if tier == 2 { edits(&dashed, &name) } else { name.len() - dashed.len() };
        if tier == 2 && distance > allowed {
            continue;
        }
        let unsupported = usize::from(!matches!(row.status, Status::Acts));
        ranked.push((tier, distance, unsupported, spelling));
    }
    ranked.sort_unstable();
    let best = ranked.first().map_or(0, |r| r.0);
    ranked.into_iter().filter(|r| best > 0 || r.0 == 0).take(3).map(|r| r.3).collect()
}

fn normalised(spelling: &str) -> String {
    let body = spelling.trim_start_matches('-').replace('_', "-").to_ascii_lowercase();
    format!("--{body}")
}

/// Edit distance with transposition of neighbours (optimal string alignment).
pub(crate) fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [("", "ab", 2), ("lr", "rl", 1), ("hiden", "hidden", 1), ("kitten", "sitting", 3)] {
            assert_eq!(edits(a, b), d, "{a} {b}");
        }
    }

    #[test]
    fn typos_abbreviations_and_underscores() {
        let table = Table::pretrain();
        assert_eq!(suggest(&table, "--hiden-size")[0], "--hidden-size");
        assert_eq!(suggest(&table, "--tensor_model_parallel_size"), ["--tensor-model-parallel-size"]);
        assert_eq!(suggest(&table, "--tensor-model-parallel")[0], "--tensor-model-parallel-size");
        assert_eq!(suggest(&table, "-lr"), ["--lr"]);
        assert!(suggest(&table, "--completely-other-thing").is_empty());
        assert!(suggest(&table, "-").is_empty());
    }
}
