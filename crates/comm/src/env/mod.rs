//! Who this process is, from the variables of whatever started it.
//!
//! | launcher | tells |
//! |---|---|
//! | torchrun, `torch.distributed.launch`, deepspeed, a script | RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_* |
//! | Slurm's srun | SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_LOCALID, the node list |
//! | Open MPI | OMPI_COMM_WORLD_* |
//! | MPICH, Intel MPI, PALS | PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS |
//! | MVAPICH2 | MV2_COMM_WORLD_* |
//! | Kubernetes PyTorchJob | PET_*, beside RANK and WORLD_SIZE of pods |
//! | Volcano | VC_*_HOSTS, VC_TASK_INDEX |
//!
//! RANK and WORLD_SIZE win where both are there: a torchrun inside an srun or mpirun speaks for its workers.

mod slurm;

use std::path::PathBuf;
use std::time::Duration;

use crate::store::{Notify, RendezvousOptions};

/// Port of the store when nothing tells another: torch's.
pub const DEFAULT_PORT: u16 = 29500;
/// Ports that are derived from a job's id, so that two jobs on one host rarely meet.
const DERIVED_PORTS: std::ops::Range<u64> = 20_000..30_000;

/// What started this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Nothing: one process.
    None,
    /// torchrun, deepspeed, our own launcher, or a script that sets the same variables.
    Torch,
    /// srun.
    Slurm,
    /// Open MPI's mpirun.
    OpenMpi,
    /// Hydra (MPICH, Intel MPI) or PALS.
    Pmi,
    /// MVAPICH2.
    Mvapich,
    /// A pod of a PyTorchJob with one process.
    PyTorchJob,
    /// A pod of a Volcano job with one process.
    Volcano,
}

/// This process's place among all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankEnv {
    /// What told.
    pub launcher: Launcher,
    /// Global rank.
    pub rank: usize,
    /// Ranks in all.
    pub world: usize,
    /// Rank on this host: which device to take.
    pub local_rank: usize,
    /// Ranks on this host, if told.
    pub local_world: Option<usize>,
    /// Host of rank 0's store, as told.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The launcher serves the store there; otherwise rank 0 does.
    pub served: bool,
    /// Run and restart count, for keys in a store that outlives a restart.
    pub run: String,
    /// Where the launcher wants to read why this process failed.
    pub error_file: Option<PathBuf>,
    /// Network interfaces for CPU collectives: GLOO_SOCKET_IFNAME.
    pub interface: Option<String>,
}

/// All that is wrong with the variables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the launcher's variables contradict each other:\n  {}", .0.join("\n  "))]
pub struct EnvError(pub Vec<String>);

/// Reads variables and collects what is wrong with them.
struct Reader<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).map(|v| v.trim().to_string()).filter(|v| !v.is_empty())
    }

    fn number(&mut self, name: &str) -> Option<usize> {
        let text = self.text(name)?;
        let n = text.parse();
        if n.is_err() {
            self.problems.push(format!("{name}={text} is not a number"));
        }
        n.ok()
    }

    /// The first that is set.
    fn first(&mut self, names: &[&str]) -> Option<usize> {
        names.iter().find(|n| self.text(n).is_some()).and_then(|n| self.number(n))
    }

    fn wrong(&mut self, what: String) {
        self.problems.push(what);
    }
}

/// What a launcher told, before the common checks.
struct Told {
    launcher: Launcher,
    rank: usize,
    world: usize,
    local_rank: usize,
    local_world: Option<usize>,
    /// Host and port where MASTER_ADDR and MASTER_PORT are not set.
    host: Option<String>,
    port: u16,
    run: String,
}

impl RankEnv {
    /// Reads the variables that `get` gives.
    ///
    /// ```
    /// # use ferrotron_comm::env::RankEnv;
    /// let set = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "node0")];
    /// let get = |name: &str| set.iter().find(|v| v.0 == name).map(|v| v.1.to_string());
    /// let env = RankEnv::read(&get).unwrap();
    /// assert_eq!((env.rank, env.world, env.host.as_str(), env.port), (1, 2, "node0", 29500));
    /// ```
    pub fn read(get: &dyn Fn(&str) -> Option<String>) -> Result<RankEnv, EnvError> {
        let mut r = Reader { get, problems: vec![] };
        let told = tell(&mut r);
        let env = told.and_then(|t| complete(&mut r, t));
        match env {
            Some(env) if r.problems.is_empty() => Ok(env),
            _ => Err(EnvError(r.problems)),
        }
    }
}

impl RankEnv {
    /// How this rank meets the others. `notify` hears what a wait is waiting for, every five seconds.
    pub fn rendezvous(&self, timeout: Duration, notify: Notify) -> RendezvousOptions {
        RendezvousOptions {
            rank: self.rank,
            world: self.world,
            host: self.host.clone(),
            port: self.port,
            served: self.served,
            run: self.run.clone(),
            timeout,
            tell_every: Duration::from_secs(5),
            notify,
        }
    }
}

