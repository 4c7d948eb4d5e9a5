//! The rules of the house that a compiler does not check. Each rule is a function from text to findings; `run` walks.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// The crates in the order of ARCHITECTURE.md: a crate may depend only on those before it.
const ORDER: [&str; 25] = [
    "base",
    "device",
    "conformance",
    "cpu",
    "schedule",
    "comm",
    "runtime",
    "nn",
    "models",
    "executor",
    "optim",
    "data",
    "tokenizer",
    "sft",
    "checkpoint",
    "published",
    "foreign",
    "config",
    "telemetry",
    "backends",
    "train",
    "plan",
    "launch",
    "mock",
    "cli",
];

/// Crates that know a device.
const DEVICE_SIDE: [&str; 8] = ["device", "conformance", "cpu", "comm", "runtime", "nn", "models", "executor"];

/// Crates that stay off the device side, with what each may use of it all the same.
const HOST_SIDE: [(&str, &[&str]); 9] = [
    ("schedule", &[]),
    ("optim", &["device", "comm", "runtime"]), // comm: the reductions that runtime's groups are asked for
    ("data", &[]),
    ("tokenizer", &[]),
    ("sft", &[]),
    ("checkpoint", &[]),
    ("config", &[]),
    ("telemetry", &[]),
    ("mock", &[]),
];

/// The one crate that names devices, and has features for them.
const REGISTRY: &str = "backends";

/// Devices in folders of their own.
const VENDORS: [&str; 2] = ["ascend", "cuda"];

/// Where `unsafe` may stand: kernels, foreign interfaces, shared memory, memory maps.
const UNSAFE_IN: [&str; 11] = [
    "crates/cpu/",
    "crates/comm/",
    "crates/mock/",
    "crates/data/src/mapped.rs",
    "crates/device/src/pool",
    "crates/device/src/tensor",
    "crates/launch/src/raw.rs",
    "sys/",
    "tests/src/mock/",
    "ascend/",
    "cuda/",
];

/// Where state may be global: mocks of what is global, and NVTX's slots, which its interface makes so. Test code may too.
const GLOBALS_IN: [&str; 5] = ["crates/mock/", "ascend/mock/", "cuda/mock/", "sys/nvtx/src/inject.rs", "tests/"];

const GLOBAL_TYPES: [&str; 11] = [
    "Mutex",
    "RwLock",
    "OnceLock",
    "OnceCell",
    "LazyLock",
    "LazyCell",
    "RefCell",
    "Cell",
    "UnsafeCell",
    "Condvar",
    "Atomic",
];

const UNFINISHED: [&str; 4] = ["todo!", "unimplemented!", "dbg!", "#[ignore"];

/// What must not stand in any text of the repository: paths of one machine, notes that belong in an issue.
const FORBIDDEN_TEXT: [&str; 7] = ["/work/", "/root/", "/home/", "../shared", "FIXME", "XXX:", "HACK:"];

const MAX_LINES: usize = 500;
const MAX_MAIN_LINES: usize = 100;
/// Lines above an `unsafe` in which its reason must begin.
const SAFETY_WITHIN: usize = 8;
/// Build tools for C. The default build must not need one.
const C_BUILDERS: [&str; 4] = ["cc", "cmake", "bindgen", "pkg-config"];
const SKIPPED_FOLDERS: [&str; 5] = ["target", ".git", "runs", ".venv", "golden"];
const TEXT_FILES: [&str; 13] =
    ["rs", "toml", "md", "sh", "json", "yml", "yaml", "args", "run", "cu", "cuh", "cpp", "h"];

/// A broken rule. Line 0: the whole file.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    file: String,
    line: usize,
    message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line.max(1), self.message)
    }
}

