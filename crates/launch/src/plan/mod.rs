//! From the typed command line and the surroundings to what will be started, with every mistake at once.

mod place;
mod pool;
mod read;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use ferrotron_config::{Severity, Violation};

use crate::devices::Counts;
use crate::flags::Typed;
use crate::hosts::{HostSlots, device_list};
use crate::outputs::{Asked, Outputs, outputs};
use crate::program::{self, Program};
use crate::remote::{self, Remote};
use pool::Pool;

/// torchrun's port.
pub const DEFAULT_PORT: u16 = 29500;
/// The most nodes of a run.
const MAX_NODES: usize = 1 << 16;
/// A checkpoint of a large model may take minutes; a second signal ends at once.
const DEFAULT_GRACE: u64 = 300;

/// What the launcher reads from outside, taken once.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// The working folder.
    pub cwd: PathBuf,
    /// The running binary; ours are looked for beside it.
    pub exe: Option<PathBuf>,
    /// The name of this machine.
    pub host: String,
    /// Its devices.
    pub counts: Counts,
}

impl Surroundings {
    /// Those of this process.
    ///
    /// # Errors
    /// The working folder is gone.
    pub fn of_process() -> std::io::Result<Surroundings> {
        let env: BTreeMap<String, String> =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect();
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = if host.trim().is_empty() { "localhost".to_string() } else { host.trim().to_string() };
        let counts = Counts::of_node(std::path::Path::new("/dev"), &|name| env.get(name).cloned());
        Ok(Surroundings { cwd: std::env::current_dir()?, exe: std::env::current_exe().ok(), host, counts, env })
    }

    /// A variable that is set and not blank.
    pub fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(|v| v.trim()).filter(|v| !v.is_empty())
    }
}

/// The port of rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// As the user or the other nodes say.
    Given(u16),
    /// Any that is free; only where all ranks are on this node.
    Free,
}

/// The ranks of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    /// Which node this is.
    pub node_rank: usize,
    /// Ranks of every node.
    pub slots: Vec<usize>,
    /// Where rank 0 listens.
    pub master_addr: String,
    /// The port there.
    pub master_port: Port,
    /// `TORCHELASTIC_RUN_ID`.
    pub run_id: String,
    /// `ROLE_NAME`.
    pub role: String,
    /// Starts after the first one.
    pub max_restarts: u32,
    /// Time to end after a signal.
    pub grace: Duration,
    /// Devices of this node's ranks, where they are restricted.
    pub devices: Option<Vec<usize>>,
    /// Where the streams go.
    pub outputs: Outputs,
    /// `OMP_NUM_THREADS`, where it is not set.
    pub omp_threads: Option<usize>,
    /// What the ranks run.
    pub program: Program,
    /// Signals come as words on standard input; its end is SIGTERM.
    pub control_stdin: bool,
    /// File with the launcher's process id.
    pub pid_file: Option<PathBuf>,
}

impl Local {
    /// Ranks of all nodes.
    pub fn world_size(&self) -> usize {
        self.slots.iter().sum()
    }

    /// Ranks of this node.
    pub fn local_world_size(&self) -> usize {
        self.slots[self.node_rank]
    }

    /// The rank of local rank 0.
    pub fn first_rank(&self) -> usize {
        self.slots[..self.node_rank].iter().sum()
    }
}

/// What a command line asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Ranks on this node.
    Local(Box<Local>),
    /// A launcher on each of several nodes, reached from here.
    Remote(Box<Remote>),
}

/// A plan with what should be said about it.
#[derive(Clone, Debug)]
pub struct Planned {
    /// What will be started.
    pub plan: Plan,
    /// Sentences for the user.
    pub notices: Vec<String>,
}

/// Works out the plan.
///
/// # Errors
/// Every mistake of the command line and its surroundings.
pub fn plan(typed: &Typed, around: &Surroundings) -> Result<Planned, Vec<Violation>> {
    let mut reader = Reader { typed, around, faults: typed.violations.clone(), notices: typed.notices.clone() };
    let hosts = reader.hosts();
    let remote = hosts.as_ref().filter(|h| h.reached).map(|h| h.list.clone());
    let plan = match remote {
        Some(hosts) => reader.remote(hosts).map(|r| Plan::Remote(Box::new(r))),
        None => reader.local(hosts).map(|l| Plan::Local(Box::new(l))),
    };
    match plan {
        Some(plan) if reader.faults.is_empty() => Ok(Planned { plan, notices: reader.notices }),
        _ => Err(reader.faults),
    }
}

struct Reader<'a> {
    typed: &'a Typed,
    around: &'a Surroundings,
    faults: Vec<Violation>,
    notices: Vec<String>,
}

