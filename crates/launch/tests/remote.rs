//! Several nodes by stand-ins for ssh, pdsh and srun that run the other side on this machine.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::time::Duration;

use common::{Dir, LIMIT, finish, kill, numbers, start, wait_until_gone};

/// What ssh does, without a network: notes its words, runs the last one by a shell. As with sshd, what runs on the other
/// side does not die with the client; it only sees its standard input end.
const SSH: &str = "echo \"$(echo \"$*\" | tr '\\n' ' ')\" >> $DIR/ssh.log\n\
    for last in \"$@\"; do :; done\n\
    exec setsid -w sh -c \"$last\"";

fn two_hosts(name: &str) -> Dir {
    let dir = Dir::new(name);
    dir.write("hosts", "worker-0 slots=2\nworker-1 slots=1\n");
    dir.script("bin/ssh", SSH);
    dir
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort();
    lines
}

#[test]
fn two_nodes_by_ssh() {
    let dir = two_hosts("ssh");
    dir.write(".deepspeed_env", "# for all nodes\nFROM_FILE=it's a value\n");
    dir.script(
        "rank",
        "echo rank $RANK/$WORLD_SIZE node $GROUP_RANK $MASTER_ADDR:$MASTER_PORT $HCCL_BUFFSIZE \"$FROM_FILE\" \"$@\"",
    );
    let words =
        ["--hostfile", "hosts", "--master_port=29777", "--ssh_port", "2222", "./rank", "--x", "two words", "%n $HOME"];
    let mut command = dir.launch(&words);
    command.env("HCCL_BUFFSIZE", "512").env("SECRET", "stays");
    let done = finish(&dir, command).expect(0);
    let tail = "worker-0:29777 512 it's a value --x two words %n $HOME";
    let expected = [
        format!("worker-0: rank 0/3 node 0 {tail}"),
        format!("worker-0: rank 1/3 node 0 {tail}"),
        format!("worker-1: rank 2/3 node 1 {tail}"),
    ];
    assert_eq!(sorted(&done.stdout), expected, "{}", done.stderr);
    let log = dir.read("ssh.log");
    assert!(log.lines().count() == 2 && !log.contains("SECRET"), "{log}");
    assert!(log.lines().all(|l| l.starts_with("-o BatchMode=yes -p 2222 worker-")), "{log}");
}

#[test]
fn includes_and_single_hosts() {
    let dir = two_hosts("include");
    dir.script(
        "rank",
        "echo $RANK $LOCAL_RANK $CUDA_VISIBLE_DEVICES; [ $MASTER_ADDR = worker-0 ] || [ $WORLD_SIZE -lt 3 ] || exit 1",
    );
    let done = finish(&dir, dir.launch(&["--hostfile=hosts", "-i", "worker-0:1@worker-1", "./rank"])).expect(0);
    assert_eq!(sorted(&done.stdout), ["worker-0: 0 0 1", "worker-1: 1 0"]);
    // One host is this one, unless the launcher is forced.
    let done = finish(&dir, dir.launch(&["--hostfile=hosts", "--num_nodes=1", "./rank"])).expect(0);
    assert_eq!(sorted(&done.stdout), ["0 0", "1 1"]);
    let done = finish(&dir, dir.launch(&["--hostfile=hosts", "--num_nodes=1", "--force_multi", "./rank"])).expect(0);
    assert_eq!(sorted(&done.stdout), ["worker-0: 0 0", "worker-0: 1 1"]);
    // Without a hostfile the devices are of this machine.
    let done = finish(&dir, dir.launch(&["--num_gpus=4", "--include", "localhost:1,3", "./rank"])).expect(0);
    assert_eq!(sorted(&done.stdout), ["0 0 1,3", "1 1 1,3"]);
    // --no_ssh: one launcher a node, started by hand.
    let words = ["--hostfile=hosts", "--no_ssh", "--node_rank=1", "./rank"];
    assert_eq!(finish(&dir, dir.launch(&words)).expect(0).stdout, "2 0\n");
}

#[test]
fn a_failure_on_one_node_ends_the_other_and_names_the_rank() {
    let dir = two_hosts("remote-failure");
    let waits = "echo $$ >> $DIR/pids; sleep 60 & echo $! >> $DIR/pids; wait";
    dir.script(
        "rank",
        &format!(
            "if [ $RANK = 2 ]; then while [ $(cat $DIR/pids | wc -l) -lt 4 ]; do sleep 0.02; done; exit 9; fi\n{waits}"
        ),
    );
    dir.write("pids", "");
    let done = finish(&dir, dir.launch(&["--hostfile", "hosts", "--master_port=29778", "./rank"])).expect(9);
    let last = done.last_line();
    assert!(last.starts_with("ferrotron launch: host worker-1: rank 2 (local rank 0) (pid "), "{last}");
    assert!(last.contains("exited with code 9") && last.ends_with("; 1 other hosts were ended"), "{last}");
    wait_until_gone(&numbers(&dir.wait_for_lines("pids", 4)), LIMIT);
}

#[test]
fn signals_cross_ssh_and_a_killed_head_ends_the_nodes() {
    let dir = two_hosts("remote-signals");
    let body = "trap 'echo USR1 $RANK >> $DIR/got' USR1; trap 'echo saved $RANK >> $DIR/got; exit 0' TERM\n\
        echo $$ >> $DIR/pids; while :; do sleep 0.02; done";
    dir.script("rank", body);
    let words = ["--hostfile", "hosts", "--master_port=29779", "./rank"];
    let running = start(&dir, dir.launch(&words));
    dir.wait_for_lines("pids", 3);
    kill("USR1", running.pid());
    dir.wait_for_lines("got", 3);
    kill("TERM", running.pid());
    running.finish().expect(0);
    let got = dir.read("got");
    assert_eq!(sorted(&got), ["USR1 0", "USR1 1", "USR1 2", "saved 0", "saved 1", "saved 2"]);

    std::fs::remove_file(dir.path("pids")).unwrap();
    let running = start(&dir, dir.launch(&words));
    let pids = numbers(&dir.wait_for_lines("pids", 3));
    kill("KILL", running.pid());
    running.finish().expect(1009);
    wait_until_gone(&pids, LIMIT);
}

