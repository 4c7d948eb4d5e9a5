//! Graphs of work on the device: new parameters go into the graph that is there, another shape makes a new one, and a host
//! that waits in between is told so.

#![allow(clippy::unwrap_used)] // a test

mod common;

use std::sync::Arc;

use ferrotron_cuda::CudaDevice;
use ferrotron_device::pool::persistent;
use ferrotron_device::{DType, Device, Error, Graphs, Result, Stream, StreamRole, Tensor, host};

/// A device, its home stream, one to copy, and a vector.
struct Bench {
    device: Arc<CudaDevice>,
    home: Stream,
    copy: Stream,
    x: Tensor,
}

const N: usize = 1000;

impl Bench {
    fn new(home: &std::path::Path) -> Bench {
        let device = Arc::new(common::open(home, 0, None));
        let (home, copy) = (device.stream(StreamRole::Compute).unwrap(), device.stream(StreamRole::Copy).unwrap());
        let shared: Arc<dyn Device> = device.clone();
        let x = persistent(&*shared, &home, "a test", DType::F32, N).unwrap();
        Bench { device, home, copy, x }
    }

    fn graphs(&self) -> &dyn Graphs {
        self.device.graphs().unwrap()
    }

    /// `x = upload(value) * 2^doublings + 0.5 * doublings`, as one graph over two streams.
    fn step(&mut self, value: f32, doublings: usize) -> Result<f32> {
        let Bench { device, home, copy, x } = self;
        let ops = device.ops();
        device.graphs().unwrap().of(home, || {
            copy.wait(&home.record());
            host::write_f32(&**device, copy, &vec![value; N], x)?;
            home.wait(&copy.record());
            for _ in 0..doublings {
                let same = x.clone();
                ops.add(home, &same, &same, x)?;
            }
            Ok::<(), Error>(())
        })?;
        let got = host::read_f32(&**device, home, x)?;
        assert!(got.iter().all(|v| *v == got[0]));
        Ok(got[0])
    }
}

#[test]
fn a_graph_takes_new_parameters_and_another_shape_makes_a_new_one() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let (home, control) = (common::home("graphs"), common::control());
    let mut b = Bench::new(&home);
    // making a second graph fails
    control.faults(0, "cuGraphInstantiateWithFlags#2=1");
    for value in [1.0, 2.5, -3.0] {
        assert_eq!(b.step(value, 3).unwrap(), 8.0 * value);
    }
    assert!(
        b.step(1.0, 4).unwrap_err().to_string().contains("cuGraphInstantiate: 1"),
        "one more kernel, and the fault"
    );
    control.no_faults(0);
    let mut b = Bench::new(&home);
    assert_eq!(b.step(1.0, 3).unwrap(), 8.0);
    assert_eq!(b.step(1.0, 4).unwrap(), 16.0);
    assert_eq!(b.step(3.0, 4).unwrap(), 48.0);
    assert_eq!(control.report(0), "");
    drop(b);
    common::remove(&home);
}

#[test]
fn a_host_that_waits_while_a_step_is_collected_is_told_and_the_device_goes_on() {
    let _alone = ferrotron_tests::alone();
    if !common::kernels() {
        return;
    }
    let (home, control) = (common::home("graphs-wait"), common::control());
    let mut b = Bench::new(&home);
    b.device.ops().fill(&b.home, 7.0, &mut b.x).unwrap();
    let failed = b.graphs().of(&b.home, || {
        b.device.ops().fill(&b.home, 1.0, &mut b.x.clone())?;
        host::read_f32(&*b.device, &b.home, &b.x)
    });
    let e = failed.unwrap_err().to_string();
    assert!(
        e.contains("the host waits for the device while a step is collected") && e.contains("--enable-cuda-graph"),
        "{e}"
    );
    let mark = b.graphs().of(&b.home, || Ok::<_, Error>(b.home.record())).unwrap();
    assert!(b.graphs().launch(&b.home).is_err(), "nothing is collected");
    assert_eq!(host::read_f32(&*b.device, &b.home, &b.x).unwrap(), [7.0; N], "what was given up has not run");
    assert!(mark.is_done() && mark.has_begun());
    b.graphs().collect(&b.home).unwrap();
    assert!(b.graphs().collect(&b.home).is_err(), "one at a time");
    let inside = b.home.record();
    assert!(!inside.is_done() && !inside.has_begun());
    b.graphs().discard(&b.home);
    assert_eq!(b.step(2.0, 1).unwrap(), 4.0);
    assert_eq!(control.report(0), "");
    drop((b, mark, inside));
    common::remove(&home);
}
