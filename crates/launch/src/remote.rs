//! A launcher on each of several nodes, reached by ssh, pdsh or srun: their command lines.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use ferrotron_config::{Severity, Violation};

use crate::flags::Typed;
use crate::hosts::HostSlots;
use crate::member::{Member, Reach};
use crate::outputs::{Console, RankSinks, Sink};
use crate::plan::{DEFAULT_PORT, Surroundings};
use crate::program::quote;

/// Variables that other nodes get, by how they begin.
const CARRIED: [&str; 13] = [
    "ACL_",
    "ASCEND_",
    "CUDA_",
    "FERROTRON_",
    "GLOO_",
    "HCCL_",
    "LD_LIBRARY_PATH",
    "MLFLOW",
    "NCCL_",
    "OMP_",
    "TASK_QUEUE_",
    "UCX_",
    "WANDB_",
];
/// Not among them: what holds for one node only.
const LEFT: [&str; 2] = ["ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
/// Flags that go to every node as they were typed.
const HANDED_ON: [&str; 9] = [
    "tee",
    "redirects",
    "log-dir",
    "local-ranks-filter",
    "role",
    "max-restarts",
    "grace-seconds",
    "rdzv-id",
    "enable-each-rank-log",
];

/// One process of this node that stands for launchers elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// What messages call it.
    pub name: String,
    /// Its words, the program first.
    pub words: Vec<String>,
    /// How signals reach the other side.
    pub reach: Reach,
    /// What stands before its lines.
    pub prefix: Option<String>,
}

impl Client {
    /// As a member of the supervised group.
    pub fn member(&self) -> Member {
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]);
        let console = if self.prefix.is_some() { Console::Prefixed } else { Console::Plain };
        let sink = Sink { file: false, console };
        Member {
            name: self.name.clone(),
            command,
            reach: self.reach.clone(),
            sinks: RankSinks { stdout: sink, stderr: sink },
            prefix: self.prefix.clone().unwrap_or_default(),
            files: [None, None],
        }
    }
}

/// A run whose nodes are reached from here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The processes to start here.
    pub clients: Vec<Client>,
    /// Time to end after a signal.
    pub grace: Duration,
    /// The program's command line, for messages.
    pub line: String,
}