/// Checks the whole repository and prints what is wrong, one `file:line: message` each.
pub fn run(root: &Path) -> ExitCode {
    let mut findings = vec![];
    let mut files = vec![];
    walk(root, &mut files);
    for path in &files {
        let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/");
        match std::fs::read_to_string(path) {
            Ok(text) => findings.extend(check_file(&name, &text)),
            Err(e) => findings.push(Finding { file: name, line: 0, message: format!("cannot be read as text: {e}") }),
        }
    }
    findings.extend(no_c_compiler(root));
    findings.iter().for_each(|f| eprintln!("{f}"));
    if findings.is_empty() && !files.is_empty() {
        println!("tidy: {} files, no findings", files.len());
        ExitCode::SUCCESS
    } else {
        eprintln!("tidy: {} files, {} findings", files.len(), findings.len());
        ExitCode::FAILURE
    }
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let mut paths: Vec<PathBuf> = entries.flatten().map(|e| e.path()).collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !SKIPPED_FOLDERS.contains(&name.as_str()) {
                walk(&path, files);
            }
        } else if TEXT_FILES.contains(&name.rsplit('.').next().unwrap_or("")) && path.is_file() {
            files.push(path);
        }
    }
}

fn check_file(file: &str, text: &str) -> Vec<Finding> {
    let mut found = forbidden_text(file, text);
    if let Some(name) = file.strip_prefix("crates/").and_then(|f| f.strip_suffix("/Cargo.toml")) {
        found.extend(dependencies(file, name, text));
    }
    if file.ends_with(".rs") {
        let code = code_only(text);
        found.extend(size(file, text));
        found.extend(unsafe_code(file, text, &code));
        found.extend(unfinished(file, &code));
        found.extend(features(file, &code));
        found.extend(globals(file, &code));
    }
    found
}

/// The table of crates: arrows point down only.
fn dependencies(file: &str, name: &str, toml: &str) -> Vec<Finding> {
    let place = |n: &str| ORDER.iter().position(|o| *o == n);
    let finding = |line, message| Finding { file: file.into(), line, message };
    let Some(own) = place(name) else {
        return vec![finding(0, format!("crate {name:?} is not in the table of crates (xtask/src/tidy.rs)"))];
    };
    let mut found = vec![];
    let mut relevant = false; // [dependencies], [build-dependencies], [target.X.dependencies]; tests may use any crate
    for (i, line) in toml.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
        let mut key = line;
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            let (table, inline) = match section.rsplit_once('.') {
                Some((table, last)) if last.starts_with("ferrotron-") => (table, last),
                _ => (section, ""),
            };
            relevant = table.ends_with("dependencies") && !table.ends_with("dev-dependencies");
            key = inline;
        }
        let Some(dep) = key.strip_prefix("ferrotron-").filter(|_| relevant) else { continue };
        let dep = dep.split(['.', '=', ' ']).next().unwrap_or_default();
        let host = HOST_SIDE.iter().find(|(n, _)| *n == name);
        if name == REGISTRY && VENDORS.contains(&dep) {
            continue;
        }
        let message = if place(dep).is_none_or(|d| d >= own) {
            format!("{name} may not depend on {dep}: a crate uses only those before it in the table")
        } else if host.is_some_and(|(_, except)| DEVICE_SIDE.contains(&dep) && !except.contains(&dep)) {
            format!("{name} may not depend on {dep}: it stays off the device side")
        } else if dep == "cpu" && name != REGISTRY {
            format!("{name} may not depend on {dep}: only {REGISTRY} names a device, others get one from it")
        } else {
            continue;
        };
        found.push(finding(i, message));
    }
    found
}

fn size(file: &str, text: &str) -> Vec<Finding> {
    let lines = text.lines().count();
    let is_main = file.ends_with("/main.rs") || file.contains("/src/bin/");
    let limit = if is_main { MAX_MAIN_LINES } else { MAX_LINES };
    if lines <= limit || file.contains("/flags/") {
        return vec![];
    }
    vec![Finding {
        file: file.into(),
        line: limit + 1,
        message: format!("{lines} lines, at most {limit}: split it by meaning"),
    }]
}

