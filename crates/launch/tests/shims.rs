//! Old command lines through the stand-ins, in a POSIX shell without any Python.

#![allow(clippy::unwrap_used)] // helpers of tests

mod common;

use std::process::Command;

use common::{Dir, Done, finish};

/// An installation with stand-ins for our binaries, its shims, and a "real" python further down PATH.
fn installed(name: &str) -> Dir {
    let dir = Dir::new(name);
    std::fs::create_dir_all(dir.path("in stall")).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_launch-for-tests"), dir.path("in stall/ferrotron")).unwrap();
    dir.script("in stall/pretrain_gpt", "echo pretrain ${RANK:--} ${WORLD_SIZE:--} $#: \"$@\"");
    dir.script("in stall/preprocess_data", "echo preprocess $#: \"$@\"");
    dir.script("bin/python", "echo real python $#: \"$@\"");
    let done = finish(&dir, dir.program(&dir.path("in stall/ferrotron"), &["shims", "my shims"])).expect(0);
    let line = format!("export PATH='{}/my shims/bin':\"$PATH\"", dir.0.display());
    assert!(done.stdout.contains(&line), "{}", done.stdout);
    dir
}

fn typed(dir: &Dir, line: &str) -> Done {
    let path = format!("{0}/my shims/bin:{0}/bin:/usr/bin:/bin", dir.0.display());
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(line).current_dir(&dir.0).env_clear().env("PATH", path);
    finish(dir, command)
}

#[test]
fn old_command_lines_run_unchanged() {
    let dir = installed("shims");
    let one = "pretrain 0 1 3: --lr 1 a b\n";
    let bare = "pretrain - - 3: --lr 1 a b\n";
    let two = "pretrain 0 2 3: --lr 1 a b\npretrain 1 2 3: --lr 1 a b\n";
    for (line, expected) in [
        ("torchrun --nproc_per_node=2 --master_port=0 pretrain_gpt.py --lr 1 'a b'", two),
        ("torchrun --standalone ./Megatron-LM/pretrain_gpt.py --lr 1 'a b'", one),
        ("python -m torch.distributed.launch --nproc_per_node=2 pretrain_gpt.py --lr 1 'a b'", two),
        ("python3 -u -m torch.distributed.run --nproc_per_node 2 pretrain_gpt.py --lr 1 'a b'", two),
        ("python -W ignore -X dev -B -m torch.distributed.launch pretrain_gpt.py --lr 1 'a b'", one),
        ("deepspeed --num_gpus=2 pretrain_gpt.py --lr 1 'a b'", two),
        ("deepspeed --num_gpus 2 --master_port 0 /some/where/pretrain_gpt.py --lr 1 'a b'", two),
        ("ft_launcher --nproc_per_node 2 --nnodes 1 pretrain_gpt.py --lr 1 'a b'", two),
        ("msrun --worker_num 2 --local_worker_num 2 --join True pretrain_gpt.py --lr 1 'a b'", two),
        ("python pretrain_gpt.py --lr 1 'a b'", bare),
        ("python -u /some/where/pretrain_gpt.py --lr 1 'a b'", bare),
        ("'./my shims/pretrain_gpt.py' --lr 1 'a b'", bare),
        ("GPUS_PER_NODE=2 bash 'my shims/examples/pretrain_gpt.sh' --lr 1 'a b'", two),
        ("GPUS_PER_NODE=1 sh 'my shims/examples/pretrain_gpt_distributed.sh' --lr 1 'a b'", one),
        (
            "NNODES=2 NODE_RANK=1 MASTER_ADDR=m GPUS_PER_NODE=1 bash 'my shims/examples/pretrain_gpt_distributed.sh' --lr 1 'a b'",
            "pretrain 1 2 3: --lr 1 a b\n",
        ),
        ("python tools/preprocess_data.py --input 'x y' --workers 2", "preprocess 4: --input x y --workers 2\n"),
        ("'my shims/tools/preprocess_data.py' --input x", "preprocess 2: --input x\n"),
        ("env RANK=3 WORLD_SIZE=4 python pretrain_gpt.py", "pretrain 3 4 0:\n"),
    ] {
        let done = typed(&dir, line).expect(0);
        let mut lines: Vec<&str> = done.stdout.lines().collect();
        lines.sort();
        let out: String = lines.iter().map(|l| format!("{l}\n")).collect();
        assert_eq!(out, expected, "{line}\n{}", done.stderr);
    }
}

#[test]
fn everything_else_is_the_real_pythons() {
    let dir = installed("shims-python");
    for (line, expected) in [
        ("python -c 'import torch; print(1)' a", "real python 3: -c import torch; print(1) a\n"),
        ("python setup.py pretrain_gpt.py", "real python 2: setup.py pretrain_gpt.py\n"),
        ("python -m pip install x", "real python 4: -m pip install x\n"),
        ("python -m torch.distributed.other", "real python 2: -m torch.distributed.other\n"),
        ("python", "real python 0:\n"),
        ("python --version", "real python 1: --version\n"),
        ("python -W ignore other.py '*' '' 'a  b'", "real python 6: -W ignore other.py *  a  b\n"),
        ("python -c pretrain_gpt.py", "real python 2: -c pretrain_gpt.py\n"),
    ] {
        assert_eq!(typed(&dir, line).expect(0).stdout, expected, "{line}");
    }
    std::fs::remove_file(dir.path("bin/python")).unwrap();
    let line = format!("PATH='{}/my shims/bin':/nowhere; python other.py", dir.0.display());
    // grep is not there either: the stand-in must not call itself for ever.
    let done = typed(&dir, &line).expect(127);
    assert!(done.stderr.contains("there is no python on PATH"), "{}", done.stderr);
}

#[test]
fn foreign_files_stay_and_own_ones_are_renewed() {
    let dir = installed("shims-foreign");
    let launcher = dir.path("in stall/ferrotron");
    finish(&dir, dir.program(&launcher, &["shims", "my shims"])).expect(0);
    dir.write("tree/pretrain_gpt.py", "import torch\n");
    let done = finish(&dir, dir.program(&launcher, &["shims", "tree"])).expect(1);
    assert!(done.stderr.contains("tree/pretrain_gpt.py is there and was not written by"), "{}", done.stderr);
    assert_eq!(dir.read("tree/pretrain_gpt.py"), "import torch\n");
    assert!(!dir.path("tree/bin").exists());
    finish(&dir, dir.program(&launcher, &["shims"])).expect(2);
    finish(&dir, dir.program(&launcher, &["shims", "--help"])).expect(0);
}

#[test]
fn moved_binaries_are_found_by_variable_or_path() {
    let dir = installed("shims-moved");
    std::fs::rename(dir.path("in stall"), dir.path("moved")).unwrap();
    let done = typed(&dir, "python pretrain_gpt.py").expect(127);
    assert!(
        done.stderr.contains("pretrain_gpt is neither in ") && done.stderr.contains("FERROTRON_BIN=FOLDER"),
        "{}",
        done.stderr
    );
    assert_eq!(typed(&dir, "FERROTRON_BIN=$PWD/moved python pretrain_gpt.py").expect(0).stdout, "pretrain - - 0:\n");
    assert_eq!(typed(&dir, "PATH=$PATH:$PWD/moved; python pretrain_gpt.py").expect(0).stdout, "pretrain - - 0:\n");
}
