//! Where this node stands: how many nodes there are, which one this is, where rank 0 listens.

use ferrotron_config::{Severity, Violation};

use super::pool::Pool;
use super::{DEFAULT_PORT, MAX_NODES, Port, Reader};
use crate::hosts::{self, MAX_SLOTS};
use crate::{port, remote};

impl Reader<'_> {
    /// `--nnodes`, as torchrun or deepspeed spell it.
    pub(super) fn nodes(&mut self) -> Result<usize, ()> {
        let text = match (self.typed.get("nnodes"), self.typed.get("num-nodes")) {
            (Some(a), Some(b)) if a != b => {
                self.fault(&["--nnodes"], format!("--nnodes {a} and --num-nodes {b} disagree"), "one of them");
                return Err(());
            }
            (a, b) => a.or(b),
        };
        let Some(text) = text else {
            let wrong = ["nnodes", "num-nodes"].into_iter().find(|n| self.typed.has(n) || self.typed.is_broken(n));
            return wrong.map_or(Ok(1), |name| self.number(name, 1..=MAX_NODES).and(Err(())));
        };
        if let Some((least, most)) = text.split_once(':') {
            let least = self.check("--nnodes", least, 1..=MAX_NODES).ok_or(());
            let most = self.check("--nnodes", most, 1..=MAX_NODES).ok_or(());
            let (least, most) = (least?, most?);
            if least != most {
                let what = format!("--nnodes {text}: a number of nodes that may change is not offered");
                let violation = Violation::new(Severity::Invalid, &["--nnodes"], what).legal("one number, or N:N");
                self.faults.push(violation.why("the layout of a run is fixed when it starts"));
                return Err(());
            }
            return Ok(least);
        }
        self.check("--nnodes", text, 1..=MAX_NODES).ok_or(())
    }

    /// The number of nodes, and the ranks of each, as far as the flags tell.
    pub(super) fn slots(&mut self, hosts: Option<&Pool>) -> (Option<usize>, Option<Vec<usize>>) {
        let all = |slots: Vec<usize>| (Some(slots.len()), Some(slots));
        if let Some(hosts) = hosts {
            return all(hosts.list.iter().map(|h| h.devices.len()).collect());
        }
        if let Some(text) = self.typed.get("slots-per-node") {
            let number = |t: &str| t.trim().parse::<usize>().ok().filter(|n| (1..=MAX_SLOTS).contains(n));
            let slots: Option<Vec<usize>> = text.split(',').map(number).collect();
            if slots.is_none() {
                self.fault(&["--slots-per-node"], format!("'{text}' is no list of numbers of ranks"), "8,8,4");
            }
            return slots.map_or((None, None), all);
        }
        let nodes = self.nodes().ok();
        let ranks = self.ranks_per_node(self.typed.has("deepspeed")).ok();
        let total = self.number("worker-num", 1..=MAX_NODES * MAX_SLOTS);
        let (Some(mut count), Some(ranks), Ok(total)) = (nodes, ranks, total) else { return (nodes, None) };
        if let Some(total) = total {
            let fits = total.is_multiple_of(ranks) && (count == 1 || count * ranks == total);
            if !fits || total / ranks > MAX_NODES {
                let what = format!("--worker-num {total} is not a number of nodes times {ranks} ranks a node");
                self.fault(&["--worker-num", "--local-worker-num"], what, "nodes x --local-worker-num");
                return (None, None);
            }
            count = total / ranks;
        }
        all(vec![ranks; count])
    }

    /// Which node this is: a flag, or what the scheduler set, if it speaks of as many nodes.
    pub(super) fn node_rank(&mut self, nodes: usize) -> Result<usize, ()> {
        let last = nodes - 1;
        let conf = self.rendezvous_rank();
        if let Some(rank) = self.number("node-rank", 0..=last)? {
            return Ok(rank);
        }
        if let Some(text) = conf {
            return self.check("--rdzv-conf rank", &text, 0..=last).ok_or(());
        }
        if nodes == 1 {
            return Ok(0);
        }
        if let Some(text) = self.around.var("NODE_RANK") {
            return self.check("the variable NODE_RANK", text, 0..=last).ok_or(());
        }
        // Each counts nodes only if the size beside it is that of the run; else it counts ranks, or jobs.
        const PAIRS: [(&str, &str); 4] = [
            ("SLURM_NODEID", "SLURM_STEP_NUM_NODES"),
            ("SLURM_NODEID", "SLURM_NNODES"),
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            ("PMI_RANK", "PMI_SIZE"),
        ];
        let counts_nodes = |size: &&(&str, &str)| self.around.var(size.1).is_some_and(|n| n == nodes.to_string());
        let scheduler = PAIRS.iter().filter(counts_nodes).map(|(rank, _)| *rank);
        let volcano = self.volcano_hosts(nodes).map(|_| "VC_TASK_INDEX");
        let named = scheduler.chain(volcano).find_map(|name| Some((name, self.around.var(name)?)));
        if let Some((name, text)) = named {
            return self.check(&format!("the variable {name}"), text, 0..=last).ok_or(());
        }
        let what = format!("which of the {nodes} nodes is this? There is no --node-rank");
        let violation = Violation::new(Severity::Missing, &["--node-rank"], what)
            .legal(format!("--node-rank 0 to {last}; or --hostfile FILE, and all nodes are started from here"))
            .why(
                "nodes are numbered by you or by the scheduler (NODE_RANK, SLURM_NODEID, OMPI_COMM_WORLD_RANK, \
                  PMI_RANK, VC_TASK_INDEX), not by a rendezvous",
            );
        self.faults.push(violation);
        Err(())
    }

    /// The hosts of Volcano's task that has as many replicas as the run has nodes (`VC_<TASK>_HOSTS`). A job of several
    /// tasks, master and workers, numbers each from 0: then its index is no node's number.
    fn volcano_hosts(&self, nodes: usize) -> Option<Vec<&str>> {
        let lists = self.around.env.iter().filter(|(k, _)| k.starts_with("VC_") && k.ends_with("_HOSTS"));
        lists.map(|(_, v)| v.split(',').map(str::trim).collect::<Vec<_>>()).find(|hosts| hosts.len() == nodes)
    }

    /// `rank=` of `--rdzv-conf`.
    pub(super) fn rendezvous_rank(&mut self) -> Option<String> {
        let mut rank = None;
        for part in self.typed.get("rdzv-conf")?.split(',').filter(|p| !p.trim().is_empty()) {
            match part.split_once('=') {
                Some((key, value)) if key.trim() == "rank" => rank = Some(value.trim().to_string()),
                Some(_) => {}
                None => self.fault(&["--rdzv-conf"], format!("--rdzv-conf: '{part}' has no ="), "key=value,key=value"),
            }
        }
        rank
    }

    /// Where rank 0 listens. An endpoint wins over `--master-addr`, as in torchrun; then come the variables, the first
    /// host of the hostfile, the first node of the scheduler.
    pub(super) fn master(
        &mut self,
        nodes: usize,
        node_rank: Option<usize>,
        first_host: Option<String>,
    ) -> (Option<String>, Option<Port>) {
        let backend = self.typed.get("rdzv-backend").unwrap_or("static");
        if !["static", "c10d"].contains(&backend) {
            self.fault(&["--rdzv-backend"], format!("--rdzv-backend {backend} is not offered"), "static or c10d");
        }
        if self.typed.has("standalone") {
            if nodes > 1 {
                self.fault(&["--standalone"], format!("--standalone with {nodes} nodes"), "one node");
            }
            return (Some("127.0.0.1".to_string()), Some(Port::Free));
        }
        let endpoint = self.typed.get("rdzv-endpoint").map(split_endpoint);
        let port_text = endpoint.as_ref().and_then(|(_, port)| port.clone());
        let label = if port_text.is_some() { "--rdzv-endpoint" } else { "--master-port" };
        let flag = port_text.or_else(|| self.typed.get("master-port").map(String::from));
        let variable = || self.around.var("MASTER_PORT").map(String::from);
        let port = match (flag, variable()) {
            (Some(text), _) if text == "0" && nodes == 1 => Some(Port::Free),
            (Some(text), _) => self.check(label, &text, 1..=u16::MAX).map(Port::Given),
            (None, Some(text)) => self.check("the variable MASTER_PORT", &text, 1..=u16::MAX).map(Port::Given),
            (None, None) if nodes == 1 => Some(Port::Free),
            (None, None) => Some(Port::Given(DEFAULT_PORT)),
        };
        if let (Some(Port::Given(port)), Some(0)) = (port, node_rank)
            && let Err(held) = port::check(port, &self.around.host)
        {
            self.faults.push(*held);
        }
        let own = self.typed.get("local-addr").filter(|_| node_rank == Some(0));
        let slurm = || remote::first_of_nodelist(self.around.var("SLURM_JOB_NODELIST")?).filter(|_| nodes > 1);
        let address = endpoint.map(|(host, _)| host).filter(|h| !h.is_empty());
        let address = address
            .or_else(|| self.typed.get("master-addr").map(String::from))
            .or_else(|| self.around.var("MASTER_ADDR").map(String::from))
            .or_else(|| own.map(String::from))
            .or(first_host.filter(|_| nodes > 1))
            .or_else(slurm)
            .or_else(|| self.volcano_hosts(nodes).filter(|_| nodes > 1).map(|hosts| hosts[0].to_string()))
            .or_else(|| (nodes == 1).then(|| "127.0.0.1".to_string()));
        match &address {
            Some(name) if !hosts::is_host(name) => {
                self.fault(&["--master-addr"], format!("'{name}' is no name or address of a host"), "10.0.0.1");
            }
            Some(_) => {}
            None if self.typed.is_broken("master-addr") || self.typed.is_broken("rdzv-endpoint") => {}
            None => {
                let what = format!("{nodes} nodes need --master-addr: where does rank 0 listen?");
                let violation = Violation::new(Severity::Missing, &["--master-addr"], what);
                self.faults.push(violation.legal("--master-addr HOST, --rdzv-endpoint HOST:PORT or MASTER_ADDR"));
            }
        }
        (address, port)
    }
}

/// `host`, `host:port` or `[v6]:port`.
fn split_endpoint(text: &str) -> (String, Option<String>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|t| t.split_once(']')) {
        return (host.to_string(), rest.strip_prefix(':').map(String::from));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host.to_string(), Some(port.to_string())),
        _ => (text.to_string(), None),
    }
}