fn unsafe_code(file: &str, text: &str, code: &str) -> Vec<Finding> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = vec![];
    for (i, line) in code.lines().enumerate() {
        let Some(at) = word(line, "unsafe") else { continue };
        let mut report =
            |message: &str| found.push(Finding { file: file.into(), line: i + 1, message: message.into() });
        if !UNSAFE_IN.iter().any(|p| file.starts_with(p)) {
            report("no unsafe here: it belongs in kernels, foreign interfaces, shared memory and memory maps");
        }
        let after = line[at + "unsafe".len()..].trim_start();
        let is_block = after.is_empty() || after.starts_with('{') || after.starts_with("impl");
        let reason = |l: &&str| l.contains("SAFETY:");
        if is_block && !lines[i.saturating_sub(SAFETY_WITHIN)..=i].iter().any(reason) {
            report("unsafe without a `// SAFETY:` line above it");
        }
    }
    found
}

fn unfinished(file: &str, code: &str) -> Vec<Finding> {
    let mut found = vec![];
    for (i, line) in code.lines().enumerate() {
        let squeezed: String = line.split_whitespace().collect();
        for what in UNFINISHED {
            if word(&squeezed, what).is_some() {
                let message = format!("{what} has no place here");
                found.push(Finding { file: file.into(), line: i + 1, message });
            }
        }
    }
    found
}

fn features(file: &str, code: &str) -> Vec<Finding> {
    if file.starts_with("crates/backends/") {
        return vec![];
    }
    let is_feature = |line: &str| {
        let squeezed: String = line.split_whitespace().collect();
        squeezed.contains("cfg") && word(&squeezed, "feature=\"").is_some()
    };
    let hits = code.lines().enumerate().filter(|(_, l)| is_feature(l));
    hits.map(|(i, _)| Finding {
        file: file.into(),
        line: i + 1,
        message: "cfg(feature) only in crates/backends: a device is a value, not a build".into(),
    })
    .collect()
}

/// `static mut`, and statics or thread-locals with something that changes inside.
fn globals(file: &str, code: &str) -> Vec<Finding> {
    if GLOBALS_IN.iter().any(|p| file.starts_with(p)) || file.contains("/tests/") {
        return vec![];
    }
    let mut found = vec![];
    let lines: Vec<&str> = code.lines().collect();
    for (i, line) in lines.iter().enumerate() {
        if line.contains("#[cfg(test)]") {
            break; // the tests module ends the file
        }
        let declared = word(line, "static").filter(|&at| at == 0 || !line[..at].ends_with(['\'', '&']));
        let is_global = declared.is_some_and(|at| {
            let rest = [&line[at..], lines.get(i + 1).unwrap_or(&"")].join(" ");
            let kind = rest.split(['=', ';']).next().unwrap_or_default();
            word(kind, "mut").is_some() || GLOBAL_TYPES.iter().any(|t| word_start(kind, t))
        });
        if is_global || word(line, "thread_local!").is_some() || word(line, "lazy_static!").is_some() {
            let message = "no global mutable state: pass it down in a context".into();
            found.push(Finding { file: file.into(), line: i + 1, message });
        }
    }
    found
}

fn forbidden_text(file: &str, text: &str) -> Vec<Finding> {
    if file.starts_with("xtask/src/tidy") {
        return vec![]; // the list itself, and its tests
    }
    let mut found = vec![];
    for (i, line) in text.lines().enumerate() {
        for what in FORBIDDEN_TEXT {
            // "network/work/" is another path than "/work/"
            let mut hits = line.match_indices(what).map(|(at, _)| line[..at].chars().next_back());
            if hits.any(|before| !before.is_some_and(|c| c.is_alphanumeric() || "_-.}".contains(c))) {
                let message = format!("{what:?} has no place in the repository");
                found.push(Finding { file: file.into(), line: i + 1, message });
            }
        }
    }
    found
}

