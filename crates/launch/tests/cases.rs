//! Users' reports of launching gone wrong, each a test by its id.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::net::TcpListener;
use std::time::Duration;

use common::{Dir, LIMIT, finish, is_alive, kill, numbers, start, wait_until_gone};

/// pytorch/torchtune#1025, pytorch#126510 and others: jobs on one node collide on a fixed port.
#[test]
fn lau_02_two_jobs_on_one_node_and_a_port_that_is_held() {
    let dir = Dir::new("lau02");
    // Rank 0 must hold its port while the other job starts; nothing listens, so the ports are only compared.
    dir.script(
        "rank",
        "echo $MASTER_PORT; echo $$ >> $DIR/started; while [ $(cat $DIR/started | wc -l) -lt 4 ]; do sleep 0.02; done",
    );
    dir.write("started", "");
    let jobs = [(); 2].map(|()| start(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"])));
    let ports = jobs.map(|job| {
        let out = job.finish().expect(0).stdout;
        let ports: Vec<String> = out.lines().map(String::from).collect();
        assert!(ports.len() == 2 && ports[0] == ports[1], "{ports:?}");
        ports[0].clone()
    });
    assert_ne!(ports[0], ports[1]);

    let held = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = held.local_addr().unwrap().port().to_string();
    let mut by_variable = dir.launch(&["--nproc_per_node", "2", "./rank"]);
    by_variable.env("MASTER_PORT", &port);
    for command in [by_variable, dir.launch(&["--nproc_per_node=2", "--master_port", &port, "./rank"])] {
        let done = finish(&dir, command).expect(2);
        assert!(done.took < Duration::from_secs(2), "{:?}", done.took);
        let holder = format!("is used by pid {} (", std::process::id());
        for what in [&format!("port {port} on "), &holder, "omit the port"] {
            assert!(done.stderr.contains(what), "no '{what}' in:\n{}", done.stderr);
        }
    }
}

fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() & 1 == 1
}

/// deepspeedai/DeepSpeed#1016, #714, #3645: children that survive, in any of the ways a launcher can end.
#[test]
fn lau_04_no_survivors_however_the_launcher_ends() {
    let dir = Dir::new("lau04");
    let plain = "echo $$ >> $DIR/pids; sleep 60 & echo $! >> $DIR/pids; wait";
    let deaf = "trap '' INT TERM; echo $$ >> $DIR/pids; sleep 60 & echo $! >> $DIR/pids; while :; do wait; done";
    for (body, signals, code) in [
        (plain, &["INT"][..], 130),
        (plain, &["TERM"], 143),
        (plain, &["HUP"], 129),
        (plain, &["KILL"], 1009),
        (deaf, &["INT", "INT"], 130),
        (deaf, &["TERM", "TERM"], 143),
        (deaf, &["KILL"], 1009),
    ] {
        if signals == ["HUP"] && hangup_is_ignored() {
            continue; // these tests run under nohup, which the launcher must respect
        }
        dir.script("rank", body);
        let _ = std::fs::remove_file(dir.path("pids"));
        let running = start(&dir, dir.launch(&["--nproc_per_node", "4", "./rank"]));
        let pids = numbers(&dir.wait_for_lines("pids", 8));
        assert!(pids.iter().all(|p| is_alive(*p)));
        for (i, signal) in signals.iter().enumerate() {
            if i > 0 {
                running.wait_for("is passed on to 4 process(es)");
                std::thread::sleep(Duration::from_millis(400)); // closer ones count as one
            }
            kill(signal, running.pid());
        }
        let done = running.finish().expect(code);
        assert!(done.took < Duration::from_secs(10), "{signals:?} {:?}", done.took);
        wait_until_gone(&pids, LIMIT);
        if code != 1009 {
            assert!(done.last_line().starts_with("ferrotron launch: ended by SIG"), "{}", done.stderr);
        }
    }
}

/// NVIDIA/Megatron-LM#1376: a signal to the launcher never reached the ranks' handler. (That a rank saves at any moment is
/// the trainer's part.)
#[test]
fn lau_05_a_signal_to_the_launcher_reaches_each_rank_once_at_any_moment() {
    let dir = Dir::new("lau05");
    let saves = "trap 'echo save $RANK >> $DIR/saved; sleep 0.2; echo done $RANK >> $DIR/saved; exit 0' TERM\n\
        echo up >> $DIR/up; while :; do sleep 0.02; done";
    dir.script("rank", saves);
    for wait_for_ranks in [1, 4] {
        let _ = ["up", "saved"].map(|f| std::fs::remove_file(dir.path(f)));
        let running = start(&dir, dir.launch(&["--nproc_per_node", "4", "./rank"]));
        dir.wait_for_lines("up", wait_for_ranks); // 1: some ranks are still starting
        if wait_for_ranks == 1 {
            kill("TERM", running.pid());
            let code = running.finish().code();
            // A rank that was told before its handler stood died of the signal; the others had time to save.
            assert!(code == 0 || code == 143, "{code}");
            let saved = dir.read("saved");
            let count = |word: &str| saved.lines().filter(|l| l.starts_with(word)).count();
            assert_eq!(count("save "), count("done "), "{saved}");
            continue;
        }
        kill("TERM", running.pid());
        running.finish().expect(0);
        let saved = dir.wait_for_lines("saved", 8);
        for rank in 0..4 {
            for word in ["save", "done"] {
                assert_eq!(saved.iter().filter(|l| **l == format!("{word} {rank}")).count(), 1, "{saved:?}");
            }
        }
    }
    // To one worker only: it saves, the launcher goes on with the others.
    let _ = ["up", "saved"].map(|f| std::fs::remove_file(dir.path(f)));
    dir.script("rank", &format!("echo $$ > $DIR/pid.$RANK\n{saves}"));
    let running = start(&dir, dir.launch(&["--nproc_per_node", "2", "./rank"]));
    dir.wait_for_lines("up", 2);
    kill("TERM", dir.read("pid.0").trim().parse().unwrap());
    dir.wait_for_lines("saved", 2);
    assert_eq!(dir.read("saved"), "save 0\ndone 0\n");
    kill("TERM", running.pid());
    running.finish().expect(0);
}

/// pytorch/torchtitan#4510: the first failure scrolls away above hundreds of secondary errors.
#[test]
fn lau_06_the_last_twenty_lines_hold_the_first_failure() {
    let dir = Dir::new("lau06");
    let noise =
        "i=0; while [ $i -lt 100 ]; do echo \"error $i of rank $RANK: peer is gone\" >&2; i=$((i + 1)); done; exit 1";
    let body = format!(
        "trap '{noise}' TERM\n\
         if [ $RANK = 5 ]; then while [ $(cat $DIR/up | wc -l) -lt 7 ]; do sleep 0.02; done\n\
         echo 'out of memory in layer 3' >&2; exit 66; fi\n\
         echo up >> $DIR/up; while :; do sleep 0.02; done"
    );
    dir.script("rank", &body);
    dir.write("up", "");
    let words = ["--nproc_per_node=8", "--tee=3", "--log_dir=logs", "./rank", "--config", "run.yaml"];
    let done = finish(&dir, dir.launch(&words)).expect(66);
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert!(lines.len() > 700, "{}", lines.len());
    let tail = &lines[lines.len() - 20..];
    let logs = dir.path("logs").read_dir().unwrap().flatten().next().unwrap().file_name().into_string().unwrap();
    for what in ["| out of memory in layer 3", "--config run.yaml", &logs] {
        assert!(tail.iter().any(|l| l.contains(what)), "no '{what}' in {tail:#?}");
    }
    assert!(
        tail[19].starts_with("ferrotron launch: rank 5 (pid ") && tail[19].contains("exited with code 66"),
        "{}",
        tail[19]
    );
}