#[test]
fn an_unreachable_host_is_named() {
    let dir = two_hosts("unreachable");
    dir.script("bin/ssh", "case \"$*\" in *worker-1*node-rank\\ 1*) echo 'ssh: connect to host worker-1: timed out' >&2; exit 255;; esac\nsleep 60");
    let done = finish(&dir, dir.launch(&["--hostfile", "hosts", "./rank"])).expect(255);
    assert!(done.last_line().starts_with("ferrotron launch: host worker-1 (pid "), "{}", done.last_line());
    assert!(done.stderr.contains("  | ssh: connect to host worker-1: timed out"), "{}", done.stderr);
    assert!(done.took < Duration::from_secs(15));
}

#[test]
fn pdsh_gets_one_command_with_its_own_numbers() {
    let dir = two_hosts("pdsh");
    // The last word is the command (twice a percent sign is one, %n the host's number), the one after -w the hosts.
    let pdsh = "for last in \"$@\"; do [ \"$before\" = -w ] && hosts=$last; before=$last; done\n\
        echo \"$@\" | tr '\\n' ' ' >> $DIR/pdsh.log; echo >> $DIR/pdsh.log; n=0; IFS=,; pids=\n\
        for h in $hosts; do\n\
            line=$(printf %s \"$last\" | sed -e 's/%%/\\x01/g' -e \"s/%n/$n/g\" -e 's/\\x01/%/g')\n\
            unset IFS; sh -c \"$line\" & pids=\"$pids $!\"; n=$((n + 1))\n\
        done\n\
        worst=0; for p in $pids; do wait $p; code=$?; [ $code -gt $worst ] && worst=$code; done; exit $worst";
    dir.script("bin/pdsh", pdsh);
    dir.script("rank", "echo $RANK/$WORLD_SIZE \"$@\"");
    let words = ["--hostfile=hosts", "--launcher=pdsh", "--launcher_args=-u 5", "./rank", "100%n", "50%"];
    let done = finish(&dir, dir.launch(&words)).expect(0);
    assert_eq!(sorted(&done.stdout), ["0/3 100%n 50%", "1/3 100%n 50%", "2/3 100%n 50%"], "{}", done.stderr);
    assert!(
        dir.read("pdsh.log").starts_with("-S -R ssh -f 1024 -w worker-0,worker-1 -u 5 cd "),
        "{}",
        dir.read("pdsh.log")
    );

    // Both sides are one machine here, so there is one process id to be told: one host.
    dir.script("rank", "trap 'exit 0' TERM; echo ready >> $DIR/ready; while :; do sleep 0.02; done");
    let words = ["--hostfile=hosts", "--launcher=pdsh", "--num_nodes=1", "--force_multi", "./rank"];
    let running = start(&dir, dir.launch(&words));
    dir.wait_for_lines("ready", 2);
    kill("TERM", running.pid());
    let done = running.finish().expect(0);
    assert!(dir.read("pdsh.log").contains("kill -s TERM $(cat "), "{}", done.stderr);
}

#[test]
fn srun_runs_one_launcher_a_node() {
    let dir = Dir::new("srun");
    dir.write("hosts", "n1 slots=2\nn2 slots=2\n");
    // --nodes N is the second word; the command begins after the words of srun.
    let srun = "echo \"$@\" >> $DIR/srun.log; nodes=$2; while [ \"$1\" != --kill-on-bad-exit=1 ]; do shift; done; shift\n\
        n=0; pids=; worst=0; trap 'kill -TERM $pids' TERM\n\
        while [ $n -lt $nodes ]; do SLURM_NODEID=$n SLURM_NNODES=$nodes \"$@\" & pids=\"$pids $!\"; n=$((n + 1)); done\n\
        for p in $pids; do wait $p; code=$?; [ $code -gt $worst ] && worst=$code; done; exit $worst";
    dir.script("bin/srun", srun);
    dir.script("rank", "echo $RANK/$WORLD_SIZE on $GROUP_RANK $NCCL_DEBUG \"$@\"");
    let words = ["--hostfile=hosts", "--launcher=slurm", "--master_port=29780", "./rank", "a b"];
    let mut command = dir.launch(&words);
    command.env("NCCL_DEBUG", "INFO");
    let done = finish(&dir, command).expect(0);
    let expected = ["0/4 on 0 INFO a b", "1/4 on 0 INFO a b", "2/4 on 1 INFO a b", "3/4 on 1 INFO a b"];
    assert_eq!(sorted(&done.stdout), expected, "{}", done.stderr);
    let log = dir.read("srun.log");
    assert!(
        log.starts_with("--nodes 2 --ntasks 2 --ntasks-per-node 1 --nodelist n1,n2 --kill-on-bad-exit=1 env "),
        "{log}"
    );
    let words = ["--hostfile=hosts", "--launcher=slurm", "--exclude=n1:0", "./rank"];
    let refused = finish(&dir, dir.launch(&words)).expect(2);
    assert!(
        refused.stderr.contains("devices differ") && refused.stderr.contains("ranks differ: 1, 2"),
        "{}",
        refused.stderr
    );
}