/// The first launcher that told. `None` only with a problem noted.
fn tell(r: &mut Reader<'_>) -> Option<Told> {
    let torch = (r.text("RANK").is_some(), r.text("WORLD_SIZE").is_some());
    if torch == (true, true) {
        return told_by_torch(r);
    }
    let other = slurm::tell(r)
        .or_else(|| told_by_mpi(r, Launcher::OpenMpi, &OMPI))
        .or_else(|| told_by_mpi(r, Launcher::Mvapich, &MVAPICH))
        .or_else(|| told_by_mpi(r, Launcher::Pmi, &PMI))
        .or_else(|| told_by_pytorchjob(r))
        .or_else(|| told_by_volcano(r));
    if let Some(told) = other {
        for (name, value) in [("RANK", told.rank), ("WORLD_SIZE", told.world)] {
            if let Some(set) = r.number(name).filter(|set| *set != value) {
                let launcher = told.launcher;
                r.wrong(format!("{name}={set}, but {launcher:?} says {value}: unset it, or set RANK and WORLD_SIZE"));
            }
        }
        return Some(told);
    }
    if !r.problems.is_empty() {
        return None;
    }
    match (r.number("RANK"), r.number("WORLD_SIZE")) {
        (Some(rank), None) if rank > 0 => r.wrong(format!("RANK={rank} is set without WORLD_SIZE")),
        (None, Some(world)) if world != 1 => r.wrong(format!("WORLD_SIZE={world} is set without RANK")),
        _ => {}
    }
    let (rank, world, port) = (0, 1, DEFAULT_PORT);
    let run = String::new();
    Some(Told { launcher: Launcher::None, rank, world, local_rank: 0, local_world: Some(1), host: None, port, run })
}

/// RANK and WORLD_SIZE are set. Where pods of a PyTorchJob hold several processes they stand for pods.
fn told_by_torch(r: &mut Reader<'_>) -> Option<Told> {
    if r.text("LOCAL_RANK").is_none() && r.text("PET_NPROC_PER_NODE").is_some() {
        return told_by_pytorchjob(r);
    }
    let (rank, world) = (r.number("RANK")?, r.number("WORLD_SIZE")?);
    let local_rank = r.number("LOCAL_RANK");
    let local_world = r.first(&["LOCAL_WORLD_SIZE", "LOCAL_SIZE"]);
    let elastic = r.text("TORCHELASTIC_RUN_ID").is_some();
    if let (Some(node), Some(nodes), Some(l), Some(lw)) =
        (r.number("GROUP_RANK"), r.number("GROUP_WORLD_SIZE"), local_rank, local_world)
        && nodes.checked_mul(lw) == Some(world)
        && node.checked_mul(lw).and_then(|n| n.checked_add(l)) != Some(rank)
    {
        r.wrong(format!("RANK={rank} is not GROUP_RANK={node} x LOCAL_WORLD_SIZE={lw} + LOCAL_RANK={l}"));
    }
    if let (false, Some(theirs), Some(size)) =
        (elastic, r.number("OMPI_COMM_WORLD_RANK"), r.number("OMPI_COMM_WORLD_SIZE"))
        && size == world
        && world > 1
        && theirs != rank
    {
        r.wrong(format!("RANK={rank}, but OMPI_COMM_WORLD_RANK={theirs} of the same {world} ranks"));
    }
    Some(Told {
        launcher: Launcher::Torch,
        rank,
        world,
        local_rank: local_rank.unwrap_or(0),
        local_world,
        host: None,
        port: DEFAULT_PORT,
        run: r.text("TORCHELASTIC_RUN_ID").unwrap_or_default(),
    })
}

/// Variables of an MPI: rank, size, rank on the host, size on the host, job.
struct Mpi {
    rank: &'static [&'static str],
    world: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_world: &'static [&'static str],
    job: &'static [&'static str],
}

const OMPI: Mpi = Mpi {
    rank: &["OMPI_COMM_WORLD_RANK"],
    world: &["OMPI_COMM_WORLD_SIZE"],
    local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
    local_world: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
    job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
};
const MVAPICH: Mpi = Mpi {
    rank: &["MV2_COMM_WORLD_RANK"],
    world: &["MV2_COMM_WORLD_SIZE"],
    local_rank: &["MV2_COMM_WORLD_LOCAL_RANK"],
    local_world: &["MV2_COMM_WORLD_LOCAL_SIZE"],
    job: &[],
};
const PMI: Mpi = Mpi {
    rank: &["PMI_RANK"],
    world: &["PMI_SIZE"],
    local_rank: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK"],
    local_world: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
    job: &["PMI_JOBID", "PALS_APID"],
};

fn told_by_mpi(r: &mut Reader<'_>, launcher: Launcher, names: &Mpi) -> Option<Told> {
    let (rank, world) = (r.first(names.rank)?, r.first(names.world)?);
    let job = names.job.iter().find_map(|n| r.text(n));
    let (local_rank, local_world) = (r.first(names.local_rank), r.first(names.local_world));
    // All on this host: then the loopback will do.
    let host = (local_world == Some(world)).then(|| "127.0.0.1".to_string());
    let port = job.as_ref().map_or(DEFAULT_PORT, |j| derived_port(j));
    let run = job.unwrap_or_default();
    Some(Told { launcher, rank, world, local_rank: local_rank.unwrap_or(0), local_world, host, port, run })
}

