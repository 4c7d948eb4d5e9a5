//! What the mock of a profiler heard.

use std::path::Path;

/// A thread's part.
#[derive(Debug, Default, PartialEq)]
pub struct Heard {
    /// The name that it was given, else its number.
    pub thread: String,
    /// Its ranges as they opened, each with those around it: `iteration/forward-backward`.
    pub ranges: Vec<String>,
    /// The profiler's switch: how many ranges had opened, how many were open, and the mock's words.
    pub switches: Vec<(usize, usize, String)>,
}

/// Reads what the mock wrote. Ranges must be well nested on each thread and all closed at the end, and no rule be broken.
pub fn heard(file: &Path) -> Vec<Heard> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut threads: Vec<(&str, Vec<&str>, Heard)> = vec![];
    for line in text.lines() {
        let (number, what) = line.split_once(' ').unwrap();
        let at = threads.iter().position(|t| t.0 == number).unwrap_or_else(|| {
            threads.push((number, vec![], Heard { thread: number.into(), ..Heard::default() }));
            threads.len() - 1
        });
        let (_, open, heard) = &mut threads[at];
        match what.split_once(' ').unwrap_or((what, "")) {
            ("push", name) => {
                open.push(name);
                heard.ranges.push(open.join("/"));
            }
            ("pop", "") => drop(open.pop().expect("a range is open")),
            ("thread", name) => {
                let (of, name) = name.split_once(' ').unwrap();
                assert_eq!(of, number, "a thread names itself");
                heard.thread = name.into();
            }
            ("profiler", what) => heard.switches.push((heard.ranges.len(), open.len(), what.into())),
            ("attached", "") => {}
            _ => panic!("{line}\n{text}"),
        }
    }
    for (number, open, _) in &threads {
        assert!(open.is_empty(), "thread {number} leaves {open:?} open\n{text}");
    }
    threads.into_iter().map(|(_, _, heard)| heard).collect()
}
