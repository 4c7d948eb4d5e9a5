//! Every flag of the launcher, by origin, with what becomes of it.

/// What becomes of a flag that is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It does what it does upstream.
    Honoured,
    /// It cannot matter here; the text says why. Printed as a notice.
    Ignored(&'static str),
    /// It asks for something that is not offered; the text says what to do instead.
    Refused(&'static str),
}

/// One flag.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The name its value is stored under: the long spelling without dashes in front.
    pub name: &'static str,
    /// Other spellings, dashes included.
    pub also: &'static [&'static str],
    /// What the value is called in the help; `None` for a switch.
    pub value: Option<&'static str>,
    /// How far it is honoured.
    pub usage: Use,
    /// One line of help.
    pub help: &'static str,
}

/// A headed part of the table.
pub struct Group {
    /// The heading.
    pub name: &'static str,
    /// Its flags.
    pub rows: &'static [Row],
    /// Whether `PET_<NAME>` in the environment stands in for the flag, as for torchrun.
    pub from_environment: bool,
}

use Use::{Honoured, Ignored, Refused};

const fn row(name: &'static str, value: Option<&'static str>, usage: Use, help: &'static str) -> Row {
    Row { name, also: &[], value, usage, help }
}

const fn named(
    name: &'static str,
    also: &'static [&'static str],
    value: Option<&'static str>,
    usage: Use,
    help: &'static str,
) -> Row {
    Row { name, also, value, usage, help }
}

const ELASTIC: &str = "the number of nodes is fixed for a run; give --nnodes one number";
const NO_PYTHON: &str = "nothing here runs Python";

