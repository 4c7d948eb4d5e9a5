//! DeepSpeed's JSON file (`--deepspeed --deepspeed_config FILE`): read as DeepSpeed reads it, merged into the arguments.
//!
//! `hjson` reads the text, `keys` says what becomes of each key, `stated` judges what the file asks for, `merge` and its
//! neighbours put that into the arguments, `batch` completes the batch sizes. As in Megatron-DeepSpeed the file counts only with
//! `--deepspeed`. Unlike there, a value that the command line states as well must be the same.

mod acts;
mod batch;
mod hjson;
pub mod keys;
mod merge;
mod node;
mod optimizer;
mod scheduler;
mod source;
mod stated;

pub use batch::{NoTriangle, Triangle, triangle};
pub(crate) use source::File;

use crate::parser::{Parsed, ReadFile};
use crate::raw::{Origin, RawArgs};
use crate::validate::checker::Checker;
use crate::violation::{Severity, Violation};
use merge::Merge;
use stated::Stated;

/// Reads the file that the arguments name, if they turn DeepSpeed on.
pub(crate) fn read(parsed: &mut Parsed, read: &ReadFile) {
    let names = |args: &RawArgs, dest| args.text(dest).map(|word| (args.spelling(dest), word.to_string()));
    let (new, old) = (names(&parsed.args, "deepspeed_config"), names(&parsed.args, "deepscale_config"));
    if let (Some((a, _)), Some((b, _))) = (&new, &old) {
        let what = format!("{a} and {b} both name the file");
        parsed.violations.push(Violation::new(Severity::Invalid, &[a, b], what).legal(a.clone()));
    }
    let on = parsed.args.flag("deepspeed") || parsed.args.flag("deepscale");
    let Some((flag, word)) = new.or(old).filter(|_| on) else { return };
    match source::load(&flag, &word, read) {
        Ok(file) => parsed.args.deepspeed = Some(file),
        Err(violation) => {
            parsed.violations.push(*violation);
            // What only the file states is not missing.
            for dest in ["micro_batch_size", "global_batch_size", "lr"] {
                if !parsed.args.is_set(dest) {
                    parsed.args.mark_broken(dest);
                }
            }
        }
    }
}

/// A file whose values are in the arguments but for the batch sizes, which need the ranks.
pub(crate) struct Pending(Option<Merge>);

/// Merges the file into the arguments, as far as the ranks need not be known.
pub(crate) fn check(c: &mut Checker) -> Pending {
    let Some(file) = c.args.deepspeed.take() else {
        let named = ["deepspeed_config", "deepscale_config"].into_iter().find(|dest| c.args.text(dest).is_some());
        if let Some(dest) = named.filter(|_| !c.args.flag("deepspeed") && !c.args.flag("deepscale")) {
            let (flag, word) = (c.args.spelling(dest), c.args.value(dest).to_string());
            c.warn(format!("{flag} {word} is not read: without --deepspeed Megatron-DeepSpeed passes over it too"));
        }
        return Pending(None);
    };
    let mut stated = Stated::of(c, &file);
    stated.report(c);
    let mut m = Merge::new(stated);
    acts::precision(&mut m, c);
    acts::layout(&mut m, c);
    acts::zero(&mut m, c, &file.root);
    scheduler::merge(&mut m, c);
    optimizer::merge(&mut m, c);
    acts::logs(&mut m, c);
    batch::compare(&mut m, c);
    m.report(c);
    Pending(Some(m))
}

impl Pending {
    /// Completes the batch sizes for so many data-parallel ranks (0: unknown).
    pub fn batch(self, c: &mut Checker, ranks: usize) {
        if let Pending(Some(mut m)) = self {
            batch::merge(&mut m, c, ranks);
        }
    }
}

/// Tells of every violation of a value that came from the file where it stands.
pub(crate) fn name_places(args: &RawArgs, violations: &mut [Violation]) {
    for (_, entry) in args.iter() {
        let Origin::DeepSpeed { path, line, key } = &entry.origin else { continue };
        let text = format!("{} is {key} of {path}:{line}", entry.spelling);
        for v in violations.iter_mut().filter(|v| v.flags.contains(&entry.spelling)) {
            v.why = Some(match v.why.take() {
                Some(why) => format!("{why}; {text}"),
                None => text.clone(),
            });
        }
    }
}
