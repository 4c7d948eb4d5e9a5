//! Every release of CANN and every chip that we mean to run on starts and computes; what a release lacks is told, one line
//! a function; what a chip cannot is refused before training.

mod common;

use std::sync::Arc;

use ferrotron_ascend::{AscendBackend, AscendDevice, Cann, Environment};
use ferrotron_ascend_mock::profile::{CHIPS, RELEASES, Release};
use ferrotron_conformance::{run_cases, suite};
use ferrotron_device::{Backend, DType, Device};

#[test]
fn every_release_starts_and_computes() {
    for release in &RELEASES {
        let home = common::install(&format!("release-{}", release.version), release);
        let control = common::control_of(&home);
        let version = std::ffi::CString::new(release.version).unwrap();
        // SAFETY: a C string.
        unsafe { (control.own.ferrotronMockVersion)(version.as_ptr()) };
        let cann = Cann::load(&Environment::only(&home)).unwrap_or_else(|e| panic!("{}: {e}", release.version));
        assert_eq!(cann.version.as_deref(), Some(release.version));
        let lacking = cann.acl.lacking();
        assert!(release.absent.iter().all(|name| lacking.contains(name)), "{lacking:?} of {release:?}");
        let opened = AscendDevice::open(Arc::new(cann), 0, None).unwrap();
        assert_eq!(opened.lacking(), [""; 0], "operators of {}", release.version);
        let said = opened.describe().join("\n");
        assert!(said.contains(&format!("Ascend910B3 (CANN {})", release.version)), "{said}");
        for name in release.absent {
            assert!(said.contains(name), "{name} is not told:\n{said}");
        }
        let device: Arc<dyn Device> = Arc::new(opened);
        let mut cases = suite();
        let few = |c: &ferrotron_conformance::Case| match c.op {
            "gemm" => c.name.contains("M=3"),
            "attention" | "attention_backward" => c.name.contains("cu_q=[0, 7]") && c.name.contains("N=4 G=2"),
            "dropout" => c.name.contains("T=3"),
            op => {
                ["rms_norm", "adam", "glu", "rope", "embedding_backward"].contains(&op)
                    && c.name.len().is_multiple_of(4)
            }
        };
        cases.retain(few);
        assert!(cases.len() > 40, "{}", cases.len());
        run_cases(&device, &cases).unwrap().assert_passed();
        drop(device);
        assert_eq!((control.report(0).as_str(), control.memory(0)), ("", 0), "{}", release.version);
        common::remove(&home);
    }
}

#[test]
fn what_a_release_lacks_that_nothing_works_without_is_one_line_each() {
    let broken = Release { absent: &["aclrtMalloc", "aclrtFree", "aclCreateScalar"], ..RELEASES[3] };
    let home = common::install("broken", &broken);
    let e = AscendBackend { environment: Environment::only(&home), ..AscendBackend::default() }.probe().unwrap_err();
    let lines: Vec<&str> = e.reason.lines().collect();
    assert!(lines.len() == 3 && lines[1].contains("no aclrtMalloc in") && lines[2].contains("no aclrtFree in"), "{e}");
    common::remove(&home);
}

/// Chips are variables of the mock's process, so each runs in one of its own: this test starts itself again.
#[test]
fn every_chip_is_known_for_what_it_can() {
    let release = Release { libraries: RELEASES[0].libraries, ..RELEASES[3] };
    if let Ok(home) = std::env::var("FERROTRON_TEST_CHIP_HOME") {
        let backend = AscendBackend { environment: Environment::only(home), ..AscendBackend::default() };
        let model = &backend.probe().unwrap()[0].model;
        let device = backend.open(0).unwrap();
        println!("chip {} bf16 {}", model, device.ops().supports(DType::BF16));
        return;
    }
    for chip in CHIPS {
        let home = common::install(&format!("chip-{}", chip.name), &release);
        let out = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "every_chip_is_known_for_what_it_can", "--nocapture"])
            .env("FERROTRON_TEST_CHIP_HOME", &home)
            .env("FERROTRON_MOCK_SOC", chip.name)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let want = format!("chip {} (CANN 8.5.0) bf16 {}", chip.name, chip.bf16);
        assert!(out.status.success() && text.contains(&want), "{want}\n{text}");
        common::remove(&home);
    }
}
