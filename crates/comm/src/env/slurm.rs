//! srun's variables.

use super::{Launcher, Reader, Told, derived_port};

/// Steps from here on are no srun: batch scripts, interactive shells.
const SPECIAL_STEPS: usize = 0xffff_fff0;

/// What srun told. A batch script has most of the variables too, but is one process.
pub(super) fn tell(r: &mut Reader<'_>) -> Option<Told> {
    r.text("SLURM_PROCID")?;
    let step = r.first(&["SLURM_STEP_ID", "SLURM_STEPID"]);
    if r.text("SLURM_STEP_NUM_TASKS").is_none() && step.is_none_or(|s| s >= SPECIAL_STEPS) {
        return None;
    }
    let rank = r.number("SLURM_PROCID")?;
    let Some(world) = r.first(&["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"]) else {
        r.wrong("SLURM_PROCID is set without SLURM_NTASKS".into());
        return None;
    };
    let node = r.number("SLURM_NODEID").unwrap_or(0);
    let tasks = r.text("SLURM_STEP_TASKS_PER_NODE").or_else(|| r.text("SLURM_TASKS_PER_NODE"));
    let local_world = tasks.as_deref().and_then(|t| tasks_of_node(t, node));
    let hosts = r.text("SLURM_STEP_NODELIST").or_else(|| r.text("SLURM_JOB_NODELIST"));
    let job = r.text("SLURM_JOB_ID").or_else(|| r.text("SLURM_JOBID")).unwrap_or_default();
    let run = format!("{job}.{}", step.unwrap_or(0));
    Some(Told {
        launcher: Launcher::Slurm,
        rank,
        world,
        local_rank: r.number("SLURM_LOCALID").unwrap_or(0),
        local_world,
        host: hosts.as_deref().and_then(first_host),
        port: derived_port(&run),
        run,
    })
}

/// Tasks of the `node`-th node in `4(x2),3`.
fn tasks_of_node(list: &str, node: usize) -> Option<usize> {
    let mut before = 0usize;
    for part in list.split(',') {
        let (tasks, times) = match part.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        before = before.checked_add(times)?;
        if node < before {
            return tasks.trim().parse().ok();
        }
    }
    None
}

/// The first of `gpu[007-012,020]-ib,login1`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(inside) = rest.strip_prefix('[') else { return Some(name.to_string()).filter(|n| !n.is_empty()) };
    let (numbers, after) = inside.split_once(']')?;
    let first = numbers.split([',', '-']).next()?;
    let suffix = after.split(',').next()?;
    match suffix.contains('[') {
        // Two ranges in one name: the same again for the rest.
        true => Some(format!("{name}{first}{}", first_host(after)?)),
        false => Some(format!("{name}{first}{suffix}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_and_tasks() {
        for (list, first) in [
            ("gpu[007-012,020]-ib,login1", "gpu007-ib"),
            ("node1", "node1"),
            ("a,b", "a"),
            ("n[3,5]", "n3"),
            ("r[1-2]n[04-08],x", "r1n04"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
        assert_eq!((first_host(""), first_host("n[1-")), (None, None));
        let tasks: Vec<_> = (0..4).map(|n| tasks_of_node("4(x2),3", n)).collect();
        assert_eq!(tasks, [Some(4), Some(4), Some(3), None]);
        assert_eq!((tasks_of_node("8", 0), tasks_of_node("x(x", 0)), (Some(8), None));
    }
}
