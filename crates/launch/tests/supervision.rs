//! Real ranks (small shell scripts): environment, exit codes, signals, restarts, output, nothing left behind.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use common::{Dir, LIMIT, finish, is_alive, kill, numbers, start, wait_until_gone};

/// A rank that notes its process id in `pids` and waits long; its sleep is a process of its own.
const WAITS: &str = "echo $$ >> $DIR/pids; sleep 60 & echo $! >> $DIR/pids; wait";

fn environments(dir: &Dir, words: &[&str], extra: &[(&str, &str)]) -> BTreeMap<String, BTreeMap<String, String>> {
    dir.script("rank", "env > $DIR/env.$RANK");
    let mut command = dir.launch(&[words, &["./rank"]].concat());
    command.envs(extra.iter().copied());
    finish(dir, command).expect(0);
    let mut all = BTreeMap::new();
    for entry in dir.0.read_dir().unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        if let Some(rank) = name.strip_prefix("env.") {
            let text = dir.read(&name);
            let pairs = text.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.to_string(), v.to_string()));
            all.insert(rank.to_string(), pairs.collect());
        }
    }
    all
}

#[test]
fn ranks_get_torchruns_environment() {
    let dir = Dir::new("environment");
    let all = environments(&dir, &["--standalone", "--nproc_per_node=3", "--max_restarts=2", "--rdzv_id=job7"], &[]);
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["0", "1", "2"]);
    let ports: Vec<&str> = all.values().map(|e| e["MASTER_PORT"].as_str()).collect();
    assert!(ports.iter().all(|p| *p == ports[0] && p.parse::<u16>().is_ok_and(|n| n >= 1024)), "{ports:?}");
    for (rank, env) in &all {
        for (name, value) in [
            ("RANK", rank.as_str()),
            ("LOCAL_RANK", rank),
            ("ROLE_RANK", rank),
            ("WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "3"),
            ("ROLE_WORLD_SIZE", "3"),
            ("GROUP_RANK", "0"),
            ("GROUP_WORLD_SIZE", "1"),
            ("ROLE_NAME", "default"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("TORCHELASTIC_RESTART_COUNT", "0"),
            ("TORCHELASTIC_MAX_RESTARTS", "2"),
            ("TORCHELASTIC_RUN_ID", "job7"),
            ("TORCHELASTIC_USE_AGENT_STORE", "False"),
        ] {
            assert_eq!(env[name], value, "{name} of rank {rank}");
        }
        assert!(env["OMP_NUM_THREADS"].parse::<usize>().unwrap() >= 1);
    }
}

#[test]
fn a_later_node_counts_on_and_keeps_what_the_user_set() {
    let dir = Dir::new("second-node");
    let words =
        ["--nnodes=2", "--node_rank=1", "--nproc-per-node", "2", "--master_addr=10.0.0.1", "--master_port=6000"];
    let all = environments(&dir, &words, &[("OMP_NUM_THREADS", "5"), ("RANK", "77")]);
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["2", "3"]);
    let env = &all["3"];
    let got =
        ["LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"].map(|n| &env[n]);
    assert_eq!(got, ["1", "4", "1", "10.0.0.1", "6000", "5"]);
}

#[test]
fn nodes_may_have_different_numbers_of_ranks() {
    let dir = Dir::new("slots");
    let words = ["--slots-per-node=3,1,2", "--node-rank=2", "--master-addr=n0", "--visible-devices=5,7"];
    let all = environments(&dir, &words, &[]);
    assert_eq!(all.keys().map(String::as_str).collect::<Vec<_>>(), ["4", "5"]);
    let got =
        ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"];
    assert_eq!(got.map(|n| all["4"][n].as_str()), ["6", "2", "3", "5,7", "5,7"]);
    assert_eq!(all["4"]["MASTER_PORT"], "29500");
}

