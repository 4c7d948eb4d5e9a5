//! The words of a launcher before the flags of the program: `torchrun --nproc_per_node 8 pretrain_gpt.py --lr 1e-4`.
//!
//! Users paste whole lines. What belongs to torchrun, `python -m torch.distributed.run`, deepspeed or msrun is split
//! off, so that it is not reported as thirty unknown flags.

/// What a launcher's words say about ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LauncherWords {
    /// The words, the script's name last; empty when the line begins with the program's own flags.
    pub words: Vec<String>,
    /// Ranks of a node: `--nproc_per_node`, `--num_gpus`.
    pub ranks_per_node: Option<usize>,
    /// Nodes: `--nnodes` (of a range the lower bound), `--num_nodes`.
    pub nodes: Option<usize>,
    /// Ranks in all: msrun's `--worker_num`.
    pub workers: Option<usize>,
}

impl LauncherWords {
    /// Ranks in all, if the words say how many.
    pub fn world_size(&self) -> Option<usize> {
        let product = || self.ranks_per_node?.checked_mul(self.nodes.unwrap_or(1));
        self.workers.or_else(product).filter(|n| *n > 0)
    }
}

/// Programs that start ranks, and what may stand before them.
const PROGRAMS: &[&str] = &[
    "torchrun",
    "deepspeed",
    "msrun",
    "ft_launcher",
    "python",
    "python3",
    "uv",
    "run",
    "srun",
    "mpirun",
    "bash",
    "sh",
    "numactl",
    "nohup",
    "accelerate",
    "launch",
    "horovodrun",
];

/// Flags of launchers that take no value.
const SWITCHES: &[&str] = &[
    "-m",
    "-u",
    "--module",
    "--standalone",
    "--no-python",
    "--no_python",
    "--use-env",
    "--use_env",
    "--run-path",
    "--run_path",
    "--no-local-rank",
    "--no_local_rank",
    "--force-multi",
    "--force_multi",
    "--no-ssh",
    "--no_ssh",
    "--enable-each-rank-log",
];

/// Flags by which a line is known to begin with a launcher's words although it names none.
const TELLING: &[&str] = &[
    "nproc-per-node",
    "nnodes",
    "node-rank",
    "rdzv-endpoint",
    "rdzv-backend",
    "rdzv-id",
    "num-gpus",
    "num-nodes",
    "hostfile",
    "worker-num",
    "local-worker-num",
    "standalone",
    "master-addr",
    "master-port",
];

/// Splits a command line into the launcher's words (with the script) and the program's own.
///
/// A line without a script, or with anything unclear before it, is returned whole: the parser then says what it makes
/// of it.
pub fn split_launcher(argv: &[String]) -> (LauncherWords, &[String]) {
    let whole = (LauncherWords::default(), argv);
    let Some(first) = argv.first() else { return whole };
    let name = |flag: &str| flag.trim_start_matches('-').split('=').next().unwrap_or_default().replace('_', "-");
    let starts = is_script(first)
        || PROGRAMS.contains(&base_name(first))
        || (first.starts_with('-') && TELLING.contains(&name(first).as_str()));
    if !starts {
        return whole;
    }
    let mut found = LauncherWords::default();
    let mut at = 0;
    while let Some(word) = argv.get(at) {
        if is_script(word) {
            found.words = argv[..=at].to_vec();
            return (found, &argv[at + 1..]);
        }
        if !word.starts_with('-') {
            // A program, or the module behind `-m`.
            let module = at > 0 && matches!(argv[at - 1].as_str(), "-m" | "--module");
            if !module && !PROGRAMS.contains(&base_name(word)) {
                return whole;
            }
            at += 1;
            continue;
        }
        let (flag, mut value) = match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word.as_str(), None),
        };
        at += 1;
        if value.is_none() && !SWITCHES.contains(&flag) {
            value = argv.get(at).map(String::as_str).filter(|v| !v.starts_with('-') && !is_script(v));
            at += usize::from(value.is_some());
        }
        let number = value.and_then(|v| v.split(':').next()).and_then(|v| v.parse::<usize>().ok());
        match name(flag).as_str() {
            "nproc-per-node" | "num-gpus" => found.ranks_per_node = number,
            "nnodes" | "num-nodes" => found.nodes = number,
            "worker-num" => found.workers = number,
            _ => {}
        }
    }
    whole
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// A Python file, or one of our programs.
fn is_script(word: &str) -> bool {
    !word.starts_with('-') && (word.ends_with(".py") || matches!(base_name(word), "pretrain_gpt" | "pretrain_gpt.sh"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> (Option<usize>, usize, String) {
        let argv: Vec<String> = line.split_whitespace().map(String::from).collect();
        let (found, rest) = split_launcher(&argv);
        (found.world_size(), found.words.len(), rest.join(" "))
    }

    #[test]
    fn launchers_of_every_kind_are_split_off() {
        let flags = "--lr 1e-4 --spec model.py f";
        for (launcher, ranks) in [
            (
                "torchrun --nproc_per_node 8 --nnodes 2 --node_rank 0 --master_addr h --master_port 6000 pretrain_gpt.py",
                Some(16),
            ),
            ("torchrun --standalone --nproc-per-node=4 /a/pretrain_gpt.py", Some(4)),
            ("python -u -m torch.distributed.launch --nproc_per_node 4 --nnodes 2:4 pretrain_gpt2.py", Some(8)),
            ("--nproc_per_node 8 --use_env pretrain_gpt.py", Some(8)),
            ("deepspeed --num_gpus=8 --num_nodes=2 --hostfile hosts pretrain_gpt.py", Some(16)),
            ("msrun --worker_num 16 --local_worker_num 8 --join=False pretrain_gpt.py", Some(16)),
            ("/usr/bin/python3 pretrain_gpt.py", None),
            ("bash examples/pretrain_gpt.sh", None),
            ("torchrun --nproc_per_node gpu pretrain_gpt.py", None),
        ] {
            let words = launcher.split_whitespace().count();
            let (world, split_off, rest) = split(&format!("{launcher} {flags}"));
            // `examples/pretrain_gpt.sh` is a script like the Python one.
            assert_eq!((world, split_off, rest.as_str()), (ranks, words, flags), "{launcher}");
        }
    }

    #[test]
    fn the_programs_own_flags_are_left_alone() {
        for line in [
            "",
            "--lr 1e-4 --spec model.py f",
            "--num-layers 2",
            "@file.args",
            "stray pretrain_gpt.py",
            "torchrun --nproc_per_node 8",
        ] {
            assert_eq!(split(line), (None, 0, line.to_string()));
        }
    }
}
