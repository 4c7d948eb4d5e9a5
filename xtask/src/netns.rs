//! Two nodes that share nothing but a cable: network namespaces with a veth pair between them, a launcher in each.
//! Linux, root and `ip` (iproute2) are needed; whatever is missing is an error, never a pass.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::binaries;

/// Ranks of one node.
const LOCAL: usize = 2;

const RUN: &str = "--num-layers 2 --hidden-size 32 --ffn-hidden-size 48 --num-attention-heads 4 --seq-length 24 \
    --max-position-embeddings 24 --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear \
    --hidden-dropout 0.1 --attention-dropout 0.1 --tokenizer-type NullTokenizer --vocab-size 61 --mock-data \
    --split 100,0,0 --micro-batch-size 1 --global-batch-size 8 --train-iters 6 --lr 1e-2 --eval-iters 0 --log-interval 1 \
    --device cpu --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather";

/// A network namespace that goes away with the value.
struct Namespace {
    name: String,
    address: &'static str,
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A second `ip` would say no more than the first, which is told to the user.
        let _ = ip(&["netns", "del", &self.name]);
    }
}

impl Namespace {
    fn new(place: usize, address: &'static str) -> Result<Namespace, String> {
        let name = format!("ferrotron-{}-{place}", std::process::id());
        ip(&["netns", "add", &name])?;
        Ok(Namespace { name, address })
    }

    /// Gives the end of a cable its address.
    fn plug(&self, device: &str) -> Result<(), String> {
        ip(&["-n", &self.name, "addr", "add", &format!("{}/24", self.address), "dev", device])?;
        ip(&["-n", &self.name, "link", "set", device, "up"])?;
        ip(&["-n", &self.name, "link", "set", "lo", "up"])
    }
}

/// Trains on two nodes and on threads of one process; the losses must be the same digits.
pub fn check(root: &Path) -> Result<(), String> {
    let bin = binaries::build(root, "ferrotron-cli")?;
    let nodes = [Namespace::new(0, "10.213.7.1")?, Namespace::new(1, "10.213.7.2")?];
    ip(&[
        "link",
        "add",
        "ft0",
        "netns",
        &nodes[0].name,
        "type",
        "veth",
        "peer",
        "name",
        "ft1",
        "netns",
        &nodes[1].name,
    ])?;
    nodes[0].plug("ft0")?;
    nodes[1].plug("ft1")?;

    let launch = |rank: usize, node: &Namespace| {
        let mut c = Command::new("ip");
        c.args(["netns", "exec", &node.name]).arg(bin.join("ferrotron")).arg("launch");
        c.args(["--nnodes", "2", "--nproc_per_node", &LOCAL.to_string(), "--node_rank", &rank.to_string()]);
        c.args(["--master_addr", nodes[0].address, "--master_port", "29500"]).arg(bin.join("pretrain_gpt"));
        c.args(RUN.split_whitespace()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        c.spawn().map_err(|e| format!("cannot start a node: {e}"))
    };
    let (first, second) = (launch(0, &nodes[0])?, launch(1, &nodes[1])?);
    let wait = |node: std::process::Child| node.wait_with_output().map_err(|e| e.to_string());
    let (first, second) = (wait(first)?, wait(second)?);
    well("node 0", &first)?;
    // The last rank logs, and it is on the second node.
    let apart = losses(&well("node 1", &second)?);

    let mut alone = Command::new(bin.join("pretrain_gpt"));
    alone.args(RUN.split_whitespace()).args(["--thread-ranks", &(2 * LOCAL).to_string()]);
    let alone = alone.output().map_err(|e| format!("cannot start pretrain_gpt: {e}"))?;
    let together = losses(&well("threads", &alone)?);
    if apart.is_empty() || apart != together {
        return Err(format!("two nodes and one process differ:\n{}\n{}", apart.join("\n"), together.join("\n")));
    }
    println!("two nodes of {LOCAL} ranks train the digits of one process:\n{}", apart.join("\n"));
    Ok(())
}

fn ip(words: &[&str]) -> Result<(), String> {
    let out = Command::new("ip").args(words).output().map_err(|e| format!("cannot start ip (iproute2): {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {}: {} (root is needed)", words.join(" "), String::from_utf8_lossy(&out.stderr).trim()))
}

fn well(who: &str, out: &Output) -> Result<String, String> {
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(format!("{who} ended with {}:\n{}", out.status, String::from_utf8_lossy(&out.stderr)))
}

/// Iteration and loss of each training line.
fn losses(log: &str) -> Vec<String> {
    let lines = log.lines().filter(|l| l.contains("lm loss:"));
    let fields = lines.map(|l| {
        let wanted =
            l.split('|').filter(|f| f.contains("] iteration") || f.contains("lm loss:") || f.contains("grad norm"));
        wanted.map(|f| f.rsplit("] ").next().unwrap_or(f).trim()).collect::<Vec<_>>().join(" | ")
    });
    fields.collect()
}