/// Asks cargo what a default build compiles.
fn no_c_compiler(root: &Path) -> Vec<Finding> {
    let finding = |message| Finding { file: "Cargo.toml".into(), line: 0, message };
    let tree = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["tree", "-e", "normal,build", "--prefix", "none"])
        .current_dir(root)
        .output();
    match tree {
        Ok(out) if out.status.success() => {
            let names = c_builders(&String::from_utf8_lossy(&out.stdout));
            names
                .into_iter()
                .map(|n| finding(format!("the default build uses the crate {n:?}: it must compile no C")))
                .collect()
        }
        Ok(out) => vec![finding(format!("cargo tree failed: {}", String::from_utf8_lossy(&out.stderr)))],
        Err(e) => vec![finding(format!("cannot run cargo tree: {e}"))],
    }
}

fn c_builders(tree: &str) -> Vec<&'static str> {
    let uses = |name: &&str| tree.lines().any(|l| l.split(' ').next() == Some(*name));
    C_BUILDERS.into_iter().filter(uses).collect()
}

fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where `what` stands in `line` as a word of its own.
fn word(line: &str, what: &str) -> Option<usize> {
    let ends_in_ident = what.ends_with(is_ident);
    line.match_indices(what).map(|(at, _)| at).find(|&at| {
        let before = line[..at].chars().next_back().is_some_and(is_ident) && what.starts_with(is_ident);
        let after = line[at + what.len()..].chars().next().is_some_and(is_ident) && ends_in_ident;
        !before && !after
    })
}

/// True if a word that begins with `what` stands in `line`: AtomicU64 begins with Atomic, but `Cell` is no `CellId`.
fn word_start(line: &str, what: &str) -> bool {
    if what != "Atomic" {
        return word(line, what).is_some();
    }
    line.match_indices(what).any(|(at, _)| !line[..at].chars().next_back().is_some_and(is_ident))
}

/// The text with comments and the insides of string and character literals blanked; lines stay where they are.
fn code_only(text: &str) -> String {
    let s: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let blank = |out: &mut String, part: &[char]| out.extend(part.iter().map(|&c| if c == '\n' { c } else { ' ' }));
    let mut i = 0;
    while i < s.len() {
        let rest = &s[i..];
        let in_word = i > 0 && is_ident(s[i - 1]);
        let skip = match rest {
            ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => block_comment(rest),
            ['r', ..] | ['b', 'r', ..] | ['c', 'r', ..] if !in_word => raw_string(rest),
            ['"', ..] => 1 + quoted(&rest[1..], '"'),
            // A character, not a lifetime: 'x' or an escape.
            ['\'', '\\', ..] => 1 + quoted(&rest[1..], '\''),
            ['\'', _, '\'', ..] => 3,
            _ => 0,
        };
        if skip == 0 {
            out.push(s[i]);
            i += 1;
        } else {
            let part = &rest[..skip.min(rest.len())];
            if part[0] == '"' {
                out.push('"');
                blank(&mut out, &part[1..]);
            } else {
                blank(&mut out, part);
            }
            i += part.len();
        }
    }
    out
}

fn block_comment(s: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < s.len() {
        match s[i..] {
            ['/', '*', ..] => (depth, i) = (depth + 1, i + 2),
            ['*', '/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

/// Length of `r"…"`, `r#"…"#` and their b and c forms; 0 if it is something else.
fn raw_string(s: &[char]) -> usize {
    let prefix = s.iter().position(|&c| c == 'r').map_or(0, |p| p + 1);
    let hashes = s[prefix..].iter().take_while(|&&c| c == '#').count();
    let open = prefix + hashes + 1;
    if s.get(open - 1) != Some(&'"') {
        return 0;
    }
    let closes = |i: &usize| s[*i] == '"' && s[i + 1..].iter().take(hashes).filter(|&&c| c == '#').count() == hashes;
    (open..s.len()).find(closes).map_or(s.len(), |i| i + 1 + hashes)
}

/// Characters up to and including the closing quote.
fn quoted(s: &[char], quote: char) -> usize {
    let mut i = 0;
    while i < s.len() && s[i] != quote {
        i += if s[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

#[cfg(test)]
#[path = "tidy_tests.rs"]
mod tests;
