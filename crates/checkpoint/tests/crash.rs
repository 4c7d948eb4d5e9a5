//! A save is stopped at every step, by an error and by the death of the process; the last good checkpoint must load.
#![allow(clippy::unwrap_used)] // helpers of tests, which the lint's exception does not cover

mod common;

use std::io;
use std::num::NonZeroU64;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use common::{TempDir, World, names};
use ferrotron_checkpoint::{Checkpoint, Error, FaultPoint, SaveOptions, layout};

const KILL_AT: &str = "FERROTRON_TEST_KILL_AT";
const KILL_IN: &str = "FERROTRON_TEST_KILL_IN";

fn world(version: u64) -> World {
    World { tp: 2, dp: 1, version }
}

/// Keeps multiples of 100 only, so that the predecessor is deleted after a save.
fn retain() -> SaveOptions {
    SaveOptions { retain_interval: NonZeroU64::new(100), ..SaveOptions::default() }
}

/// Stops at `point`, as if the disk were full.
fn stop_at(point: FaultPoint) -> SaveOptions {
    let hook = move |p| if p == point { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(()) };
    SaveOptions { faults: Some(Arc::new(hook)), ..retain() }
}

/// Loads by the tracker, checks all numbers and every element; `want` is (iteration, version).
fn expect(root: &Path, want: (u64, u64), when: &str) {
    let ckpt = Checkpoint::open(root, None).unwrap_or_else(|e| panic!("{when}: {e}"));
    assert_eq!(ckpt.common().iteration, want.0, "{when}");
    ckpt.verify().unwrap_or_else(|e| panic!("{when}: {e}"));
    world(want.1).check(&ckpt).unwrap_or_else(|e| panic!("{when}: {e}"));
}

/// After any stop the next run saves, loads, and leaves nothing behind.
fn expect_recovery(root: &Path, when: &str) {
    world(9).save(root, 30, "next", &retain()).unwrap_or_else(|e| panic!("{when}: {e}"));
    expect(root, (30, 9), when);
    let left = names(root);
    // An iteration that was complete but not yet in the tracker stays: it is loadable by --ckpt-step.
    assert!(left.iter().all(|n| n == layout::TRACKER || !n.contains('.')), "{when}: {left:?}");
}

#[test]
fn points_come_in_order() {
    let dir = TempDir::new();
    let seen = Arc::new(Mutex::new(vec![]));
    let log = seen.clone();
    let hook = move |p| {
        log.lock().unwrap().push(p);
        Ok(())
    };
    world(1).save(&dir, 10, "a", &retain()).unwrap();
    let options = SaveOptions { faults: Some(Arc::new(hook)), ..retain() };
    world(2).save(&dir, 20, "b", &options).unwrap();
    let mut commit: Vec<_> = seen.lock().unwrap().iter().copied().filter(|p| *p >= FaultPoint::Manifest).collect();
    assert!(commit.is_sorted());
    seen.lock().unwrap().clear();
    world(3).save(&dir, 20, "c", &options).unwrap();
    commit.extend(seen.lock().unwrap().iter());
    // The two saves together (a new iteration, a re-save) pass every point.
    assert!(FaultPoint::ALL.iter().all(|p| commit.contains(p)), "{commit:?}");
}

#[test]
fn stopped_first_save_leaves_nothing_to_load() {
    for point in FaultPoint::ALL.into_iter().filter(|p| *p < FaultPoint::TrackerRenamed && *p != FaultPoint::OldAside) {
        let dir = TempDir::new();
        let err = world(1).save(&dir, 10, "a", &stop_at(point)).unwrap_err();
        assert!(matches!(&err, Error::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull), "{err}");
        let err = Checkpoint::open(&*dir, None).unwrap_err();
        assert!(matches!(err, Error::NothingToLoad { .. }), "{point:?}: {err}");
        expect_recovery(&dir, &format!("first save stopped at {point:?}"));
    }
}

#[test]
fn stopped_save_of_a_new_iteration() {
    for point in FaultPoint::ALL {
        if matches!(point, FaultPoint::OldAside | FaultPoint::OldDeleted) {
            continue; // re-saves only
        }
        let dir = TempDir::new();
        let when = format!("stopped at {point:?}");
        world(1).save(&dir, 10, "a", &retain()).unwrap();
        world(2).save(&dir, 20, "b", &stop_at(point)).expect_err(&when);
        expect(&dir, if point < FaultPoint::TrackerRenamed { (10, 1) } else { (20, 2) }, &when);
        expect_recovery(&dir, &when);
    }
}

#[test]
fn stopped_re_save_of_an_iteration() {
    for point in FaultPoint::ALL {
        if matches!(point, FaultPoint::PreviousAside | FaultPoint::PreviousDeleted) {
            continue; // the previous checkpoint is the replaced one
        }
        let dir = TempDir::new();
        let when = format!("re-save stopped at {point:?}");
        world(1).save(&dir, 20, "a", &retain()).unwrap();
        world(2).save(&dir, 20, "b", &stop_at(point)).expect_err(&when);
        let want = (20, if point < FaultPoint::Renamed { 1 } else { 2 });
        expect(&dir, want, &when);
        // The next begin gives a checkpoint that was moved aside its name back: stopped right after, it still loads.
        world(3).save(&dir, 30, "c", &stop_at(FaultPoint::Cleaned)).expect_err(&when);
        expect(&dir, want, &when);
        assert_eq!(names(&dir), ["iter_0000020", layout::TRACKER], "{when}");
        expect_recovery(&dir, &when);
    }
}

/// The same with a process that dies on the spot: no destructor runs, nothing is flushed or tidied.
#[test]
fn killed_processes() {
    if let (Ok(point), Ok(root)) = (std::env::var(KILL_AT), std::env::var(KILL_IN)) {
        // We are the child.
        let hook = move |p| if format!("{p:?}") == point { std::process::abort() } else { Ok(()) };
        let options = SaveOptions { faults: Some(Arc::new(hook)), ..retain() };
        world(2).save(root.as_ref(), 20, "b", &options).unwrap();
        panic!("the child went past the point");
    }
    for re_save in [false, true] {
        for point in [
            FaultPoint::ShardData,
            FaultPoint::ShardIndex,
            FaultPoint::FolderSynced,
            FaultPoint::OldAside,
            FaultPoint::Renamed,
            FaultPoint::TrackerWritten,
            FaultPoint::TrackerRenamed,
        ] {
            if point == FaultPoint::OldAside && !re_save {
                continue;
            }
            let dir = TempDir::new();
            let when = format!("killed at {point:?}, re-save {re_save}");
            world(1).save(&dir, if re_save { 20 } else { 10 }, "a", &retain()).unwrap();
            let child = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "killed_processes", "--nocapture"])
                .env(KILL_AT, format!("{point:?}"))
                .env(KILL_IN, &dir.0)
                .output()
                .unwrap();
            assert_eq!(child.status.code(), None, "{when}: the child must die by a signal");
            let want = match (re_save, point) {
                (false, p) if p < FaultPoint::TrackerRenamed => (10, 1),
                (true, p) if p < FaultPoint::Renamed => (20, 1),
                _ => (20, 2),
            };
            expect(&dir, want, &when);
            expect_recovery(&dir, &when);
        }
    }
}