/// Builds the command lines.
///
/// # Errors
/// Launchers that are not offered (with the command line to type instead), layouts that a launcher cannot carry,
/// an environment file with lines that are no assignments.
pub fn remote(
    typed: &Typed,
    around: &Surroundings,
    hosts: Vec<HostSlots>,
    program: (String, Vec<String>),
    grace: Duration,
) -> Result<Remote, Vec<Violation>> {
    let mut faults = Vec::new();
    let exe = around.exe.as_ref().map_or("ferrotron".to_string(), |e| e.display().to_string());
    let master = typed.get("master-addr").map_or_else(|| without_user(&hosts[0].name), String::from);
    let port = match typed.get("master-port").map_or(Ok(DEFAULT_PORT), str::parse::<u16>) {
        Ok(port) if port > 0 => port,
        _ => {
            let what = format!("--master-port '{}' is no port", typed.get("master-port").unwrap_or_default());
            faults.push(Violation::new(Severity::Invalid, &["--master-port"], what).legal("1 to 65535"));
            DEFAULT_PORT
        }
    };
    let line: String = std::iter::once(&program.0).chain(&program.1).map(|w| quote(w)).collect::<Vec<_>>().join(" ");
    let slots: Vec<String> = hosts.iter().map(|h| h.devices.len().to_string()).collect();
    let mut common: Vec<String> = vec!["launch".into(), "--slots-per-node".into(), slots.join(",")];
    common.extend(["--master-addr".into(), master.clone(), "--master-port".into(), port.to_string()]);
    for name in HANDED_ON {
        if let Some(value) = typed.get(name) {
            common.push(format!("--{name}={value}"));
        }
    }
    common.extend(["no-python", "module"].iter().filter(|n| typed.has(n)).map(|n| format!("--{n}")));
    let tail = |words: &mut Vec<String>| {
        words.push("--".to_string());
        words.push(program.0.clone());
        words.extend(program.1.iter().cloned());
    };
    let variables = variables(around, &mut faults);
    let extra = typed.get("launcher-args").map_or(vec![], |w| w.split_whitespace().map(String::from).collect());
    let restricted = |h: &HostSlots| h.devices.iter().enumerate().any(|(i, d)| i != *d);
    let listed = |h: &HostSlots| h.devices.iter().map(|d| d.to_string()).collect::<Vec<_>>().join(",");
    // One line for the shell of the other side: the same folder, the carried variables, the launcher.
    let shell = |words: &[String]| {
        let words: Vec<String> = words.iter().map(|w| quote(w)).collect();
        let assigned = variables.iter().map(|(k, v)| format!("{k}={} ", quote(v))).collect::<String>();
        format!("cd {} && exec env {assigned}{} {}", quote(&around.cwd.to_string_lossy()), quote(&exe), words.join(" "))
    };
    let kind = typed.get("launcher").unwrap_or("ssh").to_ascii_lowercase();
    let mut same_devices = |kind: &str| {
        if hosts.iter().any(|h| listed(h) != listed(&hosts[0])) && hosts.iter().any(restricted) {
            let what = format!("--launcher {kind} sends one command to all hosts, but their devices differ");
            faults.push(Violation::new(Severity::Invalid, &["--launcher"], what).legal("--launcher ssh"));
        }
        restricted(&hosts[0]).then(|| ["--visible-devices".to_string(), listed(&hosts[0])])
    };
    let clients = match kind.as_str() {
        "ssh" => {
            let client = |(rank, host): (usize, &HostSlots)| {
                let mut words = common.clone();
                words.extend(["--node-rank".into(), rank.to_string(), "--control-stdin".into()]);
                if restricted(host) {
                    words.extend(["--visible-devices".into(), listed(host)]);
                }
                tail(&mut words);
                let mut ssh: Vec<String> = vec!["ssh".into(), "-o".into(), "BatchMode=yes".into()];
                if let Some(port) = typed.get("ssh-port") {
                    ssh.extend(["-p".into(), port.to_string()]);
                }
                ssh.extend(extra.iter().cloned());
                ssh.extend([host.name.clone(), shell(&words)]);
                let prefix = Some(format!("{}: ", host.name));
                Client { name: format!("host {}", host.name), words: ssh, reach: Reach::Stdin, prefix }
            };
            hosts.iter().enumerate().map(client).collect()
        }
        "pdsh" => {
            let devices = same_devices("pdsh");
            let pid_file =
                std::env::temp_dir().join(format!("ferrotron-launch-{}-{}", around.host, std::process::id()));
            let pid_file = pid_file.display().to_string();
            let mut words = common.clone();
            words.extend(devices.into_iter().flatten());
            // pdsh puts the host's number for %n; every other percent sign must come through as it is.
            const NUMBER: &str = "\u{1}";
            words.extend(["--pid-file".into(), pid_file.clone(), "--node-rank".into(), NUMBER.into()]);
            tail(&mut words);
            let line = shell(&words).replace('%', "%%").replace(&quote(NUMBER), "%n");
            let all = hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>().join(",");
            let mut pdsh: Vec<String> =
                ["pdsh", "-S", "-R", "ssh", "-f", "1024", "-w", &all].map(String::from).to_vec();
            pdsh.extend(extra.iter().cloned());
            let mut stop = pdsh.clone();
            stop.push(format!("kill -s {{signal}} $(cat {})", quote(&pid_file)));
            pdsh.push(line);
            vec![Client { name: format!("pdsh to {all}"), words: pdsh, reach: Reach::Command(stop), prefix: None }]
        }
        "slurm" | "srun" => {
            let devices = same_devices("slurm");
            if slots.iter().any(|s| *s != slots[0]) {
                let what = format!("Slurm numbers the nodes itself, but their ranks differ: {}", slots.join(", "));
                faults.push(Violation::new(Severity::Invalid, &["--launcher"], what).legal("--launcher ssh"));
            }
            let all = hosts.iter().map(|h| h.name.as_str()).collect::<Vec<_>>().join(",");
            let count = hosts.len().to_string();
            let mut srun: Vec<String> =
                ["srun", "--nodes", &count, "--ntasks", &count, "--ntasks-per-node", "1"].map(String::from).to_vec();
            srun.extend(["--nodelist".into(), all.clone(), "--kill-on-bad-exit=1".into()]);
            srun.extend(extra.iter().cloned());
            srun.extend(["env".to_string()].into_iter().filter(|_| !variables.is_empty()));
            srun.extend(variables.iter().map(|(k, v)| format!("{k}={v}")));
            srun.push(exe.clone());
            srun.extend(common.iter().cloned());
            srun.extend(devices.into_iter().flatten());
            tail(&mut srun);
            vec![Client { name: format!("srun on {all}"), words: srun, reach: Reach::Process, prefix: None }]
        }
        "openmpi" | "mpich" | "impi" | "mvapich" => {
            let total: usize = hosts.iter().map(|h| h.devices.len()).sum();
            let on: Vec<String> = hosts.iter().map(|h| format!("{}:{}", h.name, h.devices.len())).collect();
            let exported = variables.iter().map(|(k, _)| format!("-x {k} ")).collect::<String>();
            let binary = crate::program::binary_of(&program.0).map_or(program.0.clone(), String::from);
            let words: Vec<String> = std::iter::once(&binary).chain(&program.1).map(|w| quote(w)).collect();
            let what = format!("--launcher {kind} is not run from here; ranks read MPI's variables themselves");
            faults.push(Violation::new(Severity::Invalid, &["--launcher"], what).legal(format!(
                "mpirun -n {total} --host {} {exported}-x MASTER_ADDR={master} -x MASTER_PORT={port} {}",
                on.join(","),
                words.join(" ")
            )));
            vec![]
        }
        other => {
            let what = format!("--launcher {other} is not known");
            faults.push(Violation::new(Severity::Invalid, &["--launcher"], what).legal("ssh, pdsh, slurm"));
            vec![]
        }
    };
    if faults.is_empty() { Ok(Remote { clients, grace, line }) } else { Err(faults) }
}