impl Reader<'_> {
    /// The ranks of this node.
    fn local(&mut self, hosts: Option<Pool>) -> Option<Local> {
        let (nodes, slots) = self.slots(hosts.as_ref());
        let node_rank = nodes.ok_or(()).and_then(|n| self.node_rank(n));
        let first_host = hosts.as_ref().map(|h| remote::without_user(&h.list[0].name));
        let (master_addr, master_port) = self.master(nodes.unwrap_or(1), node_rank.ok(), first_host);
        let max_restarts = self.number("max-restarts", 0..=u32::MAX);
        let grace = self.grace();
        let devices = match self.typed.get("visible-devices") {
            Some(text) => match device_list(text) {
                Some(devices) => Some(devices),
                None => {
                    self.fault(&["--visible-devices"], format!("'{text}' is no list of devices"), "0,1,4-7");
                    None
                }
            },
            // deepspeed restricts the ranks to what --include and --exclude leave.
            None => hosts
                .filter(|h| h.list.iter().any(|host| host.devices.iter().enumerate().any(|(i, d)| i != *d)))
                .and_then(|h| Some(h.list.get(node_rank.ok()?)?.devices.clone())),
        };
        let program = self.program();
        let (slots, node_rank) = (slots?, node_rank.ok()?);
        let ranks = slots[node_rank];
        if let Some(devices) = devices.as_ref().filter(|d| d.len() < ranks) {
            let what = format!("{} devices for {ranks} ranks", devices.len());
            self.fault(&["--visible-devices"], what, "a device for each rank");
        }
        let each_rank_log = self.typed.get("enable-each-rank-log");
        let asked = Asked {
            tee: self.typed.get("tee"),
            redirects: self.typed.get("redirects").or(each_rank_log.map(|_| "3")),
            log_dir: self.typed.get("log-dir").or(each_rank_log),
            filter: self.typed.get("local-ranks-filter"),
        };
        let outputs = outputs(asked, ranks, &mut self.faults);
        Some(Local {
            node_rank,
            slots,
            master_addr: master_addr?,
            master_port: master_port?,
            run_id: self.run_id(),
            role: self.typed.get("role").unwrap_or("default").to_string(),
            max_restarts: max_restarts.ok()?.unwrap_or(0),
            grace: grace?,
            devices,
            outputs,
            omp_threads: self.omp_threads(ranks),
            program: program?,
            control_stdin: self.typed.has("control-stdin"),
            pid_file: self.typed.get("pid-file").map(|p| self.around.cwd.join(p)),
        })
    }

    fn grace(&mut self) -> Option<Duration> {
        let seconds = self.number("grace-seconds", 0..=86_400u64).ok()?;
        Some(Duration::from_secs(seconds.unwrap_or(DEFAULT_GRACE)))
    }

    fn run_id(&self) -> String {
        self.typed.get("rdzv-id").unwrap_or("none").to_string()
    }

    /// Threads of the CPU device for each rank, unless the user says: torchrun takes 1, this takes an even share.
    fn omp_threads(&mut self, ranks: usize) -> Option<usize> {
        if ranks == 1 || self.around.var("OMP_NUM_THREADS").is_some() {
            return None;
        }
        let threads = (self.around.counts.cpus / ranks).max(1);
        let cpus = self.around.counts.cpus;
        self.notices.push(format!(
            "OMP_NUM_THREADS is set to {threads} for each rank ({cpus} processors, {ranks} ranks); set it yourself to tune"
        ));
        Some(threads)
    }

    /// The program's word, without the leading packages of a module.
    fn program_word(&mut self) -> Option<(String, Vec<String>)> {
        let Some((word, args)) = self.typed.program.clone() else {
            let violation = Violation::new(Severity::Missing, &["PROGRAM"], "there is no program to run");
            self.faults.push(violation.legal("ferrotron launch [flags] pretrain_gpt [its flags]"));
            return None;
        };
        let module = self.typed.has("module") && !word.contains('/') && !word.ends_with(".py");
        let word = if module { word.rsplit('.').next().unwrap_or_default().to_string() } else { word };
        Some((word, args))
    }

    fn program(&mut self) -> Option<Program> {
        let (word, args) = self.program_word()?;
        let beside = self.around.exe.as_deref().and_then(|e| e.parent());
        let search = self.around.env.get("PATH").map_or("", String::as_str);
        match program::resolve(&word, self.typed.has("no-python"), beside, search, &self.around.cwd) {
            Ok(path) => Some(Program { path, args }),
            Err(violation) => {
                self.faults.push(*violation);
                None
            }
        }
    }

    /// A launcher on each of the hosts.
    fn remote(&mut self, hosts: Vec<HostSlots>) -> Option<Remote> {
        let grace = self.grace();
        let (word, args) = self.program_word()?;
        if word.ends_with(".py")
            && program::binary_of(&word).is_none()
            && !self.typed.has("no-python")
            && let Err(violation) = program::resolve(&word, false, None, "", &self.around.cwd)
        {
            self.faults.push(*violation);
        }
        match remote::remote(self.typed, self.around, hosts, (word, args), grace?) {
            Ok(remote) => Some(remote),
            Err(faults) => {
                self.faults.extend(faults);
                None
            }
        }
    }
}
