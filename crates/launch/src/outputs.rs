//! Where the two streams of every rank go: `--tee`, `--redirects`, `--log-dir`, `--local-ranks-filter`.

use std::path::PathBuf;

use ferrotron_config::{Severity, Violation};

/// How a stream shows on the launcher's own output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Console {
    /// Not at all.
    Silent,
    /// Byte for byte.
    Plain,
    /// Line by line, with the rank in front, as torchrun's `--tee` does.
    Prefixed,
}

/// Where one stream of one rank goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sink {
    /// Into a file of its own.
    pub file: bool,
    /// And to the console.
    pub console: Console,
}

/// Where the streams of one rank go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSinks {
    /// Standard output.
    pub stdout: Sink,
    /// Standard error.
    pub stderr: Sink,
}

/// Where the streams of all ranks of a node go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outputs {
    /// One entry a local rank.
    pub ranks: Vec<RankSinks>,
    /// The folder for files; without one, a folder for temporary files is used.
    pub log_dir: Option<PathBuf>,
}

impl Outputs {
    /// Whether any stream goes to a file.
    pub fn writes_files(&self) -> bool {
        self.ranks.iter().any(|r| r.stdout.file || r.stderr.file)
    }
}

/// What was typed for the streams.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// `--tee`.
    pub tee: Option<&'a str>,
    /// `--redirects`.
    pub redirects: Option<&'a str>,
    /// `--log-dir`.
    pub log_dir: Option<&'a str>,
    /// `--local-ranks-filter`.
    pub filter: Option<&'a str>,
}

/// Works out the sinks of `ranks` local ranks; mistakes are appended to `faults`.
pub fn outputs(asked: Asked, ranks: usize, faults: &mut Vec<Violation>) -> Outputs {
    let mut spec = |flag: &str, text: Option<&str>| match text.map(|t| streams(t, ranks)) {
        None => vec![0; ranks],
        Some(Ok(bits)) => bits,
        Some(Err(what)) => {
            let violation = Violation::new(Severity::Invalid, &[flag], format!("{flag}: {what}"));
            faults.push(violation.legal("0 none, 1 out, 2 err, 3 both; for all ranks (3) or rank by rank (0:3,1:2)"));
            vec![0; ranks]
        }
    };
    let (tee, redirects) = (spec("--tee", asked.tee), spec("--redirects", asked.redirects));
    let shown = match asked.filter.map(crate::hosts::device_list) {
        None => None,
        Some(Some(list)) => Some(list),
        Some(None) => {
            let what = format!("--local-ranks-filter '{}' is no list of local ranks", asked.filter.unwrap_or_default());
            faults.push(Violation::new(Severity::Invalid, &["--local-ranks-filter"], what).legal("0,1"));
            None
        }
    };
    let sink = |rank: usize, bit: u8| {
        let (teed, redirected) = (tee[rank] & bit != 0, redirects[rank] & bit != 0);
        let hidden = shown.as_ref().is_some_and(|list| !list.contains(&rank));
        let console = match (teed, redirected) {
            _ if hidden => Console::Silent,
            (true, _) => Console::Prefixed,
            (false, true) => Console::Silent,
            (false, false) => Console::Plain,
        };
        Sink { file: redirected || (teed && asked.log_dir.is_some()), console }
    };
    let ranks = (0..ranks).map(|rank| RankSinks { stdout: sink(rank, 1), stderr: sink(rank, 2) }).collect();
    Outputs { ranks, log_dir: asked.log_dir.map(PathBuf::from) }
}

/// torchrun's stream words: bit 0 standard output, bit 1 standard error, for each local rank.
fn streams(text: &str, ranks: usize) -> Result<Vec<u8>, String> {
    let bits = |t: &str| match t.trim() {
        "0" => Ok(0),
        "1" => Ok(1),
        "2" => Ok(2),
        "3" => Ok(3),
        other => Err(format!("'{other}' is none of 0, 1, 2, 3")),
    };
    if !text.contains(':') {
        return Ok(vec![bits(text)?; ranks]);
    }
    let mut all = vec![0; ranks];
    for part in text.split(',') {
        let (rank, word) = part.split_once(':').ok_or_else(|| format!("'{part}' has no colon"))?;
        let index = rank.trim().parse::<usize>().map_err(|_| format!("'{rank}' is no local rank"))?;
        *all.get_mut(index).ok_or_else(|| format!("there is no local rank {index} among {ranks}"))? = bits(word)?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn work(asked: Asked) -> (Vec<String>, Vec<String>) {
        let mut faults = Vec::new();
        let outputs = outputs(asked, 2, &mut faults);
        let one = |s: Sink| format!("{:?}{}", s.console, if s.file { "+file" } else { "" });
        let show = |r: &RankSinks| format!("{} {}", one(r.stdout), one(r.stderr));
        (outputs.ranks.iter().map(show).collect(), faults.iter().map(|f| f.what.clone()).collect())
    }

    #[test]
    fn words_of_torchrun() {
        let cases = [
            (Asked::default(), ["Plain Plain", "Plain Plain"]),
            (Asked { tee: Some("3"), ..Asked::default() }, ["Prefixed Prefixed", "Prefixed Prefixed"]),
            (Asked { tee: Some("3"), log_dir: Some("d"), ..Asked::default() }, ["Prefixed+file Prefixed+file"; 2]),
            (Asked { redirects: Some("1"), ..Asked::default() }, ["Silent+file Plain", "Silent+file Plain"]),
            (
                Asked { tee: Some("0:3"), redirects: Some("3"), log_dir: Some("d"), ..Asked::default() },
                ["Prefixed+file Prefixed+file", "Silent+file Silent+file"],
            ),
            (Asked { filter: Some("1"), ..Asked::default() }, ["Silent Silent", "Plain Plain"]),
        ];
        for (asked, sinks) in cases {
            assert_eq!(work(asked), (sinks.map(String::from).to_vec(), vec![]), "{asked:?}");
        }
    }

    #[test]
    fn mistakes_name_the_word() {
        let asked = Asked { tee: Some("4"), redirects: Some("0:1,2:1"), filter: Some("a"), log_dir: None };
        let said = ["--tee: '4' is none of 0, 1, 2, 3", "--redirects: there is no local rank 2 among 2"];
        let (_, faults) = work(asked);
        assert_eq!(faults[..2], said);
        assert_eq!(faults[2], "--local-ranks-filter 'a' is no list of local ranks");
    }
}