/// What other nodes get of the environment, and of the files `.deepspeed_env` in the home and working folders.
fn variables(around: &Surroundings, faults: &mut Vec<Violation>) -> Vec<(String, String)> {
    let carried = |name: &str| CARRIED.iter().any(|c| name.starts_with(c)) && !LEFT.contains(&name);
    let is_name = |name: &str| {
        name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut all: Vec<(String, String)> =
        around.env.iter().filter(|(k, _)| carried(k) && is_name(k)).map(|(k, v)| (k.clone(), v.clone())).collect();
    let folders = [around.var("HOME").map(PathBuf::from), Some(around.cwd.clone())];
    for path in folders.into_iter().flatten().map(|f| f.join(".deepspeed_env")) {
        let Ok(text) = std::fs::read_to_string(&path) else { continue }; // it need not be there
        for (number, line) in text.lines().enumerate().map(|(i, l)| (i + 1, l.trim())) {
            match line.split_once('=') {
                _ if line.is_empty() || line.starts_with('#') => {}
                Some((name, value)) if !name.is_empty() && is_name(name) => {
                    all.retain(|(k, _)| k != name);
                    all.push((name.to_string(), value.to_string()));
                }
                _ => {
                    let what = format!("{}:{number}: '{line}' is no assignment", path.display());
                    faults.push(Violation::new(Severity::Invalid, &[".deepspeed_env"], what).legal("NAME=VALUE"));
                }
            }
        }
    }
    all
}

/// The host of `user@host`, which only ssh wants whole.
pub fn without_user(name: &str) -> String {
    name.rsplit('@').next().unwrap_or(name).to_string()
}

/// The first host of Slurm's list: `node[003-010,12],x1` gives `node003`.
pub fn first_of_nodelist(list: &str) -> Option<String> {
    let (head, rest) = match list.split_once('[') {
        Some((head, rest)) if !head.contains(',') => (head, rest),
        _ => return list.split(',').next().filter(|n| !n.is_empty()).map(String::from),
    };
    let (inside, after) = rest.split_once(']')?;
    let number = inside.split([',', '-']).next()?;
    let suffix = after.split(',').next().unwrap_or_default();
    Some(format!("{head}{number}{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_hosts_of_slurms_lists() {
        for (list, first) in [
            ("node[003-010,12],x1", Some("node003")),
            ("n1,n2", Some("n1")),
            ("n1,n[2-3]", Some("n1")),
            ("rack[1-2]-a,b", Some("rack1-a")),
            ("one", Some("one")),
            ("", None),
            ("broken[1", None),
        ] {
            assert_eq!(first_of_nodelist(list).as_deref(), first, "{list}");
        }
    }
}