/// A pod with one process; torchrun, which reads the same variables, starts more.
fn told_by_pytorchjob(r: &mut Reader<'_>) -> Option<Told> {
    let nodes = r.text("PET_NNODES")?;
    let each = r.text("PET_NPROC_PER_NODE").unwrap_or_else(|| "1".into());
    if each != "1" {
        r.wrong(format!(
            "PET_NPROC_PER_NODE={each}: a pod of this PyTorchJob runs several ranks; start them with ferrotron launch \
             or torchrun"
        ));
        return None;
    }
    // Elastic jobs give least:most; then only torchrun knows how many there are.
    let world = match nodes.parse() {
        Ok(n) => n,
        Err(_) => {
            r.wrong(format!("PET_NNODES={nodes} is not one number: an elastic job needs torchrun or ferrotron launch"));
            return None;
        }
    };
    let rank = r.first(&["PET_NODE_RANK", "RANK"]).unwrap_or(0);
    let port = r.number("PET_MASTER_PORT").and_then(|p| u16::try_from(p).ok()).unwrap_or(DEFAULT_PORT);
    let (launcher, host) = (Launcher::PyTorchJob, r.text("PET_MASTER_ADDR"));
    let run = r.text("PET_RDZV_ID").unwrap_or_default();
    Some(Told { launcher, rank, world, local_rank: 0, local_world: Some(1), host, port, run })
}

/// Host lists of the usual task names; this pod is found by its name, or by its index if there is one task only.
fn told_by_volcano(r: &mut Reader<'_>) -> Option<Told> {
    let list = |name: &str| -> Vec<String> {
        let hosts = r.text(name).unwrap_or_default();
        hosts.split(',').map(|h| h.trim().to_string()).filter(|h| !h.is_empty()).collect()
    };
    let (masters, workers) = (list("VC_MASTER_HOSTS"), list("VC_WORKER_HOSTS"));
    let one_task = masters.is_empty() || workers.is_empty();
    let hosts = [masters, workers].concat();
    let first = hosts.first()?.clone();
    let me = r.text("HOSTNAME");
    let by_name = me.as_ref().and_then(|me| hosts.iter().position(|h| h == me || h.split('.').next() == Some(me)));
    let index = r.first(&["VC_TASK_INDEX", "VK_TASK_INDEX"]);
    let Some(rank) = by_name.or(index.filter(|_| one_task)) else {
        let me = me.unwrap_or_default();
        r.wrong(format!("HOSTNAME={me} is none of Volcano's hosts {}", hosts.join(", ")));
        return None;
    };
    Some(Told {
        launcher: Launcher::Volcano,
        rank,
        world: hosts.len(),
        local_rank: 0,
        local_world: Some(1),
        host: Some(first),
        port: DEFAULT_PORT,
        run: r.text("VC_JOB_NAME").unwrap_or_default(),
    })
}

/// A port that all ranks of a job find by themselves.
fn derived_port(job: &str) -> u16 {
    let hash = job.bytes().fold(0u64, |h, b| h.wrapping_mul(31).wrapping_add(u64::from(b)));
    (DERIVED_PORTS.start + hash % (DERIVED_PORTS.end - DERIVED_PORTS.start)) as u16
}

/// The checks that hold for every launcher, and the store's address.
fn complete(r: &mut Reader<'_>, t: Told) -> Option<RankEnv> {
    if t.world == 0 {
        r.wrong("a world of 0 ranks".into());
    } else if t.rank >= t.world {
        r.wrong(format!("rank {} of a world of {}: ranks are 0 to {}", t.rank, t.world, t.world - 1));
    }
    if let Some(local) = t.local_world {
        if t.local_rank >= local {
            r.wrong(format!("local rank {} of {local} on this host", t.local_rank));
        }
        if local > t.world {
            r.wrong(format!("{local} ranks on this host, but {} in all", t.world));
        }
    }
    let port = match r.text("MASTER_PORT") {
        None => t.port,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 || t.world == 1 => port,
            _ => {
                r.wrong(format!("MASTER_PORT={text} is no port (1 to 65535)"));
                t.port
            }
        },
    };
    let host = match r.text("MASTER_ADDR").or(t.host) {
        Some(host) => host,
        None if t.world <= 1 => "127.0.0.1".into(),
        None => {
            r.wrong(format!("MASTER_ADDR is not set: which host has rank 0 of {}?", t.world));
            String::new()
        }
    };
    let restart = r.first(&["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"]).unwrap_or(0);
    let run = if t.run.is_empty() { "run".to_string() } else { t.run };
    Some(RankEnv {
        launcher: t.launcher,
        rank: t.rank,
        world: t.world,
        local_rank: t.local_rank,
        local_world: t.local_world,
        host,
        port,
        // torch writes exactly this.
        served: r.text("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True"),
        run: format!("{run}/{restart}"),
        error_file: r.text("TORCHELASTIC_ERROR_FILE").map(PathBuf::from),
        interface: r.text("GLOO_SOCKET_IFNAME"),
    })
}