#[test]
fn one_failure_ends_all_within_five_seconds_with_its_code() {
    let dir = Dir::new("one-fails");
    let body = format!("if [ $RANK = 2 ]; then echo 'cannot read the data' >&2; sleep 0.2; exit 7; fi\n{WAITS}");
    dir.script("rank", &body);
    let done = finish(&dir, dir.launch(&["--nproc_per_node", "4", "./rank", "--some", "two words"])).expect(7);
    assert!(done.took < Duration::from_secs(5), "{:?}", done.took);
    let last = done.last_line();
    assert!(
        last.starts_with("ferrotron launch: rank 2 (pid ") && last.contains(" exited with code 7 after "),
        "{last}"
    );
    assert!(last.ends_with("; 3 other ranks were ended"), "{last}");
    let tail: Vec<&str> = done.stderr.lines().rev().take(6).collect();
    assert!(tail.contains(&"  | cannot read the data"), "{tail:?}");
    assert!(done.stderr.contains("the command was: ") && done.stderr.contains("--some 'two words'"));
    wait_until_gone(&numbers(&dir.wait_for_lines("pids", 6)), LIMIT);
}

#[test]
fn ranks_that_do_not_listen_are_killed() {
    let dir = Dir::new("deaf");
    let deaf = "trap '' TERM; echo $$ >> $DIR/pids; while :; do sleep 0.05; done";
    dir.script(
        "rank",
        &format!("if [ $RANK = 1 ]; then while ! [ -s $DIR/pids ]; do sleep 0.05; done; exit 3; fi\n{deaf}"),
    );
    let done = finish(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"])).expect(3);
    assert!(done.took < Duration::from_secs(6), "{:?}", done.took);
    assert!(done.stderr.contains("had to be killed, for not ending in time: rank 0"), "{}", done.stderr);
    wait_until_gone(&numbers(&dir.wait_for_lines("pids", 1)), LIMIT);
}

#[test]
fn a_stopped_rank_does_not_hold_the_end_up() {
    let dir = Dir::new("stopped");
    dir.script("rank", "if [ $RANK = 1 ]; then sleep 0.3; exit 3; fi; echo $$ >> $DIR/pids; kill -STOP $$; sleep 60");
    let done = finish(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"])).expect(3);
    assert!(done.took < Duration::from_secs(5), "{:?}", done.took);
    wait_until_gone(&numbers(&dir.wait_for_lines("pids", 1)), LIMIT);
}

#[test]
fn death_by_signal_is_128_plus_its_number_and_said_in_words() {
    let dir = Dir::new("signalled");
    for (signal, code, words) in [("KILL", 137, "signal 9 (SIGKILL)"), ("SEGV", 139, "signal 11 (SIGSEGV)")] {
        dir.script("rank", &format!("if [ $RANK = 0 ]; then kill -{signal} $$; fi; sleep 60"));
        let done = finish(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"])).expect(code);
        assert!(done.last_line().contains(words), "{}", done.last_line());
    }
}

#[test]
fn the_killed_rank_is_the_cause_and_not_the_peers_that_noticed() {
    let dir = Dir::new("cause");
    // Rank 1 dies by a signal; the others notice at once and exit with codes of their own.
    let peers = "while ! [ -e $DIR/dead ]; do sleep 0.01; done; echo 'connection closed by rank 1' >&2; exit 1";
    dir.script("rank", &format!("if [ $RANK = 1 ]; then sleep 0.2; touch $DIR/dead; kill -KILL $$; fi\n{peers}"));
    let done = finish(&dir, dir.launch(&["--nproc_per_node", "4", "./rank"])).expect(137);
    assert!(done.last_line().starts_with("ferrotron launch: rank 1 (pid "), "{}", done.last_line());
    // The code for "a peer ended" never hides the reason, even when it comes first. (On a busy machine a rank may be late: the
    // other waits for it to be up.)
    let late = "if [ $RANK = 1 ]; then touch $DIR/up; sleep 0.03; exit 9; fi";
    dir.script("rank", &format!("{late}; while ! [ -e $DIR/up ]; do sleep 0.01; done; exit 75"));
    finish(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"])).expect(9);
}

#[test]
fn signals_reach_every_rank_and_its_code_is_kept() {
    let dir = Dir::new("forwarded");
    let body = "trap 'echo got USR1 $RANK >> $DIR/got' USR1; trap 'echo got USR2 $RANK >> $DIR/got' USR2\n\
        trap 'echo saved $RANK >> $DIR/got; exit 0' TERM\n\
        echo ready >> $DIR/ready; while :; do sleep 0.02; done";
    dir.script("rank", body);
    let running = start(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"]));
    dir.wait_for_lines("ready", 2);
    kill("USR1", running.pid());
    dir.wait_for_lines("got", 2);
    kill("USR2", running.pid());
    dir.wait_for_lines("got", 4);
    kill("TERM", running.pid());
    let done = running.finish().expect(0);
    let mut got: Vec<String> = dir.wait_for_lines("got", 6);
    got.sort();
    assert_eq!(got, ["got USR1 0", "got USR1 1", "got USR2 0", "got USR2 1", "saved 0", "saved 1"]);
    assert_eq!(done.last_line(), "ferrotron launch: ended by SIGTERM: all 2 ranks finished with code 0");
}

#[test]
fn a_code_chosen_for_requeueing_survives_a_signal() {
    let dir = Dir::new("requeue");
    dir.script("rank", "trap 'exit 85' USR1; echo ready >> $DIR/ready; while :; do sleep 0.02; done");
    let running = start(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"]));
    dir.wait_for_lines("ready", 2);
    kill("USR1", running.pid());
    running.finish().expect(85);
    dir.script("rank", "trap 'exit 86' TERM; echo ready >> $DIR/ready2; while :; do sleep 0.02; done");
    let running = start(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"]));
    dir.wait_for_lines("ready2", 2);
    kill("TERM", running.pid());
    running.finish().expect(86);
}

#[test]
fn ranks_start_again_as_often_as_allowed() {
    let dir = Dir::new("restarts");
    let body = "echo $TORCHELASTIC_RESTART_COUNT $RANK >> $DIR/starts\n\
        if [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then exit 4; fi\n\
        if [ $TORCHELASTIC_RESTART_COUNT -lt 2 ]; then sleep 60; fi";
    dir.script("rank", body);
    let words = ["--nproc_per_node", "2", "--redirects", "3", "--log_dir", "logs", "./rank"];
    let done = finish(&dir, dir.launch(&[&["--max_restarts=3"], &words[..]].concat())).expect(0);
    let mut starts = dir.wait_for_lines("starts", 6);
    starts.sort();
    assert_eq!(starts, ["0 0", "0 1", "1 0", "1 1", "2 0", "2 1"]);
    assert!(
        done.stderr.contains("rank 1 exited with code 4; all ranks start again (restart 2 of 3)"),
        "{}",
        done.stderr
    );
    let run = dir.path("logs").read_dir().unwrap().flatten().next().unwrap().path();
    assert!(["attempt_0/1", "attempt_2/0"].iter().all(|f| run.join(f).join("stderr.log").is_file()));

    std::fs::remove_file(dir.path("starts")).unwrap();
    let done = finish(&dir, dir.launch(&["--max_restarts=1", "--nproc_per_node=2", "./rank"])).expect(4);
    assert_eq!(dir.wait_for_lines("starts", 4).len(), 4);
    assert!(done.last_line().contains("rank 1 (pid "), "{}", done.last_line());
}

#[test]
fn output_goes_to_console_and_files_rank_by_rank() {
    let dir = Dir::new("output");
    dir.script("rank", "echo out $RANK; echo err $RANK >&2; printf end");
    let lines = |text: &str| {
        let mut lines: Vec<String> =
            text.lines().map(String::from).filter(|l| !l.contains("ferrotron launch")).collect();
        lines.sort();
        lines
    };
    let plain = finish(&dir, dir.launch(&["--nproc_per_node=1", "./rank"])).expect(0);
    assert_eq!((plain.stdout.as_str(), plain.stderr.as_str()), ("out 0\nend", "err 0\n"));

    let teed = finish(&dir, dir.launch(&["--nproc_per_node=2", "-t", "3", "--log_dir", "l1", "./rank"])).expect(0);
    assert_eq!(lines(&teed.stdout), ["[default0]:end", "[default0]:out 0", "[default1]:end", "[default1]:out 1"]);
    assert_eq!(lines(&teed.stderr), ["[default0]:err 0", "[default1]:err 1"]);
    let run = dir.path("l1").read_dir().unwrap().flatten().next().unwrap().path();
    let file = |rank: &str, name: &str| std::fs::read_to_string(run.join("attempt_0").join(rank).join(name)).unwrap();
    assert_eq!((file("0", "stdout.log"), file("1", "stderr.log")), ("out 0\nend".into(), "err 1\n".into()));

    let words = ["--nproc_per_node=2", "-r", "0:3,1:1", "--log-dir", "l2", "./rank"];
    let hidden = finish(&dir, dir.launch(&words)).expect(0);
    assert_eq!((lines(&hidden.stdout), lines(&hidden.stderr)), (vec![], vec!["err 1".to_string()]));
    let run = dir.path("l2").read_dir().unwrap().flatten().next().unwrap().path();
    assert_eq!(std::fs::read_to_string(run.join("attempt_0/0/stderr.log")).unwrap(), "err 0\n");
    assert!(!run.join("attempt_0/1/stderr.log").exists());

    let only =
        finish(&dir, dir.launch(&["--nproc_per_node=2", "--local-ranks-filter=1", "--tee=3", "./rank"])).expect(0);
    assert_eq!((lines(&only.stdout).len(), lines(&only.stderr)), (2, vec!["[default1]:err 1".to_string()]));
}

#[test]
fn the_last_lines_of_a_redirected_rank_come_from_its_file() {
    let dir = Dir::new("redirected-tail");
    dir.script("rank", "i=0; while [ $i -lt 30 ]; do echo line $i >&2; i=$((i + 1)); done; exit 1");
    let done = finish(&dir, dir.launch(&["-r3", "--log_dir=logs", "./rank"])).expect(1);
    assert!(done.stderr.contains("  | line 29\n") && done.stderr.contains("  | line 20\n"), "{}", done.stderr);
    assert!(!done.stderr.contains("line 19"), "{}", done.stderr);
    assert!(done.stderr.contains("the log files are in "), "{}", done.stderr);
}

#[test]
fn a_killed_launcher_takes_its_ranks_along() {
    let dir = Dir::new("sigkill");
    dir.script("rank", WAITS); // the rank is a shell, its sleep a process of its own
    let running = start(&dir, dir.launch(&["--nproc_per_node", "3", "./rank"]));
    let pids = numbers(&dir.wait_for_lines("pids", 6));
    assert!(pids.iter().all(|p| is_alive(*p)));
    kill("KILL", running.pid());
    running.finish().expect(1009);
    wait_until_gone(&pids, LIMIT);
}

#[test]
fn a_launcher_under_nohup_survives_a_hangup() {
    let dir = Dir::new("nohup");
    dir.script("rank", "echo up >> $DIR/up; while ! [ -e $DIR/go ]; do sleep 0.02; done");
    dir.script("nohup", "trap '' HUP; exec \"$@\"");
    let words = [env!("CARGO_BIN_EXE_launch-for-tests"), "launch", "./rank"];
    let running = start(&dir, dir.program(&dir.path("nohup"), &words));
    dir.wait_for_lines("up", 1);
    kill("HUP", running.pid());
    std::thread::sleep(Duration::from_millis(100));
    dir.write("go", "");
    running.finish().expect(0);
}

#[test]
fn no_zombies_while_the_others_run() {
    let dir = Dir::new("zombies");
    dir.script(
        "rank",
        "echo $$ >> $DIR/pids; if [ $RANK = 1 ]; then exit 0; fi; while ! [ -e $DIR/go ]; do sleep 0.02; done",
    );
    let running = start(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"]));
    let pids = numbers(&dir.wait_for_lines("pids", 2));
    // A zombie would keep its folder in /proc until the launcher ends.
    let until = std::time::Instant::now() + LIMIT;
    while pids.iter().all(|p| std::path::Path::new(&format!("/proc/{p}")).exists()) {
        assert!(std::time::Instant::now() < until, "a zombie is left");
        std::thread::sleep(Duration::from_millis(5));
    }
    dir.write("go", "");
    running.finish().expect(0);
}

#[test]
fn a_program_that_cannot_start_says_why() {
    let dir = Dir::new("no-start");
    dir.script("rank", "");
    dir.write("rank", "#!/nowhere/interpreter\n");
    let done = finish(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"])).expect(127);
    assert!(done.last_line().contains("the interpreter in its #! line, is not there"), "{}", done.last_line());
}
