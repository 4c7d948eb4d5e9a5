//! Pictures of a timeline, as text.

use std::fmt::Write;

use crate::Step::{self, *};
use crate::Timeline;

/// Letters for chunks, when there are several.
const CHUNKS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

impl Timeline {
    /// One line a stage, one cell for each `unit` of time: `F3` forward of micro-batch 3, `B` backward (of the input,
    /// when split), `W` weight gradients, `-` goes on, `.` idle. With several chunks a letter follows: `F3b`.
    pub fn diagram(&self, unit: u64) -> String {
        let unit = unit.max(1);
        let cells = usize::try_from(self.makespan.div_ceil(unit)).unwrap_or(usize::MAX).min(10_000);
        let chunks = self.stages.iter().map(|s| s.chunk_peaks.len()).max().unwrap_or(1);
        let rows: Vec<Vec<String>> = self
            .stages
            .iter()
            .map(|s| {
                let mut row = vec![".".to_string(); cells];
                for span in &s.spans {
                    let (first, end) = ((span.start / unit) as usize, (span.end.div_ceil(unit)) as usize);
                    for (i, cell) in row.iter_mut().enumerate().take(end).skip(first) {
                        *cell = if i == first { label(&span.step, chunks) } else { "-".into() };
                    }
                }
                row
            })
            .collect();
        let width = rows.iter().flatten().map(String::len).max().unwrap_or(1);
        let mut out = String::new();
        for (stage, row) in rows.iter().enumerate() {
            let mut line = format!("stage {stage}:");
            for cell in row {
                // Writing to a string cannot fail.
                let _ = write!(line, " {cell:width$}");
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        let peaks: Vec<String> = self.stages.iter().map(|s| s.peak.to_string()).collect();
        let _ = writeln!(
            out,
            "time {}, bubble {:.1} %, live micro-batches at most {}",
            self.makespan,
            100.0 * self.bubble_fraction(),
            peaks.join(" ")
        );
        out
    }
}

fn label(step: &Step, chunks: usize) -> String {
    let (chunk, mb) = step.place();
    let kind = match step {
        Forward { .. } => 'F',
        BackwardWeight { .. } => 'W',
        _ => 'B',
    };
    match CHUNKS.get(chunk) {
        _ if chunks == 1 => format!("{kind}{mb}"),
        Some(letter) => format!("{kind}{mb}{}", char::from(*letter)),
        None => format!("{kind}{mb}.{chunk}"),
    }
}
