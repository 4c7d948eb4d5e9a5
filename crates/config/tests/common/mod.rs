//! What the test files share: argv in, violations or a configuration out.
#![allow(dead_code, reason = "each test binary uses its own part")]

use ferrotron_config::{Environment, Refused, Resolved, Severity, Table, parse, validate};

/// A small command line that trains.
pub const TINY: &str = "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 \
    --max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 4 --train-iters 10 --lr 1e-3 \
    --lr-decay-style constant --split 90,10,0 --eval-iters 1 --eval-interval 5 --log-interval 1 \
    --mock-data --tokenizer-type NullTokenizer --vocab-size 100";

pub fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(String::from).collect()
}

pub fn run(argv: &[String], ranks: usize) -> Result<Resolved, Box<Refused>> {
    let table = Table::pretrain();
    let parsed = parse(&table, argv, &|path| {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
        std::fs::read_to_string(std::path::Path::new(root).join(path))
    });
    validate(&table, parsed.args, &Environment { world_size: ranks, ..Environment::default() }, parsed.violations)
}

/// TINY and more flags, on one rank, which must be accepted.
pub fn tiny(more: &str) -> Resolved {
    match run(&words(&format!("{TINY} {more}")), 1) {
        Ok(resolved) => resolved,
        Err(refused) => panic!("{more}: {}", ferrotron_config::report("test", &refused.violations)),
    }
}

/// All violations of a command line as one text; empty if it is accepted.
pub fn faults(argv: &[String], ranks: usize) -> String {
    run(argv, ranks).err().map_or_else(String::new, |r| ferrotron_config::report("test", &r.violations))
}

/// The severities of a command line's violations.
pub fn severities(argv: &[String], ranks: usize) -> Vec<Severity> {
    run(argv, ranks).err().map_or_else(Vec::new, |r| r.violations.iter().map(|v| v.severity).collect())
}