/// All flags, by origin.
pub const GROUPS: &[Group] = &[
    Group {
        name: "torchrun and torch.distributed.launch",
        from_environment: true,
        rows: &[
            row("nnodes", Some("N"), Honoured, "nodes of the run (N, or N:N)"),
            row("nproc-per-node", Some("N|auto|gpu|npu|cpu"), Honoured, "ranks on this node"),
            row("node-rank", Some("I"), Honoured, "which node this is, from 0"),
            row("master-addr", Some("HOST"), Honoured, "where rank 0 listens"),
            row("master-port", Some("PORT"), Honoured, "the port of rank 0; one node without it takes a free one"),
            row("standalone", None, Honoured, "one node, free port"),
            row("rdzv-backend", Some("NAME"), Honoured, "static or c10d"),
            row("rdzv-endpoint", Some("HOST[:PORT]"), Honoured, "master address and port in one"),
            row("rdzv-id", Some("ID"), Honoured, "name of the run"),
            row("rdzv-conf", Some("K=V,..."), Honoured, "only rank=I has a meaning here"),
            row("max-restarts", Some("N"), Honoured, "start the ranks of this node again so often after a failure"),
            row("local-addr", Some("HOST"), Honoured, "address of this node; node 0 without --master-addr uses it"),
            named(
                "tee",
                &["-t"],
                Some("0..3|I:0..3,..."),
                Honoured,
                "console (prefixed) and log files: 1 out, 2 err, 3 both",
            ),
            named("redirects", &["-r"], Some("0..3|I:0..3,..."), Honoured, "log files only: 1 out, 2 err, 3 both"),
            row("log-dir", Some("DIR"), Honoured, "folder of the log files"),
            row("local-ranks-filter", Some("I,..."), Honoured, "only these local ranks show on the console"),
            row("role", Some("NAME"), Honoured, "ROLE_NAME of the ranks, and their prefix"),
            row("no-python", None, Honoured, "the program is no script: run it as it is"),
            named("module", &["-m"], None, Honoured, "the program is a module's name"),
            row("run-path", None, Honoured, "the program is a script's path"),
            row("use-env", None, Ignored("ranks always read LOCAL_RANK from the environment"), "accepted"),
            row("monitor-interval", Some("SECONDS"), Ignored("an ended rank is noticed at once"), "accepted"),
            row("start-method", Some("NAME"), Ignored("ranks are processes of their own"), "accepted"),
            row("signals-to-handle", Some("LIST"), Ignored("all signals that can be passed on are"), "accepted"),
            row("event-log-handler", Some("NAME"), Ignored("the console has every event"), "accepted"),
            row(
                "numa-binding",
                Some("KIND"),
                Ignored("no cores are bound; start the program under numactl"),
                "accepted",
            ),
            row("logs-specs", Some("NAME"), Refused("use --tee, --redirects and --log-dir"), "refused"),
            row("virtual-local-rank", None, Refused("use ASCEND_RT_VISIBLE_DEVICES or --include"), "refused"),
        ],
    },
    Group {
        name: "deepspeed",
        from_environment: false,
        rows: &[
            named("hostfile", &["-H"], Some("FILE"), Honoured, "lines `host slots=N` (default /job/hostfile if there)"),
            named("include", &["-i"], Some("HOST[:I,...]@..."), Honoured, "only these hosts and devices"),
            named("exclude", &["-e"], Some("HOST[:I,...]@..."), Honoured, "all but these hosts and devices"),
            named("num-gpus", &["--num-accelerators"], Some("N"), Honoured, "ranks on each node"),
            row("num-nodes", Some("N"), Honoured, "the first N hosts"),
            row("launcher", Some("ssh|pdsh|slurm"), Honoured, "how other nodes are reached (default ssh)"),
            row("launcher-args", Some("WORDS"), Honoured, "words for that launcher"),
            row("ssh-port", Some("PORT"), Honoured, "the port of ssh"),
            row("force-multi", None, Honoured, "reach even a single host by the launcher"),
            row("no-ssh", None, Honoured, "one launcher is started on each node, with --node-rank"),
            row("no-ssh-check", None, Honoured, "accepted: there is no check before the start"),
            row("no-local-rank", None, Ignored("--local_rank is never added to the program's words"), "accepted"),
            row("enable-each-rank-log", Some("DIR"), Honoured, "same as --redirects 3 --log-dir DIR"),
            row("bind-cores-to-rank", None, Ignored("no cores are bound; start the program under numactl"), "accepted"),
            row(
                "bind-core-list",
                Some("LIST"),
                Ignored("no cores are bound; start the program under numactl"),
                "accepted",
            ),
            row("save-pid", None, Ignored("--pid-file FILE writes the launcher's process id"), "accepted"),
            row("elastic-training", None, Refused(ELASTIC), "refused"),
            row("min-elastic-nodes", Some("N"), Refused(ELASTIC), "refused"),
            row("max-elastic-nodes", Some("N"), Refused(ELASTIC), "refused"),
            row("autotuning", Some("MODE"), Refused("layouts are searched by `ferrotron plan`"), "refused"),
            row("venv-script", Some("FILE"), Ignored(NO_PYTHON), "accepted"),
        ],
    },
    Group {
        name: "msrun",
        from_environment: false,
        rows: &[
            row("worker-num", Some("N"), Honoured, "ranks in all"),
            row("local-worker-num", Some("N"), Honoured, "ranks on this node"),
            row("join", Some("True|False"), Ignored("the launcher always waits for its ranks"), "accepted"),
            row(
                "cluster-time-out",
                Some("SECONDS"),
                Ignored("ranks wait by --distributed-timeout-minutes"),
                "accepted",
            ),
            row(
                "bind-core",
                Some("True|False"),
                Ignored("no cores are bound; start the program under numactl"),
                "accepted",
            ),
        ],
    },
    Group {
        name: "ferrotron",
        from_environment: false,
        rows: &[
            row("deepspeed", None, Honoured, "deepspeed's defaults: /job/hostfile, a rank on every device"),
            row("grace-seconds", Some("S"), Honoured, "time to end after SIGINT or SIGTERM (default 300)"),
            row("pid-file", Some("FILE"), Honoured, "holds the launcher's process id while it runs"),
            row("slots-per-node", Some("N,N,..."), Honoured, "ranks of every node, where they differ"),
            row("visible-devices", Some("I,..."), Honoured, "devices of this node's ranks"),
            row("control-stdin", None, Honoured, "take signal names from standard input, end when it closes"),
        ],
    },
];

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    GROUPS.iter().flat_map(|g| g.rows.iter())
}

/// The text of `ferrotron launch --help`.
pub fn help() -> String {
    let mut out = String::from(
        "usage: ferrotron launch [flags] PROGRAM [words of the program]\n\n\
         Starts one process a rank, watches them, ends all when one fails. PROGRAM is pretrain_gpt (also under its old\n\
         name pretrain_gpt.py), or the path of an executable. Dashes and underscores in flags are one.\n",
    );
    for group in GROUPS {
        out.push_str(&format!("\n{}:\n", group.name));
        for row in group.rows {
            let value = row.value.map(|v| format!(" {v}")).unwrap_or_default();
            let also = row.also.iter().map(|a| format!("{a}, ")).collect::<String>();
            let help = match row.usage {
                Honoured => row.help.to_string(),
                Ignored(why) => format!("no effect: {why}"),
                Refused(instead) => format!("refused: {instead}"),
            };
            out.push_str(&format!("  {:<44} {help}\n", format!("{also}--{}{value}", row.name)));
        }
    }
    out
}
